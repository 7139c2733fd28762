# SPDX-License-Identifier: Apache-2.0
"""The inputs and outputs of timed calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .devices.base import LaunchRefused
from .inputs import draw

if TYPE_CHECKING:
    from ..codegen.problem import Problem
    from .checks import Check
    from .devices.base import Call, Device


@dataclass(frozen=True)
class TimedSet:
    """Inputs and an output as an application has them: no guard zones, the allocator's alignment."""

    inputs: tuple[torch.Tensor | None, ...]
    output: torch.Tensor
    kind: str
    seed: int

    @classmethod
    def make(cls, device: Device, problem: Problem, kind: str, seed: int) -> TimedSet:
        """Draws one set; the same kind and seed give the same numbers as in a check."""
        drawn = {name: value.to(device.torch_device) for name, value in draw(problem, kind, seed).items()}
        dtype = problem.dtype.torch
        output = torch.empty(problem.output.shape, dtype=dtype, device=device.torch_device)
        return cls(tuple(drawn.get(spec.name) for spec in problem.tensors), output, kind, seed)

    def renew(self, problem: Problem) -> None:
        """Draws the inputs again, in place: a variant that goes wrong may have spoilt them."""
        drawn = draw(problem, self.kind, self.seed)
        for spec, value in zip(problem.tensors, self.inputs, strict=True):
            if value is not None:
                value.copy_(drawn[spec.name])


def run_on_other_inputs(call: Call, timed: Sequence[TimedSet], check: Check) -> None:
    """Runs the call of the first set once while the second one's inputs lie in its memory.

    A variant that keeps something by the address of what it read (weights put in another order, an answer) is
    right in all checks, since none changes what lies at an address. It then answers the timed calls with what
    it has kept, which is seen when their output is judged.

    Args:
        call: The variant bound to the first set.
        timed: At least two sets.
        check: Has the inputs of the first one.

    Raises:
        LaunchRefused, DeviceFault: As the device does.
    """
    first, other = timed[0], timed[1]
    for mine, value in zip(first.inputs, other.inputs, strict=True):
        if mine is not None and value is not None:
            mine.copy_(value)
    try:
        call()
    except (LaunchRefused, RuntimeError):  # the device is unharmed, and the next variant is timed on them
        _restore(first, check)
        raise
    _restore(first, check)


def _restore(timed: TimedSet, check: Check) -> None:
    for mine, placed in zip(timed.inputs, check.inputs, strict=True):
        if mine is not None and placed is not None:
            mine.copy_(placed.tensor)
    timed.output.fill_(math.nan)
