# SPDX-License-Identifier: Apache-2.0
"""What a config is run on: small awkward shapes with inputs of several kinds, and what must come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...codegen.errors import InputError
from ...codegen.target import Target
from ..bound import Expectation, expect
from ..inputs import draw, ragged_kinds, workload_kinds
from ..shapes import batch_of, describe, elements, ragged_problems, shrinkage, smallest

if TYPE_CHECKING:
    import torch

    from ...codegen.problem import Problem

LONG_PLANES, NARROW_PLANES = ((257, 259), (173, 191), (91, 181)), ((37, 2), (173, 4))
WHOLE_TILES = (16, 32)
"""Rows and columns of the input's planes; rows of narrow ones, and columns beyond the least that are legal;
rows and columns of the output."""
COLUMN_ROWS = 20
MOST_ELEMENTS = 1_200_000
"""Of all tensors together: the long plane with more of them would take seconds."""

SAMPLES = 2
"""Of a batch at most: a third one goes the way of the second."""

FEW_MULTIPROCESSORS = 2
"""Of the device that every other case is launched for: blocks that go through many tiles then do."""


@dataclass(frozen=True)
class Case:
    """One shape with its inputs.

    Attributes:
        problem: the shape.
        kind: the kind of inputs.
        order: which threads go first.
        few_multiprocessors: whether the launch is for a device of very few.
        tensors: present inputs by name.
        expected: what must come out.
    """

    problem: Problem
    kind: str
    order: str
    few_multiprocessors: bool
    tensors: Mapping[str, torch.Tensor]
    expected: Expectation

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.kind} inputs at {describe(self.problem)}, threads {self.order}"

    def device(self, target: Target) -> Target:
        """The device that the launch is for."""
        return few(target) if self.few_multiprocessors else target


def few(target: Target) -> Target:
    """A device like it of FEW_MULTIPROCESSORS."""
    return replace(target, attributes={**target.attributes, "sm_count": FEW_MULTIPROCESSORS})


def build_cases(problem: Problem, precision: str) -> tuple[Case, ...]:
    """Every ragged shape of a problem and every kind of inputs, the smallest shapes first; kinds, orders of
    threads and sizes of the device take turns. Kinds that are left over share the smaller shapes."""
    orders = ("forward", "reverse", "shuffle:1")
    shapes = sorted((_few_samples(shape) for shape in ragged_problems(problem)), key=elements)
    kinds = ragged_kinds(problem)
    turns = [(shape, kinds[i % len(kinds)]) for i, shape in enumerate(shapes)]
    turns += [(shapes[(1 + i) % len(shapes)], kind) for i, kind in enumerate(kinds[len(shapes) :])]
    turns += [(shape, workload_kinds(problem)[-1]) for shape in _larger(problem)]
    cases: list[Case] = []
    for index, (shape, kind) in enumerate(turns):
        tensors = draw(shape, kind)
        expected = expect(shape, tensors, shape.scalars, precision)
        cases.append(Case(shape, kind, orders[index % 3], index % 2 == 1, tensors, expected))
    return tuple(cases)


def _few_samples(problem: Problem) -> Problem:
    """The shape, of no more than SAMPLES."""
    batch = batch_of(problem.operator.family)
    if batch is None or problem.dims[batch] <= SAMPLES:
        return problem
    return (*_legal(problem, {batch: SAMPLES}), problem)[0]


def _larger(problem: Problem) -> tuple[Problem, ...]:
    """What ragged shapes leave out. Where an output stands for a plane: one so long that each thread sums up
    hundreds of values, and many rows shorter than a vector. Where it is a pixel: an output of whole tiles,
    with nothing left over, and one of a single column."""
    family = problem.operator.family
    batch = batch_of(family)
    axes = [name for name in family.run_time if name != batch]
    if len(axes) < 2 or len(problem.tensors[0].shape) < 4 or len(problem.linear_shape) < 4:
        return ()
    samples = {} if batch is None else {batch: 1}
    if shrinkage(problem) >= 2:
        least = smallest(problem, axes[-1])

        def planes(*sizes: tuple[int, int]) -> list[Problem]:
            made = (
                _legal(problem, {**samples, axes[-2]: rows, axes[-1]: columns}) for rows, columns in sizes
            )
            return [legal for each in made for legal in each]

        return (*planes(*LONG_PLANES)[:1], *planes(*((rows, least + more) for rows, more in NARROW_PLANES)))
    least = {name: smallest(problem, name) for name in axes}
    column = _legal(problem, {**least, **samples, axes[-2]: least[axes[-2]] + COLUMN_ROWS - 1})
    dims = {**least, **dict.fromkeys(samples, 2)}
    for place, extent in ((-1, WHOLE_TILES[1]), (-2, WHOLE_TILES[0])):
        first = dims[axes[place]]
        for value in range(first, first + 4 * extent):
            found = _legal(problem, {**dims, axes[place]: value})
            if found and found[0].linear_shape[place] == extent:
                dims[axes[place]] = value
                break
    return (*_legal(problem, dims), *column)


def _legal(problem: Problem, dims: Mapping[str, int]) -> tuple[Problem, ...]:
    try:
        legal = problem.with_dims(**dims)
    except InputError:
        return ()
    return (legal,) if elements(legal) <= MOST_ELEMENTS else ()
