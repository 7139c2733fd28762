# SPDX-License-Identifier: Apache-2.0
"""Models that compute a declared operator, written as users write them: with layers, functions or methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from coldforge.codegen.chain import reduced_axes, roles_after, roles_of
from coldforge.codegen.operator import Operator
from coldforge.codegen.problem import make_problem
from torch import Tensor, nn

SPELLINGS = ("layers", "functions", "methods")
_LAYERS: Mapping[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "mish": nn.Mish,
    "hardtanh": nn.Hardtanh,
}
_FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": lambda v, value: v - value,
    "mul": lambda v, value: value * v,
    "div": torch.div,
    "relu": torch.relu,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "hardtanh": lambda v, min_val, max_val: torch.clamp(v, min_val, max_val),
}
_METHODS: Mapping[str, Callable[..., Tensor]] = {
    "add": lambda v, value: v.add(value),
    "sub": lambda v, value: v.sub(value),
    "mul": lambda v, value: v.mul(value),
    "div": lambda v, value: v.div(value),
    "relu": lambda v: v.relu(),
    "leaky_relu": lambda v, negative_slope: F.leaky_relu(v, negative_slope=negative_slope),
    "mish": lambda v: F.mish(v),
    "hardtanh": lambda v, min_val, max_val: v.clamp(min=min_val, max=max_val),
}


class Spelled(nn.Module):
    """A layer of `torch.nn`, the family's own steps, then the operator's chain.

    Args:
        operator: of a family of convolutions.
        workload: its sizes and attributes.
        spelling: one of `SPELLINGS`.
        scalars: other values than the declared ones.
    """

    def __init__(
        self,
        operator: Operator,
        workload: Mapping[str, Any],
        spelling: str,
        scalars: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        problem = make_problem(operator, "small", dict(workload))
        given = problem.attributes()
        d = problem.dims
        self.mean = operator.family.name == "conv_transpose2d_mean"
        layer = nn.ConvTranspose2d if self.mean else nn.Conv2d
        self.conv = layer(d["C_in"], d["C_out"], (d["R"], d["S"]), **given)
        self.shape = (d["N"], d["C_in"], d["H"], d["W"])
        self.spelling, self.scalars = spelling, {**operator.scalars, **(scalars or {})}
        roles = roles_of(operator.family)
        self.steps: list[tuple[str, dict[str, Any]]] = []
        for step in operator.epilogue:
            if step.is_reduction:
                axes = reduced_axes(step, roles)
                arguments: dict[str, Any] = {
                    "dim": axes if len(axes) > 1 else axes[0],
                    "keepdim": step.keepdim,
                }
            else:
                arguments = {
                    n: self.scalars.get(v, v) if isinstance(v, str) else v for n, v in step.arguments
                }
            self.steps.append((step.op, arguments))
            roles = roles_after(step, roles)
        for vector in operator.channel_vectors:
            self.register_parameter(vector, nn.Parameter(torch.randn(d["C_out"], 1, 1)))
        self.layers = nn.ModuleDict(
            {str(i): _LAYERS[name](**a) for i, (name, a) in enumerate(self.steps) if name in _LAYERS}
        )

    def forward(self, x: Tensor) -> Tensor:
        """All steps in order."""
        v = self.conv(x)
        if self.mean:
            v = F.adaptive_avg_pool2d(v, 1) if self.spelling == "layers" else v.mean((2, 3), keepdim=True)
        for i, (name, arguments) in enumerate(self.steps):
            given = {n: getattr(self, a) if isinstance(a, str) else a for n, a in arguments.items()}
            if self.spelling == "layers" and str(i) in self.layers:
                v = self.layers[str(i)](v)
            elif "dim" in given:
                v = (
                    getattr(torch, name)(v, **given)
                    if self.spelling != "methods"
                    else getattr(v, name)(**given)
                )
            else:
                v = (_METHODS if self.spelling == "methods" else _FUNCTIONS)[name](v, *given.values())
        return v
