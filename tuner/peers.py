# SPDX-License-Identifier: Apache-2.0
"""Who is timed against whom: the frozen kernel as users call it, PyTorch eager, torch.compile, and what the
family declares as peers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..codegen.chain import apply_chain, roles_of
from ..codegen.errors import InputError
from .devices.base import Call, Device, MathMode

if TYPE_CHECKING:
    from ..codegen.problem import Problem

Tensors = Mapping[str, torch.Tensor]
Function = Callable[[Tensors], torch.Tensor]


@dataclass(frozen=True)
class Contestant:
    """One row of a bench.

    Attributes:
        name: 'frozen', 'eager', 'compile', 'eager_tf32', ...
        precision: The error class it is expected to meet.
        function: Computes the output from tensors by name; None when it cannot run here.
        reason: Why it cannot.
        answers: Whether it computes the operator; else it is a yardstick, whose result means nothing.
    """

    name: str
    precision: str
    function: Function | None
    reason: str = ""
    answers: bool = True

    def calls(self, sets: Sequence[Tensors]) -> list[Call]:
        """The function on each set of inputs, as devices sample it."""
        assert self.function is not None, f"{self.name} cannot run: {self.reason}"
        return [partial(self.function, tensors) for tensors in sets]


def frozen_kernel(problem: Problem, precision: str, package: str) -> Contestant:
    """The frozen kernel, through the package's public function.

    Args:
        problem: The operator, its attributes and scalars.
        precision: The error class asked for.
        package: The package that holds it.

    Raises:
        InputError: The operator is not frozen there.
    """
    operator = problem.operator.name
    try:
        public = getattr(importlib.import_module(package), operator)
    except (ImportError, AttributeError) as error:
        raise InputError(" ".join(str(error).split())) from None
    names = [spec.name for spec in problem.tensors]
    options = {**problem.scalars, **problem.attributes(), "precision": precision}

    def call(tensors: Tensors) -> torch.Tensor:
        return public(*(tensors.get(name) for name in names), **options)

    return Contestant("frozen", precision, call)


def answering_variant(package: str) -> tuple[str | None, str]:
    """Which frozen variant answered this thread's last call; None and why when the PyTorch reference did."""
    state = importlib.import_module(f"{package}.runtime.package").STATE
    if state.extension is None:
        return None, state.why or "its extension is not loaded"
    return state.extension.last(), "no frozen kernel covers this shape, dtype, precision and device"


def manifest_entry(package: str, variant: str) -> dict[str, Any]:
    """What the package's manifest says of a variant: config, compiler and the like; empty when nothing."""
    entries = importlib.import_module(f"{package}.runtime.manifest").load().entries
    return next((entry for entry in entries if entry["name"] == variant.rpartition("@")[0]), {})


def peers_of(device: Device, problem: Problem, sample: Tensors, cxx: str) -> list[Contestant]:
    """PyTorch eager and torch.compile in each of the device's arithmetic modes, then the family's own peers:
    those that answer alike, yardsticks as they are.

    Args:
        device: Gives the modes.
        problem: What they compute.
        sample: Inputs on the device, on which compilation is triggered now.
        cxx: The C++ compiler for torch.compile.
    """
    # Its own pool of compilers would go on working while samples are taken.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ.setdefault("CXX", cxx)
    family, modes = problem.operator.family, device.math_modes(problem.dtype.name)
    plain = plain_function(problem)
    found = [_eager("eager", plain, mode) for mode in modes]
    found += [_compiled("compile", plain, mode, sample) for mode in modes]
    for peer in family.peers:
        if not peer.answers:
            yardstick = _alone(problem, family.peer(peer))
            found.append(Contestant(peer.name, problem.dtype.name, yardstick, answers=False))
            continue
        function = _whole(problem, family.peer(peer))
        found += _that_differ([_eager(peer.name, function, mode) for mode in modes], sample)
        compiled = [_compiled(f"compile_{peer.name}", function, mode, sample) for mode in modes]
        found += _that_differ(compiled, sample)
    return found


def plain_function(problem: Problem) -> Function:
    """The reference as a user would write it: attributes and scalars bound, nothing looked up at the call."""
    return _whole(problem, problem.operator.family.reference)


def _alone(problem: Problem, linear: Callable[..., torch.Tensor]) -> Function:
    """``linear`` on the family's tensors."""
    attributes, names = problem.attributes(), [t.name for t in problem.operator.family.tensors]

    def function(tensors: Tensors) -> torch.Tensor:
        return linear(**{name: tensors.get(name) for name in names}, **attributes)

    return function


def _whole(problem: Problem, linear: Callable[..., torch.Tensor]) -> Function:
    """``linear`` in the family's place, and the epilogue behind it."""
    before, scalars = _alone(problem, linear), dict(problem.scalars)
    steps, roles = problem.steps, roles_of(problem.operator.family)

    def function(tensors: Tensors) -> torch.Tensor:
        return apply_chain(steps, before(tensors), roles, tensors, scalars)

    return function


def _in_mode(function: Function, mode: MathMode) -> Function:
    def call(tensors: Tensors) -> torch.Tensor:
        with mode.enter():
            return function(tensors)

    return call


def _eager(name: str, function: Function, mode: MathMode) -> Contestant:
    return Contestant(f"{name}{mode.suffix}", mode.precision, _in_mode(function, mode))


def _compiled(name: str, function: Function, mode: MathMode, sample: Tensors) -> Contestant:
    name = f"{name}{mode.suffix}"
    try:
        compiled = _in_mode(torch.compile(function, fullgraph=True), mode)
        compiled(sample)
    except Exception as error:  # a peer of any kind of failure is a row with a reason
        lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
        return Contestant(name, mode.precision, None, " ".join(lines[:2])[:300])
    return Contestant(name, mode.precision, compiled)


def _that_differ(contestants: list[Contestant], sample: Tensors) -> list[Contestant]:
    """One contestant in several modes, without those modes in which it answers just as in the first."""
    first, others = contestants[0], contestants[1:]
    if not others or first.function is None:
        return contestants
    answer = first.function(sample)
    return [first, *(c for c in others if c.function is None or not torch.equal(c.function(sample), answer))]
