# SPDX-License-Identifier: Apache-2.0
"""Kernels written by hand in C++, and changes of them at one place at a time: the checker's own test is that
it rejects each fault and no correct variant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache, compile_source
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import KernelSource
from coldforge.codegen.space import Launch
from coldforge.codegen.target import cpu_target

WRONG, OUTSIDE, CHANGED, AGAIN = "are wrong", "wrote outside its output", "changed its input", "a second run"

Changes = Sequence[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class HandKernel:
    """A right kernel of an operator at one specialisation.

    Attributes:
        operator: Its name.
        shape: Fields over the workload `small`.
        text: The C++ source.
        launch: The launch at a shape.
        workspace: Whether its arguments have a workspace pointer.
    """

    operator: str
    shape: Mapping[str, int]
    text: str
    launch: Callable[[Problem], Launch]
    workspace: bool = False

    @property
    def problem(self) -> Problem:
        """What is verified."""
        return make_problem(catalogue().operator(self.operator), "small", self.shape)

    def changed(self, changes: Changes) -> str:
        """The source with each (old, new) replaced; every old one must be there."""
        text = self.text
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        return text


@dataclass(frozen=True, eq=False)
class Variant:
    """Changes that keep a kernel correct."""

    kernel: HandKernel
    changes: Changes


@dataclass(frozen=True, eq=False)
class Fault:
    """Changes that break a kernel.

    Attributes:
        kernel: Which.
        changes: Of its source.
        reason: What the verdict must say; empty where it depends on the machine's memory.
        relaunch: A change of the launch.
    """

    kernel: HandKernel
    changes: Changes
    reason: str = WRONG
    relaunch: Callable[[Launch], Launch] = field(default=lambda launch: launch)

    def launch(self, problem: Problem) -> Launch:
        """The launch at a shape, as the fault has it."""
        return self.relaunch(self.kernel.launch(problem))


def compiled(text: str, name: str, cache: Cache) -> Artifact:
    """The source as a library for this machine."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return compile_source(KernelSource(text, "coldforge_kernel", digest, name, "cpp"), cpu_target(), cache)
