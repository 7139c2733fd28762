# SPDX-License-Identifier: Apache-2.0
"""What a check is, and what checks say: plain records, shared by those that build, run and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .shapes import describe

if TYPE_CHECKING:
    import torch

    from ..codegen.problem import Problem
    from ..codegen.space import Launch
    from .bound import Expectation, Judgement
    from .devices.buffers import GuardedTensor

LaunchOf = Callable[["Problem"], "Launch"]


@dataclass(frozen=True)
class Check:
    """One shape with one draw of inputs, on the device.

    Attributes:
        problem: The shape.
        kind: The kind of inputs.
        inputs: In ABI order; None for an absent optional.
        pristine: Bytes of each input's whole allocation as they must be afterwards.
        expected: What the output must be.
    """

    problem: Problem
    kind: str
    inputs: tuple[GuardedTensor | None, ...]
    pristine: tuple[torch.Tensor | None, ...]
    expected: Expectation

    @property
    def name(self) -> str:
        """The kind, the shape and scalars that are not the usual ones, for messages."""
        usual = self.problem.operator.scalars
        changed = [f"{n}={v:g}" for n, v in self.problem.scalars.items() if v != usual[n]]
        return " ".join([f"{self.kind} inputs at {describe(self.problem)}", *changed])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The run-time sizes in ABI order."""
        return abi_sizes(self.problem)

    @property
    def scalars(self) -> tuple[float, ...]:
        """The scalars in ABI order."""
        return abi_scalars(self.problem)


@dataclass(frozen=True)
class Checks:
    """All checks of a problem.

    Attributes:
        ragged: Small awkward shapes, all kinds of inputs; every other shape with other scalars.
        workload: The problem itself, the kinds of `workload_kinds`; the first is the one that is timed.
        near: A large shape just beside the workload, where there is one to check.
        left_out: Kinds of inputs on which the output hardly depends on the data: passing would mean
            nothing.
    """

    ragged: tuple[Check, ...]
    workload: tuple[Check, ...]
    near: tuple[Check, ...] = ()
    left_out: tuple[str, ...] = ()

    def all(self) -> tuple[Check, ...]:
        """The cheap ones first."""
        return (*self.ragged, *self.near, *self.workload)

    def after_timing(self) -> tuple[Check, ...]:
        """What is run once more after a variant was timed: the timed inputs, and one ragged shape."""
        return (self.workload[0], *self.ragged[-1:])


@dataclass(frozen=True)
class Verdict:
    """What the checks said.

    Attributes:
        ok: Whether every check passed.
        reason: The first failure in one line; empty when ok.
        error: Worst relative L2 error over the checks that ran.
        bound_ratio: Worst |out - ref| / tolerance over the checks that ran.
        checks: How many ran.
    """

    ok: bool
    reason: str
    error: float
    bound_ratio: float
    checks: int


def abi_sizes(problem: Problem) -> tuple[int, ...]:
    """The values of the run-time sizes that a kernel receives, in order."""
    return tuple(int(problem.values[name]) for name in problem.sizes)


def abi_scalars(problem: Problem) -> tuple[float, ...]:
    """The values of the run-time scalars that a kernel receives, in order."""
    return tuple(float(problem.scalars[name]) for name in problem.scalar_names)


OUTSIDE_OUTPUT = "it wrote outside its output"
OUTSIDE_WORKSPACE = "it wrote outside its workspace"


def changed_input(name: str) -> str:
    """The reason of a variant that spoils an input."""
    return f"it changed its input {name} or memory beside it"


def not_again(different: int) -> str:
    """The reason of a variant whose second run differs in that many outputs."""
    return f"a second run on the same inputs differs in {different} outputs"


def wrong_elements(judgement: Judgement, total: int) -> str:
    """The reason of a variant with wrong outputs: how many of `total`, and the worst."""
    place = ", ".join(str(i) for i in judgement.worst)
    times = "" if judgement.ratio == float("inf") else f", {judgement.ratio:.3g} times the bound"
    return (
        f"{judgement.wrong} of {total} outputs are wrong; worst at [{place}]: "
        f"{judgement.got:.9g} instead of {judgement.want:.9g}{times}"
    )
