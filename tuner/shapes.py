# SPDX-License-Identifier: Apache-2.0
"""The shapes that verification runs: small awkward ones, and what is known of the axes of a family.

Only run-time sizes vary, so one binary serves all shapes. Nothing here knows a size by its name: the batch is
the size along which data and output both run first.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ..codegen.errors import InputError

if TYPE_CHECKING:
    from ..codegen.family import Family
    from ..codegen.problem import Problem

LEGAL_WITHIN = 8
"""How far an extent is raised to find a legal one (a family may ask for a multiple of 8)."""


def batch_of(family: Family) -> str | None:
    """The run-time size that is the first of both the first tensor and the output, and of nothing else; None
    when there is none."""
    data, output = family.tensors[0].shape, family.output.shape
    if not data or not output or data[0].text != output[0].text or data[0].text not in family.run_time:
        return None
    name = data[0].text
    inner = [e for tensor in (*family.tensors, family.output) for e in tensor.shape[1:]]
    return None if any(name in e.names for e in (*inner, *family.derived.values())) else name


def batch_size(problem: Problem) -> int:
    """How many samples the problem has; 1 where its family has no batch."""
    name = batch_of(problem.operator.family)
    return 1 if name is None else problem.dims[name]


def shrinkage(problem: Problem) -> float:
    """How many elements of a plane of the data one pixel of the output stands for: 1 for a convolution of
    stride 1, H * W for a mean over all pixels. Planes are what follows batch and channel."""
    data, output = problem.tensors[0].shape, problem.linear_shape
    return max(1.0, math.prod(data[2:]) / math.prod(output[2:]))


def elements(problem: Problem) -> int:
    """Elements of all present tensors."""
    return sum(math.prod(t.shape) for t in (*problem.tensors, problem.output) if t.present)


def smallest(problem: Problem, size: str) -> int:
    """The least legal value of a run-time size, the others as they are."""
    for value in range(1, problem.dims[size]):
        if _at(problem, {size: value}) is not None:
            return value
    return problem.dims[size]


def _at(problem: Problem, dims: dict[str, int]) -> Problem | None:
    try:
        return problem.with_dims(**dims)
    except InputError:
        return None


# (batch, added to the outer extents, remainder mod 4 to which the innermost is raised, added to the
# innermost). Additions are to the least legal extent: one pixel; a few, so that between the borders of a
# padded image there are fewer than a vector has; under a tile; several ragged tiles; wide; flat; tall and
# narrow. The remainders make every alignment of the rows occur.
_RAGGED = (
    (1, 0, None, 0),
    (2, 2, None, 2),
    (2, 4, 1, 4),
    (1, 14, 3, 40),
    (3, 8, 2, 66),
    (1, 1, 1, 259),
    (5, 33, 0, 9),
)
# Where one size alone varies it may well be large: several blocks and a rest.
_LONG = (67, 0, 3, 1030)
LONG_ELEMENTS = 1 << 22
"""What is spent on that at the most: sizes that are compiled in may be large as well."""


def ragged_problems(problem: Problem) -> tuple[Problem, ...]:
    """Small awkward shapes of the same specialisation.

    One output pixel, images smaller than any tile, odd extents, rows longer than any tile, every alignment
    of the rows, one sample and an odd number of them.
    """
    family = problem.operator.family
    batch = batch_of(family)
    axes = [name for name in family.run_time if name != batch]
    least = {name: smallest(problem, name) for name in axes}
    found: dict[tuple[int, ...], Problem] = {}
    for plan in (*_RAGGED, _LONG):
        samples, outer, remainder, inner = plan
        dims = {} if batch is None else {batch: samples}
        for name in axes:
            dims[name] = least[name] + (inner if name == axes[-1] else outer)
        if axes and remainder is not None:
            dims[axes[-1]] += (remainder - dims[axes[-1]]) % 4
        if len(axes) > 1 and outer > 4:
            dims[axes[0]] |= 1
        legal = _nearest_legal(problem, dims, axes)
        if plan is _LONG and (len(axes) > 1 or legal is None or elements(legal) > LONG_ELEMENTS):
            continue
        if legal is not None:
            found.setdefault(tuple(legal.dims[name] for name in dims), legal)
    return tuple(found.values())


def other_scalars(problem: Problem) -> Problem:
    """The same shape with other run-time scalars: a kernel in which their values are written down is right
    with those values alone.

    Three quarters of each keep its sign, the order of two, and what lies between 0 and 1 there.
    """
    return replace(problem, scalars={n: 0.75 * v if v else 0.125 for n, v in problem.scalars.items()})


def _nearest_legal(problem: Problem, dims: dict[str, int], axes: list[str]) -> Problem | None:
    """The problem at these sizes, all but the batch raised by the same few where a family's rules ask for
    it."""
    for more in range(LEGAL_WITHIN):
        legal = _at(problem, {**dims, **{name: dims[name] + more for name in axes}})
        if legal is not None:
            return legal
    return None


def ragged_workload(problem: Problem) -> Problem | None:
    """One sample just under the workload's size, its planes odd; None where small shapes say as much.

    A kernel that walks a whole plane for one output meets many whole chunks and then a rest only here: small
    planes are all rest, and the workload's own are often a power of two.
    """
    if shrinkage(problem) < 2:
        return None
    batch = batch_of(problem.operator.family)
    dims = {} if batch is None else {batch: 1}
    axes = [name for name in problem.operator.family.run_time if name != batch]
    for index, name in enumerate(axes):
        dims[name] = max(1, problem.dims[name] - 1 - 2 * index) | 1
    legal = _nearest_legal(problem, dims, axes)
    return None if legal is None or legal.dims == problem.dims else legal


def describe(problem: Problem) -> str:
    """The run-time sizes in a few words, for messages."""
    return " ".join(f"{name}={problem.dims[name]}" for name in problem.operator.family.run_time)
