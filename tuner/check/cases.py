# SPDX-License-Identifier: Apache-2.0
"""What a config is run on: small awkward shapes with inputs of several kinds, and what must come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...codegen.target import Target
from ..bound import Expectation, expect
from ..inputs import KINDS, draw
from ..shapes import describe, elements, ragged_problems

if TYPE_CHECKING:
    import torch

    from ...codegen.problem import Problem

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
    """Every ragged shape of a problem once, the smallest first; kinds of inputs and orders of threads take
    turns, so that each occurs."""
    orders = ("forward", "reverse", "shuffle:1")
    cases: list[Case] = []
    for index, shape in enumerate(sorted(ragged_problems(problem), key=elements)):
        kind = KINDS[index % len(KINDS)]
        tensors = draw(shape, kind)
        expected = expect(shape, tensors, shape.scalars, precision)
        cases.append(Case(shape, kind, orders[index % 3], index % 2 == 1, tensors, expected))
    return tuple(cases)
