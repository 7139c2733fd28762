# SPDX-License-Identifier: Apache-2.0
# Copied by `coldforge freeze` from templates/pointwise.py; do not edit.
"""The pointwise operations of an epilogue chain: for each, its PyTorch reference and its C expression.

The expression is written on `float v` and the operation's parameters with the functions of <math.h>, so
one text serves C++ and CUDA. Two rules shape the expressions:

* NaN, infinities, signed zeros and values near the ends of the float range go where PyTorch's reference
  sends them. So comparisons are ordered such that a NaN falls through, and `fminf` and `fmaxf`, which
  drop NaN, are not used.
* The result is good to a few units in the last place of the exact value, in the tails too, because
  kernels are judged against float64. So no form that cancels: `1 + erf(u)` has no correct digit left at
  u = -4, `erfc(-u)` has all. And exp(-|v|) is applied as the square of h = exp(-|v| / 2) where it
  multiplies v: the product may be a normal number although exp(-|v|) alone is denormal.

This file imports nothing but the standard library, and torch when a reference is called: frozen packages
carry a copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Reference = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class PointwiseOp:
    """A function of one value that may follow a linear operator.

    Attributes:
        name: What an operator's chain calls it.
        parameters: Its arguments by name, in PyTorch's order; the value is the default, None where the chain
            must give one.
        reference: `reference(v, **parameters)` in PyTorch, on tensors of any floating dtype; a parameter
            is a number or a tensor that broadcasts against v.
        expression: A C expression of type float in `v` and the parameters' names (all float).
        channel_parameters: Those that may be a vector with one value a channel instead of a scalar.
        cuda_expression: Used instead on CUDA where it was measured faster.
        cpu_hoisted: What a CPU kernel computes once a call, by name, from parameters that are numbers or
            run-time scalars: a C++ compiler does not move it out of its loops by itself.
        cpu_expression: Used instead on a CPU when no parameter is a channel vector; may read `cpu_hoisted`.
    """

    name: str
    parameters: Mapping[str, float | None]
    reference: Reference
    expression: str
    channel_parameters: tuple[str, ...] = ()
    cuda_expression: str | None = None
    cpu_hoisted: Mapping[str, str] = field(default_factory=dict)
    cpu_expression: str | None = None

    def expression_for(self, kind: str) -> str:
        """The expression for a target kind, 'cuda' or 'cpu', with what is hoisted written in its place."""
        if kind == "cuda":
            return self.cuda_expression or self.expression
        text = self.cpu_expression or self.expression
        for name, hoisted in self.cpu_hoisted.items():
            text = re.sub(rf"\b{name}\b", f"({hoisted})", text)
        return text


def _functional(name: str) -> Reference:
    """`torch.nn.functional.<name>`, looked up when called."""

    def reference(v: torch.Tensor, **parameters: Any) -> torch.Tensor:
        import torch.nn.functional as F

        return getattr(F, name)(v, **parameters)

    return reference


def _gelu(v: torch.Tensor) -> torch.Tensor:
    """`gelu`; in float64, where kernels are judged, by a form that keeps its digits in the left tail."""
    import torch
    import torch.nn.functional as F

    if v.dtype != torch.float64:
        return F.gelu(v)
    return 0.5 * v * torch.special.erfc(-(0.5**0.5) * v)


def _gelu_tanh(v: torch.Tensor) -> torch.Tensor:
    """`gelu` with tanh; in float64 by 0.5 * (1 + tanh(u)) = sigmoid(2 * u), which keeps its digits too."""
    import torch
    import torch.nn.functional as F

    if v.dtype != torch.float64:
        return F.gelu(v, approximate="tanh")
    return v * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * v * (1 + 0.044715 * v * v))


def _binary(name: str, reference: Reference, expression: str) -> PointwiseOp:
    """An operation with one argument `value`, a scalar or one value a channel."""
    return PointwiseOp(name, {"value": None}, reference, expression, ("value",))


def _division() -> PointwiseOp:
    # One division for all values that share a divisor. The scale, a power of two, keeps the reciprocal a
    # normal number at both ends of the range: within 2 ulp, and infinities and zeros as a division has them.
    # On an H200, a division for each of 130 million values took 0.13 ms of a convolution's 0.61; on a Zen 3
    # CPU it took 2.4 % of one.
    scale = "(fabsf(value) > 8.50705917e37f ? 0.25f : fabsf(value) < 1.17549435e-38f ? 16777216.0f : 1.0f)"
    reciprocal = f"1.0f / (value * {scale})"
    return PointwiseOp(
        "div",
        {"value": None},
        lambda v, value: v / value,
        "v / value",
        ("value",),
        cuda_expression=f"v * {scale} * ({reciprocal})",
        cpu_hoisted={"scale": scale, "reciprocal": reciprocal},
        cpu_expression="v * scale * reciprocal",
    )


def _bounded(name: str, v: torch.Tensor, value: Any) -> torch.Tensor:
    """`torch.minimum` or `torch.maximum`, whose result is NaN where either is: `clamp` with one NaN bound was
    seen to give v on one PyTorch release and NaN on another."""
    import torch

    return getattr(torch, name)(v, torch.as_tensor(value, dtype=v.dtype, device=v.device))


def _at_least(v: str, bound: str) -> str:
    return f"({v} < {bound} || {bound} != {bound} ? {bound} : {v})"


def _at_most(v: str, bound: str) -> str:
    return f"({v} > {bound} || {bound} != {bound} ? {bound} : {v})"


def _times_sigmoid(u: str) -> str:
    """v * sigmoid(u) for a u that has the sign of v."""
    function = "[](float v, float h) { return (v < 0.0f ? v * h * h : v) / (1.0f + h * h); }"
    return f"{function}(v, expf(-0.5f * fabsf({u})))"


def _mish() -> str:
    # tanh(log1p(e)) = n / (n + 2) with n = e * (e + 2), e = exp(v) = h * h; it is 1 in float for v >= 20.
    function = (
        "[](float v, float h) { return v * h * (h * (h * h + 2.0f)) / (h * h * (h * h + 2.0f) + 2.0f); }"
    )
    return f"v > 20.0f ? v : {function}(v, expf(0.5f * v))"


_RELU6_OF_V_PLUS_3 = "(v + 3.0f < 0.0f ? 0.0f : v + 3.0f > 6.0f ? 6.0f : v + 3.0f)"

_OPS = (
    _binary("add", lambda v, value: v + value, "v + value"),
    _binary("sub", lambda v, value: v - value, "v - value"),
    _binary("mul", lambda v, value: v * value, "v * value"),
    _division(),
    _binary("min", lambda v, value: _bounded("minimum", v, value), _at_most("v", "value")),
    _binary("max", lambda v, value: _bounded("maximum", v, value), _at_least("v", "value")),
    PointwiseOp(
        "clamp",
        {"min": None, "max": None},
        lambda v, min, max: v.clamp(min, max),
        _at_most(_at_least("v", "min"), "max"),
    ),
    PointwiseOp(
        "hardtanh",
        {"min_val": -1.0, "max_val": 1.0},
        _functional("hardtanh"),
        _at_most(_at_least("v", "min_val"), "max_val"),
    ),
    PointwiseOp("relu", {}, _functional("relu"), "v < 0.0f ? 0.0f : v"),
    PointwiseOp(
        "leaky_relu",
        {"negative_slope": 0.01},
        _functional("leaky_relu"),
        "v > 0.0f ? v : v * negative_slope",
        # By the sign bit, without a predicate: ptxas was seen to give all comparisons of an unrolled loop the
        # same one, so that each waited for the one before. So +0 stays +0, where PyTorch has -0 if the slope
        # is negative, and NaN if it is not finite.
        cuda_expression="v * __uint_as_float((static_cast<unsigned>(__float_as_int(v) >> 31)"
        " & (__float_as_uint(negative_slope) ^ 0x3f800000u)) ^ 0x3f800000u)",
    ),
    PointwiseOp("elu", {"alpha": 1.0}, _functional("elu"), "v < 0.0f ? alpha * expm1f(v) : v"),
    PointwiseOp("gelu", {}, _gelu, "0.5f * v * erfcf(-0.707106781186547524f * v)"),
    PointwiseOp(
        "gelu_tanh",
        {},
        _gelu_tanh,
        # 0.5 * (1 + tanh(u)) = sigmoid(2 * u); the factors are 2 * sqrt(2 / pi) and 0.044715 times it.
        _times_sigmoid("v * (1.59576912160573071f + 0.0713548162726002527f * v * v)"),
    ),
    PointwiseOp("silu", {}, _functional("silu"), _times_sigmoid("v")),
    PointwiseOp("mish", {}, _functional("mish"), _mish()),
    PointwiseOp("hardswish", {}, _functional("hardswish"), f"v * ({_RELU6_OF_V_PLUS_3} / 6.0f)"),
    PointwiseOp("hardsigmoid", {}, _functional("hardsigmoid"), f"{_RELU6_OF_V_PLUS_3} / 6.0f"),
    PointwiseOp(
        "sigmoid",
        {},
        lambda v: v.sigmoid(),
        "(v < 0.0f ? expf(-fabsf(v)) : 1.0f) / (1.0f + expf(-fabsf(v)))",
    ),
    PointwiseOp("tanh", {}, lambda v: v.tanh(), "tanhf(v)"),
    PointwiseOp(
        "softplus",
        {"beta": 1.0, "threshold": 20.0},
        _functional("softplus"),
        "v * beta > threshold ? v : log1pf(expf(v * beta)) / beta",
    ),
)

POINTWISE: Mapping[str, PointwiseOp] = MappingProxyType({op.name: op for op in _OPS})
