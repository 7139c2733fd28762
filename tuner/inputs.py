# SPDX-License-Identifier: Apache-2.0
"""Inputs that tell right kernels from wrong ones, and the ragged shapes on which they are drawn.

One benign draw passes too much: a kernel that scales both operands by one factor, ignores an edge, or reads
an eighth of the rows can be close on it. Each kind here exposes a family of faults. All draws are made on
the host from a seed, so that every device and every process sees the same numbers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from ..codegen.errors import InputError

if TYPE_CHECKING:
    from ..codegen.problem import Problem

Tensors = dict[str, torch.Tensor]

WORKLOAD_KINDS = ("normal", "mixed")
"""The kinds that the workload itself is checked with; ragged shapes take all of KINDS."""

BATCH = "N"


class _Scales:
    """Factors that a dtype can bear: products of two still are normal numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        narrow = dtype == torch.float16
        self.tiny, self.large = (1e-2, 1e2) if narrow else (1e-4, 1e4)
        self.small, self.smaller = (1e-1, 1e-2) if narrow else (1e-6, 1e-8)


def _basis(problem: Problem, generator: torch.Generator) -> Tensors:
    """Normal data and filters (the filters scaled so that outputs are near 1); positive channel vectors."""
    tensors: Tensors = {}
    family = {t.name for t in problem.operator.family.tensors}
    for index, spec in enumerate(problem.tensors):
        if not spec.present:
            continue
        if spec.name not in family:  # may divide: stay away from zero
            tensors[spec.name] = torch.rand(spec.shape, generator=generator) + 0.5
            continue
        value = torch.randn(spec.shape, generator=generator)
        filters = index == 1 and len(spec.shape) > 1
        tensors[spec.name] = value / math.sqrt(problem.reduction_length) if filters else value
    return tensors


def _roles(problem: Problem) -> tuple[str, str | None, tuple[str, ...]]:
    """Names of the data (first tensor), the filters (second, if not a vector), the family's additive rest."""
    names = [t for t in problem.operator.family.tensors if t.name not in problem.absent]
    filters = names[1].name if len(names) > 1 and len(names[1].shape) > 1 else None
    rest = tuple(t.name for t in names[1:] if t.name != filters)
    return names[0].name, filters, rest


def _normal(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """As drawn."""


def _offset(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """Uniform data with an offset for each sample and channel: sums that cancel, planes that differ."""
    data = _roles(problem)[0]
    shape = tensors[data].shape
    offset = torch.rand(*shape[:2], *[1] * (len(shape) - 2), generator=generator) * 8 - 4
    tensors[data] = torch.rand(shape, generator=generator) + offset


def _scaled(problem: Problem, tensors: Tensors, factor: float) -> None:
    # The additive tensors shrink too: beside a bias near 1 the error of a tiny convolution would not be
    # seen.
    data, _, rest = _roles(problem)
    for name in (data, *rest):
        tensors[name] = tensors[name] * factor


def _tiny(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """All data x 1e-4."""
    _scaled(problem, tensors, _Scales(problem.dtype.torch).tiny)


def _large(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """All data x 1e4."""
    _scaled(problem, tensors, _Scales(problem.dtype.torch).large)


def _mix(problem: Problem, tensors: Tensors, axis: int, image: float, channel: float, filters: float) -> None:
    data, weight, rest = _roles(problem)
    value = tensors[data]
    if value.dim() > abs(axis):
        half = value.narrow(axis, value.shape[axis] // 2, value.shape[axis] - value.shape[axis] // 2)
        half.mul_(image)
    if value.dim() > 2 and value.shape[1] > 1:
        value.select(1, value.shape[1] // 2).mul_(channel)
    if weight is not None and tensors[weight].shape[0] > 1:
        tensors[weight][tensors[weight].shape[0] // 2 :].mul_(filters)
    for name in rest:
        tensors[name].mul_(image * filters)


def _mixed(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """The right half of each image x 1e-6, one channel x 1e-8, half of the filters x 1e-8."""
    scales = _Scales(problem.dtype.torch)
    _mix(problem, tensors, -1, scales.small, scales.smaller, scales.smaller)


def _mixed_rows(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """The lower half of each image x 1e-8, one channel x 1e-6, half of the filters x 1e-6."""
    scales = _Scales(problem.dtype.torch)
    _mix(problem, tensors, -2, scales.smaller, scales.small, scales.small)


def _nonfinite(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """inf, -inf and nan in a few places of the data: they must stay where the reference has them."""
    flat = tensors[_roles(problem)[0]].view(-1)
    count = max(1, min(12, flat.numel() // 64))
    places = torch.randint(flat.numel(), (count,), generator=generator)
    values = torch.tensor([math.inf, -math.inf, math.nan]).repeat(4)[:count]
    flat[places] = values


def _impulses(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """Zeros but for one element a sample (its corners, centre and random places); no additive term.

    An output that depends on no impulse must be f(0) exactly, and one that does must show one product: so
    each impulse reaches exactly the outputs that it should, by the right amount.
    """
    data, _, rest = _roles(problem)
    value = tensors[data]
    impulse = torch.zeros_like(value)
    planes = value.reshape(value.shape[0], value.shape[1] if value.dim() > 1 else 1, -1)
    target = impulse.view_as(planes)
    size = planes.shape[2]
    last_row = size - (value.shape[-1] if value.dim() > 2 else 1)
    corners = [0, size - 1, last_row, size - last_row - 1, size // 2]
    for sample in range(planes.shape[0]):
        anywhere = int(torch.randint(size, (), generator=generator))
        place = corners[sample] if sample < len(corners) else anywhere
        channel = int(torch.randint(planes.shape[1], (), generator=generator))
        target[sample, channel, place] = planes[sample, channel, place] + 2.0
    if planes.shape[0] == 1 and size > 64:
        target[0, -1, size - 1] = -1.5
    tensors[data] = impulse
    for name in rest:
        tensors[name].zero_()


_MAKERS: Mapping[str, Callable[[Problem, Tensors, torch.Generator], None]] = {
    "normal": _normal,
    "mixed": _mixed,
    "offset": _offset,
    "tiny": _tiny,
    "large": _large,
    "mixed_rows": _mixed_rows,
    "nonfinite": _nonfinite,
    "impulses": _impulses,
}

KINDS = tuple(_MAKERS)


def draw(problem: Problem, kind: str, seed: int = 0) -> Tensors:
    """Draws the problem's present tensors.

    Args:
        problem: Gives the shapes and the dtype.
        kind: One of KINDS.
        seed: Another number gives another draw of the same kind.

    Returns:
        Contiguous host tensors of the problem's dtype, by name.

    Raises:
        InputError: There is no such kind.
    """
    if kind not in _MAKERS:
        raise InputError(f"unknown kind of inputs {kind!r}; known: {', '.join(KINDS)}")
    text = f"{kind} {seed} {[(t.name, t.shape) for t in problem.tensors]}"
    generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
    tensors = _basis(problem, generator)
    _MAKERS[kind](problem, tensors, generator)
    return {name: value.to(problem.dtype.torch).contiguous() for name, value in tensors.items()}


def smallest(problem: Problem, size: str) -> int:
    """The least legal value of a run-time size, the others as they are."""
    for value in range(1, problem.dims[size]):
        try:
            problem.with_dims(**{size: value})
        except InputError:
            continue
        return value
    return problem.dims[size]


# (batch, added to the outer extents, remainder mod 4 to which the innermost is raised, added to the
# innermost). Additions are to the least legal extent: one pixel; under a tile; several ragged tiles; wide;
# flat; tall and narrow. The remainders make every alignment of the rows occur.
_RAGGED = (
    (1, 0, None, 0),
    (2, 4, 1, 4),
    (1, 14, 3, 40),
    (3, 8, 2, 66),
    (1, 1, 1, 259),
    (5, 33, 0, 9),
)


def ragged_problems(problem: Problem) -> tuple[Problem, ...]:
    """Small awkward shapes of the same specialisation: only run-time sizes vary, so one binary serves all.

    One output pixel, images smaller than any tile, odd extents, rows longer than any tile, every alignment
    of the rows, one sample and an odd number of them.
    """
    sizes = problem.operator.family.run_time
    axes = [name for name in sizes if name != BATCH]
    least = {name: smallest(problem, name) for name in axes}
    found: dict[tuple[int, ...], Problem] = {}
    for batch, outer, remainder, inner in _RAGGED:
        dims = {BATCH: batch} if BATCH in sizes else {}
        for name in axes:
            dims[name] = least[name] + (inner if name == axes[-1] else outer)
        if axes and remainder is not None:
            dims[axes[-1]] += (remainder - dims[axes[-1]]) % 4
        if len(axes) > 1 and outer > 4:
            dims[axes[0]] |= 1
        found.setdefault(tuple(dims.values()), problem.with_dims(**dims))
    return tuple(found.values())


def describe(problem: Problem) -> str:
    """The run-time sizes in a few words, for messages."""
    return " ".join(f"{name}={problem.dims[name]}" for name in problem.operator.family.run_time)
