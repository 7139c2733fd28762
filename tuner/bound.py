# SPDX-License-Identifier: Apache-2.0
"""How far a correct kernel of an error class may be from float64, element by element.

With v the linear part in float64, m the sum of the absolute values of the terms behind it and K their
number, a kernel of class p may be off before the epilogue by

    b = c(p) * eps(p) * sqrt(K) * m

and after each step f of the epilogue, on a value v that may be off by b, by

    max(|f(v + b) - f(v)|, |f(v - b) - f(v)|) + r(f) * eps(p) * |f(v)|

(a reduction grows with each value it reduces, so the same form bounds it, with all of them off at once; what
it is off by itself follows the number and the size of what it adds up: `templates/reductions.py`). A
reduction of one value is no arithmetic.

sqrt(K) is how rounding errors of a sum grow when they are independent; m makes the bound follow the terms,
so that it is as tight where an image is dark as where it is bright. r is what the step itself may be off by:
where f is flat (the minimum of mish) nothing else is left of the bound. Where the reference is infinite or
NaN, nothing else is allowed.

K counts what a good algorithm adds up, not what the definition does. For a transposed convolution and the
mean over its output (family conv_transpose2d_mean) this is the collapsed form, so for fp32

    b = 2 * 2^-24 * sqrt(C_in * R * S + 3) * m,   m = sum |x * w| / (H_out * W_out) + |conv_bias|

which does not grow with H * W: a plane summed in pairs, compensated or in double is off by about one
rounding however large it is, while a sum in one sequence, on data that are all alike (mean 1e4, spread 1e-2),
is off by a share of its H * W terms, since each addition is rounded the same way. The judge is the definition
itself in float64, not the collapsed form; only m is computed by that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from ..codegen.chain import Roles, apply_step, reduced_axes, roles_after, roles_of
from ..codegen.dtypes import PRECISIONS
from ..codegen.errors import InputError
from ..templates.reductions import REDUCTIONS
from .inputs import draw
from .shapes import batch_of, batch_size, ragged_problems

if TYPE_CHECKING:
    from ..codegen.problem import Problem
    from ..codegen.steps import EpilogueStep

CONSTANTS = {"fp32": 2.0, "tf32": 2.0, "fp16": 2.0, "bf16": 2.0}
"""c by error class. Measured on 1e5 sums each of K = 1 to 1152 terms (normal, offset and all-positive ones,
added in sequence with and without fused multiply-adds, bias first or last): the worst error of fp32 was
1.84 at K = 1 and under 1.7 from K = 9 on; of operands rounded to tf32 it was 1.57 at K = 1, falling with
K. So 2 is the least round number that rejects no correct variant."""

_ARITHMETIC = {
    "add": 2,
    "sub": 2,
    "mul": 2,
    "div": 3,
    "leaky_relu": 2,
    "relu": 0,
    "min": 1,
    "max": 1,
    "clamp": 1,
}
STEP_ROUNDINGS = {**_ARITHMETIC, "hardtanh": 1, "hardsigmoid": 4, "hardswish": 5}
"""r by operation, in units of eps: one for the operation, one for a parameter that is no float, one for a
reciprocal in place of a division."""

LIBRARY_ROUNDINGS = 12
"""r of the rest: exp, tanh, erfc, ... are good to 4 units in the last place (8 eps), and a few operations
follow them."""

CHUNK_ELEMENTS = 1 << 24
"""Outputs that are referenced or judged at a time: bounds the float64 temporaries to a few hundred MB."""


@dataclass(frozen=True)
class Expectation:
    """What a check expects of an output.

    Attributes:
        reference: float64, the output's shape.
        tolerance: float32, rounded up, the output's shape; 0 where the reference is not finite.
        finite: Whether every element of the reference is finite.
        norm: L2 norm of the reference's finite elements.
        edge: The least magnitude that the output's type rounds to infinity, where some reference is so near
            that an infinity may be right as well; else infinite. An infinity counts as this value there.
    """

    reference: torch.Tensor
    tolerance: torch.Tensor
    finite: bool
    norm: float
    edge: float = math.inf


@dataclass(frozen=True)
class Judgement:
    """One output against an Expectation.

    Attributes:
        ratio: Worst |out - ref| / tolerance; infinite for a NaN or an infinity out of place.
        error: Relative L2 error over the finite elements.
        wrong: Number of elements beyond their tolerance.
        worst: Index of the worst element.
        got, want: Its values.
    """

    ratio: float
    error: float
    wrong: int
    worst: tuple[int, ...]
    got: float
    want: float


def expect(
    problem: Problem, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, float], precision: str
) -> Expectation:
    """Computes reference and tolerance in float64 on the tensors' device, a few samples at a time.

    Args:
        problem: The shape.
        tensors: The present inputs by name, in the problem's dtype.
        scalars: The epilogue's scalars.
        precision: The error class.

    Raises:
        InputError: The class has no bound.
    """
    if precision not in CONSTANTS:
        raise InputError(f"no error bound for precision {precision!r}; known: {', '.join(CONSTANTS)}")
    device = next(iter(tensors.values())).device
    reference = torch.empty(problem.output.shape, dtype=torch.float64, device=device)
    tolerance = torch.empty(problem.output.shape, dtype=torch.float32, device=device)
    edge = rounds_to_infinity(problem.dtype.torch)
    near = torch.zeros((), dtype=torch.bool, device=device)
    # A library convolution may pick a Fourier algorithm, whose error follows the brightest pixel
    # everywhere.
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
        for part, rows, inputs in _by_samples(problem, tensors):
            wide = {name: value.to(torch.float64) for name, value in inputs.items()}
            exact, allowed = _expect_part(part, wide, scalars, precision)
            reference[rows] = exact
            tolerance[rows] = allowed
            near |= ((exact.abs() + allowed >= edge) & exact.isfinite()).any()
    norm = torch.linalg.vector_norm(reference)
    finite = bool(norm.isfinite())
    if not finite:
        norm = torch.linalg.vector_norm(reference.nan_to_num(0.0, 0.0, 0.0))
    return Expectation(reference, tolerance, finite, float(norm), edge if bool(near) else math.inf)


def rounds_to_infinity(dtype: torch.dtype) -> float:
    """The least magnitude that rounds to infinity: half a unit in the last place above the largest value."""
    info = torch.finfo(dtype)
    return info.max + info.eps * 2.0 ** math.floor(math.log2(info.max)) / 2


def _expect_part(
    problem: Problem, wide: Mapping[str, torch.Tensor], scalars: Mapping[str, float], precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    eps = PRECISIONS[precision]
    v = problem.linear_reference(wide)
    magnitude = problem.magnitude(wide)
    if magnitude is None:
        magnitude = _usual_magnitude(problem, wide, v)
    slack = magnitude * (CONSTANTS[precision] * eps * math.sqrt(problem.reduction_length))
    roles = roles_of(problem.operator.family)
    for step in problem.steps:
        slack = torch.where(v.isfinite(), slack, 0.0)
        exact, above, below = (
            apply_step(step, value, roles, wide, scalars) for value in (v, v + slack, v - slack)
        )
        own = _own_rounding(step, v, exact, roles)
        v, slack = exact, torch.maximum((above - exact).abs(), (below - exact).abs()) + eps * own
        roles = roles_after(step, roles)
    smallest = torch.finfo(problem.dtype.torch).smallest_normal * torch.finfo(problem.dtype.torch).eps
    stored = (
        problem.dtype.eps if problem.dtype.eps > eps else 0.0
    )  # else the last step's rounding is this one
    exact, allowed = v, slack + v.abs() * stored + smallest
    # A value that the output's type surely cannot hold is expected as the infinity that it rounds to.
    beyond = exact.abs() - allowed >= rounds_to_infinity(problem.dtype.torch)
    exact = torch.where(beyond, exact.sign() * math.inf, exact)
    allowed = torch.where(exact.isfinite(), allowed, 0.0)
    return exact, torch.nextafter(allowed.float(), torch.full((), math.inf, device=v.device))


def _usual_magnitude(problem: Problem, wide: Mapping[str, torch.Tensor], v: torch.Tensor) -> torch.Tensor:
    """Where the family gives no terms: one scale for all, the largest of the outputs and of those that the
    inputs' absolute values have, in which a sum does not cancel."""
    positive = problem.linear_reference({name: value.abs() for name, value in wide.items()})
    largest = [one.abs().nan_to_num(0.0, 0.0, 0.0).amax() for one in (v, positive)]
    return torch.maximum(*largest).expand_as(v)


def _own_rounding(step: EpilogueStep, v: torch.Tensor, exact: torch.Tensor, roles: Roles) -> torch.Tensor:
    """What a step itself may be off by, in units of eps: see the table of operations, and of reductions."""
    if not step.is_reduction:
        return exact.abs() * STEP_ROUNDINGS.get(step.op, LIBRARY_ROUNDINGS)
    row, axes = REDUCTIONS[step.op], reduced_axes(step, roles)
    count = math.prod(v.shape[axis] for axis in axes)
    if row.scale == "result":
        return (exact.abs() + 1 + math.log(count)) * row.roundings
    if row.scale == "none":
        return torch.zeros_like(exact)
    if count == 1:
        return torch.zeros_like(exact)
    return row.reference(v.abs(), axes, step.keepdim) * (row.roundings * math.sqrt(count))


def _by_samples(
    problem: Problem, tensors: Mapping[str, torch.Tensor]
) -> Iterator[tuple[Problem, slice, dict[str, torch.Tensor]]]:
    """Cuts the batch into parts of at most CHUNK_ELEMENTS of the largest tensor: each one's problem, rows
    and inputs."""
    total = batch_size(problem)
    largest = max(math.prod(t.shape) for t in (*problem.tensors, problem.output) if t.present)
    per_sample = max(1, largest // total)
    step = max(1, min(total, CHUNK_ELEMENTS // per_sample))
    if step >= total or not samples_apart(problem):
        yield problem, slice(None), dict(tensors)
        return
    for first in range(0, total, step):
        part, inputs = samples_of(problem, tensors, first, min(step, total - first))
        yield part, slice(first, first + part.output.shape[0]), inputs


def samples_of(
    problem: Problem, tensors: Mapping[str, torch.Tensor], first: int, count: int
) -> tuple[Problem, dict[str, torch.Tensor]]:
    """The problem of a few of the batch's samples, and its inputs; the whole of a family without a batch."""
    batch = batch_of(problem.operator.family)
    if batch is None:
        return problem, dict(tensors)
    part = problem.with_dims(**{batch: count})
    result = {}
    # A tensor runs along the batch where the shorter batch shortens it.
    for whole, short in zip(problem.tensors, part.tensors, strict=True):
        if whole.name in tensors:
            value = tensors[whole.name]
            result[whole.name] = value[first : first + count] if whole.shape != short.shape else value
    return part, result


@lru_cache(maxsize=16)
def samples_apart(problem: Problem) -> bool:
    """Whether each sample's result is its own, so that a batch may be cut: tried on a small shape."""
    if batch_of(problem.operator.family) is None:
        return False
    small = max(ragged_problems(problem), key=batch_size)
    tensors = {name: value.double() for name, value in draw(small, "offset").items()}
    whole = small.linear_reference(tensors)
    for index in range(batch_size(small)):
        part, inputs = samples_of(small, tensors, index, 1)
        alone = part.linear_reference(inputs)
        if alone.shape[0] != 1 or not torch.allclose(alone[0], whole[index], rtol=1e-9, atol=1e-12):
            return False
    return True


def judge(output: torch.Tensor, expected: Expectation) -> Judgement:
    """Compares element by element; NaN and infinities must stand exactly where the reference has them, but
    that values at the edge of the output's range may be on either side of it."""
    got, want, allowed = output.reshape(-1), expected.reference.view(-1), expected.tolerance.view(-1)
    compare = _compare_finite if expected.finite else _compare
    worst, place, wrong, error2 = -1.0, 0, 0, 0.0
    for first in range(0, got.numel(), CHUNK_ELEMENTS):
        part = slice(first, first + CHUNK_ELEMENTS)
        value = got[part].to(torch.float64)
        if math.isfinite(expected.edge):
            near = value.isinf() & want[part].isfinite()
            value = torch.where(near, value.sign() * expected.edge, value)
        ratio, part_error2 = compare(value, want[part], allowed[part])
        top, where = ratio.max(0)
        # One transfer a chunk: on a GPU each costs a wait.
        figures = torch.stack((top, where.double(), (ratio > 1).sum().double(), part_error2)).tolist()
        if figures[0] > worst:
            worst, place = figures[0], first + int(figures[1])
        wrong, error2 = wrong + int(figures[2]), error2 + figures[3]
    error = math.sqrt(error2) / expected.norm if expected.norm > 0 else (math.inf if error2 > 0 else 0.0)
    return Judgement(worst, error, wrong, _index(place, output.shape), float(got[place]), float(want[place]))


def _compare_finite(
    out: torch.Tensor, ref: torch.Tensor, allowed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ratios to the tolerance and the sum of squared errors; overwrites `out`. Every reference is finite."""
    difference = out.sub_(ref).abs_()
    error2 = torch.linalg.vector_norm(difference).square()
    return difference.div_(allowed).nan_to_num_(math.inf, math.inf), error2


def _compare(
    out: torch.Tensor, ref: torch.Tensor, allowed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same where references may be infinite or NaN: then nothing else is allowed."""
    same = (out == ref) | (out.isnan() & ref.isnan())
    difference = torch.where(same, 0.0, (out - ref).abs())
    ratio = torch.where(same, 0.0, difference / allowed).nan_to_num(math.inf, math.inf)
    return ratio, difference.square().sum()


def _index(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    index: list[int] = []
    for extent in reversed(shape):
        place, position = divmod(place, extent)
        index.insert(0, position)
    return tuple(index)


def first_sample(
    problem: Problem, tensors: Mapping[str, torch.Tensor], expected: Expectation
) -> tuple[Problem, dict[str, torch.Tensor], Expectation]:
    """A check cut down to its first sample; all of it where samples are not apart."""
    if not samples_apart(problem):
        return problem, dict(tensors), expected
    part, inputs = samples_of(problem, tensors, 0, 1)
    return part, inputs, replace(expected, reference=expected.reference[:1], tolerance=expected.tolerance[:1])


def reference_of(
    problem: Problem, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, float]
) -> torch.Tensor:
    """The reference in float64 alone, of few samples."""
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
        return problem.reference({name: value.to(torch.float64) for name, value in tensors.items()}, scalars)


def moved_by(problem: Problem, expected: Expectation, other: torch.Tensor) -> float:
    """By how many tolerances another draw of the data moves the output: the least over the samples of the
    most over a sample's elements.

    Args:
        problem: The shape.
        expected: Of the first draw.
        other: The reference of another draw of the data, all else equal.

    Returns:
        0 when no sample says anything: all that are not finite in both are left out.
    """
    want, allowed = expected.reference, expected.tolerance
    same = (other == want) | (other.isnan() & want.isnan())
    moved = torch.where(same, 0.0, (other - want).abs() / allowed).nan_to_num(math.inf, math.inf)
    samples = batch_size(problem)
    telling = (other.isfinite() | want.isfinite()).reshape(samples, -1).any(1)
    most = moved.reshape(samples, -1).amax(1)[telling]
    return float(most.min()) if most.numel() else 0.0
