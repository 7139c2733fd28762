# SPDX-License-Identifier: Apache-2.0
"""Inputs that tell right kernels from wrong ones.

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

from ..codegen.errors import DeclarationError, InputError
from .draws import normal, uniform
from .shapes import shrinkage

if TYPE_CHECKING:
    from ..codegen.problem import Problem

Tensors = dict[str, torch.Tensor]

WORKLOAD_KINDS = ("normal", "mixed")
"""The kinds that the workload itself is checked with where its family names no others."""


class _Scales:
    """Factors that a dtype can bear: products of two still are normal numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        narrow = dtype == torch.float16
        self.tiny, self.large = (1e-2, 1e2) if narrow else (1e-4, 1e4)
        self.largest = 1e2 if narrow else 1e25
        self.small, self.smaller = (1e-1, 1e-2) if narrow else (1e-6, 1e-8)
        # Below what two 16-bit floats of one scale can hold beside 1.
        self.smallest = 1e-2 if narrow else 1e-12
        # About what lies 8 of its roundings to either side: 10000 +- 0.01 in fp32.
        self.common = 1e2 if narrow else 1e4
        self.spread = self.common * 8 * torch.finfo(dtype).eps


def _basis(problem: Problem, generator: torch.Generator) -> Tensors:
    """Normal data and filters (the filters scaled so that outputs are near 1); positive channel vectors."""
    tensors: Tensors = {}
    family = {t.name for t in problem.operator.family.tensors}
    for index, spec in enumerate(problem.tensors):
        if not spec.present:
            continue
        if spec.name not in family:  # may divide: stay away from zero
            tensors[spec.name] = uniform(spec.shape, generator) + 0.5
            continue
        value = normal(spec.shape, generator)
        filters = index == 1 and len(spec.shape) > 1
        tensors[spec.name] = value / math.sqrt(problem.reduction_length) if filters else value
    return tensors


def _roles(problem: Problem) -> tuple[str, str | None, tuple[str, ...]]:
    """Names of the data (first tensor), the filters (second, if not a vector), the family's additive rest."""
    names = [t for t in problem.operator.family.tensors if t.name not in problem.absent]
    filters = names[1].name if len(names) > 1 and len(names[1].shape) > 1 else None
    rest = tuple(t.name for t in names[1:] if t.name != filters)
    return names[0].name, filters, rest


def _channels_axis(problem: Problem, name: str) -> int:
    """The axis of a tensor that runs along the output's channels; the first where none is said to."""
    family = problem.operator.family
    channels = frozenset() if family.channel_dim is None else family.output.shape[family.channel_dim].names
    shape = next(t.shape for t in family.tensors if t.name == name)
    return next((axis for axis, extent in enumerate(shape) if extent.names & channels), 0)


def _normal(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """As drawn."""


def _planes(shape: torch.Size) -> tuple[int, ...]:
    """The shape of one number for each plane: for each sample and channel, or each row of a matrix."""
    lead = 2 if len(shape) > 2 else 1
    return (*shape[:lead], *[1] * (len(shape) - lead))


def _offset(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """Uniform data with an offset for each plane and each of its rows and columns; filters mostly positive.

    Sums cancel over the planes, planes differ, and no part of a plane can stand for all of it, not half of
    its rows taken twice, nor every other: rows rise from first to last, and one stands out by an eighth of
    their number; columns alike. Positive filters let this show in every output.
    """
    data, filters, _ = _roles(problem)
    shape = tensors[data].shape
    value = uniform(shape, generator)
    value += torch.rand(_planes(shape), generator=generator) * 8 - 4
    for axis in range(2 if len(shape) > 2 else 1, len(shape)):
        count = shape[axis]
        line = torch.linspace(-1, 1, count) + torch.rand(count, generator=generator) / 4
        line[int(torch.randint(count, (), generator=generator))] += count / 8
        value += line.view([-1 if a == axis else 1 for a in range(len(shape))])
    tensors[data] = value
    if filters is not None:
        tensors[filters] += 1 / math.sqrt(problem.reduction_length)


def _common_offset(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """Data of mean 1e4, another for each plane (9000 to 11000), and spread 1e-2: a long sum of such numbers
    is rounded the same way at each step, so one that is not compensated or summed in pairs drifts off."""
    data = _roles(problem)[0]
    scales, shape = _Scales(problem.dtype.torch), tensors[data].shape
    value = (uniform(shape, generator) * 2 - 1) * scales.spread
    tensors[data] = value + (torch.rand(_planes(shape), generator=generator) * 0.2 + 0.9) * scales.common


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
    """All data x 1e4. A sum of products, which cannot overflow by it, x 1e25: too large for a kernel to scale
    the data and its results back by one factor each."""
    scales = _Scales(problem.dtype.torch)
    _scaled(problem, tensors, scales.largest if problem.operator.family.magnitude_name else scales.large)


def _mix(problem: Problem, tensors: Tensors, axis: int, image: float, channel: float, filters: float) -> None:
    data, weight, rest = _roles(problem)
    value = tensors[data]
    if value.dim() > abs(axis):
        half = value.narrow(axis, value.shape[axis] // 2, value.shape[axis] - value.shape[axis] // 2)
        half.mul_(image)
    if value.dim() > 2 and value.shape[1] > 1:
        value.select(1, value.shape[1] // 2).mul_(channel)
    if weight is not None:
        axis = _channels_axis(problem, weight)
        count = tensors[weight].shape[axis]
        if count > 1:
            tensors[weight].narrow(axis, count // 2, count - count // 2).mul_(filters)
    for name in rest:
        tensors[name].mul_(image * filters)


def _mixed(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """The right half of each image x 1e-6, one channel x 1e-8, half of the filters x 1e-8."""
    scales = _Scales(problem.dtype.torch)
    _mix(problem, tensors, -1, scales.small, scales.smaller, scales.smaller)


def _mixed_rows(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """The lower half of each image x 1e-12, one channel x 1e-6, half of the filters x 1e-6."""
    scales = _Scales(problem.dtype.torch)
    _mix(problem, tensors, -2, scales.smallest, scales.small, scales.small)


def _nonfinite(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """inf, -inf and nan in a few places of the data: they must stay where the reference has them.

    Where an output stands for a whole plane each value has a sample to itself, and one sample has none: else
    everything would be NaN, which a kernel that loses its way also writes.
    """
    data = tensors[_roles(problem)[0]]
    values = torch.tensor([math.inf, -math.inf, math.nan])
    if data.dim() > 2 and shrinkage(problem) >= 2:
        first = int(torch.randint(4, (), generator=generator))
        for sample, plane in enumerate(data.reshape(data.shape[0], -1)):
            place = int(torch.randint(plane.numel(), (), generator=generator))
            if (which := (first + sample) % 4) < 3:
                plane[place] = values[which]
        return
    flat = data.view(-1)
    count = max(1, min(12, flat.numel() // 64))
    places = torch.randint(flat.numel(), (count,), generator=generator)
    flat[places] = values.repeat(4)[:count]


def _impulses(problem: Problem, tensors: Tensors, generator: torch.Generator) -> None:
    """Zeros but for one element a sample (its corners, centre and random places); no additive term.

    An output that depends on no impulse must be f(0) exactly, and one that does must show one product: so
    each impulse reaches exactly the outputs that it should, by the right amount. In a mean over a plane the
    impulse is as many times higher as the plane has pixels. Elsewhere the last input
    channel's filters are x 1e-12: where an impulse meets these, the others do not hide what became of it.
    """
    data, filters, rest = _roles(problem)
    weak = filters is not None and math.prod(problem.linear_shape[2:]) > 1
    value = tensors[data] if tensors[data].dim() > 1 else tensors[data][None]
    impulse = torch.zeros_like(value)
    height = min(shrinkage(problem), torch.finfo(problem.dtype.torch).max / 16)
    planes = value.reshape(value.shape[0], value.shape[1], -1)
    target = impulse.view_as(planes)
    size = planes.shape[2]
    last_row = size - (value.shape[-1] if value.dim() > 2 else 1)
    corners = [0, size - 1, last_row, size - last_row - 1, size // 2]
    for sample in range(planes.shape[0]):
        anywhere = int(torch.randint(size, (), generator=generator))
        place = corners[sample] if sample < len(corners) else anywhere
        channel = int(torch.randint(planes.shape[1], (), generator=generator))
        if weak and sample == planes.shape[0] - 1:
            channel = planes.shape[1] - 1
        target[sample, channel, place] = (planes[sample, channel, place] + 2.0) * height
    if planes.shape[0] == 1 and size > 64:
        target[0, -1, size - 1] = -1.5 * height
    tensors[data] = impulse.view_as(tensors[data])
    if weak and filters is not None:
        axis = 1 - min(1, _channels_axis(problem, filters))
        tensors[filters].select(axis, -1).mul_(_Scales(problem.dtype.torch).smallest)
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
"""The kinds that every family is checked with."""

_ASKED_FOR: Mapping[str, Callable[[Problem, Tensors, torch.Generator], None]] = {
    "common_offset": _common_offset,
}
"""Kinds that a family has to ask for by its `workload_inputs`: a normalisation in fp32, say, cannot bear a
mean a million times its spread."""


def workload_kinds(problem: Problem) -> tuple[str, ...]:
    """The kinds that the workload itself is checked with; the first is the one that is timed.

    Raises:
        DeclarationError: The family names a kind that there is not.
    """
    family = problem.operator.family
    for kind in family.workload_inputs:
        if kind not in _MAKERS and kind not in _ASKED_FOR:
            known = ", ".join((*KINDS, *_ASKED_FOR))
            raise DeclarationError(
                f"{family.name}/family.yaml: workload_inputs: unknown kind of inputs {kind!r}; known: {known}"
            )
    return family.workload_inputs or WORKLOAD_KINDS


def ragged_kinds(problem: Problem) -> tuple[str, ...]:
    """The kinds that small shapes are checked with: KINDS, and those that the family asks for."""
    return (*KINDS, *(kind for kind in workload_kinds(problem) if kind not in KINDS))


def draw(problem: Problem, kind: str, seed: int = 0) -> Tensors:
    """Draws the problem's present tensors.

    Args:
        problem: Gives the shapes and the dtype.
        kind: One of KINDS, or one that a family may ask for.
        seed: Another number gives another draw of the same kind.

    Returns:
        Contiguous host tensors of the problem's dtype, by name.

    Raises:
        InputError: There is no such kind.
    """
    maker = _MAKERS.get(kind) or _ASKED_FOR.get(kind)
    if maker is None:
        known = ", ".join((*KINDS, *_ASKED_FOR))
        raise InputError(f"unknown kind of inputs {kind!r}; known: {known}")
    text = f"{kind} {seed} {[(t.name, t.shape) for t in problem.tensors]}"
    generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
    tensors = _basis(problem, generator)
    maker(problem, tensors, generator)
    return {name: value.to(problem.dtype.torch).contiguous() for name, value in tensors.items()}
