# SPDX-License-Identifier: Apache-2.0
"""Running one config of a template on the CPU: from a problem and its tensors to the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..compile.cache import Cache
from ..problem import Problem
from ..render import render
from ..space import Config, Space
from ..target import Target
from .job import Array, Call
from .run import Emulation, emulate_calls

if TYPE_CHECKING:
    import torch


def variant_call(
    space: Space,
    problem: Problem,
    config: Config,
    target: Target,
    tensors: Mapping[str, torch.Tensor | None],
    *,
    order: str = "forward",
    time_limit_s: float = 20.0,
) -> Call:
    """A launch of a config, with all that its argument struct holds.

    Args:
        tensors: the problem's present input tensors by name, of its shapes and dtype, on the host.
    """
    import torch

    launch = space.launch(problem, config, target)
    arrays: list[Array | None] = []
    for spec in problem.tensors:
        value = tensors.get(spec.name) if spec.present else None
        arrays.append(None if value is None else Array(spec.name, "input", value))
    output = torch.empty(problem.output.shape, dtype=problem.dtype.torch)
    arrays.append(Array(problem.output.name, "output", output))
    if "workspace_bytes" in space.launch_exprs:
        size, zeroed = launch.workspace_bytes, launch.zeroed_bytes
        scratch = Array("workspace", "workspace", workspace_bytes=size, zeroed_bytes=zeroed)
        arrays.append(scratch if size else None)
    sizes = [int(problem.values[name]) for name in problem.sizes]
    scalars = [float(problem.scalars[name]) for name in problem.scalar_names]
    return Call(launch, arrays, sizes, scalars, order, time_limit_s)


def emulate_variant(
    space: Space,
    config: Config,
    target: Target,
    problems: Sequence[tuple[Problem, Mapping[str, Any]]],
    *,
    build: str = "asan",
    orders: Sequence[str] = ("forward",),
    time_limit_s: float = 20.0,
    cache: Cache | None = None,
) -> list[Emulation]:
    """Renders a config once and runs it for each problem and, within that, each order of threads.

    Args:
        space: A space of a CUDA template.
        config: A legal config of it (`Space.require`).
        target: Any CUDA target that the template supports; none need be present.
        problems: Problems of one specialisation, each with its input tensors by name.
        build: "plain", "asan" or "race".
        orders: "forward", "reverse", "shuffle:<seed>".
        time_limit_s: Seconds of processor time that each run may take.
        cache: Where compiled kernels are kept; the settings' home when not given.

    Returns:
        A result for each problem and order; `outputs` has the problem's output by its name.

    Raises:
        CompileError: g++ refused the rendered text.
        ToolMissing: There is no g++.
    """
    calls = [
        variant_call(space, problem, config, target, tensors, order=order, time_limit_s=time_limit_s)
        for problem, tensors in problems
        for order in orders
    ]
    source = render(space, problems[0][0], config, target)
    return emulate_calls(source, calls, build=build, cache=cache, template=space.file)
