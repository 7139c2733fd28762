# SPDX-License-Identifier: Apache-2.0
"""Who is timed against whom: the frozen kernel as users call it, PyTorch eager, and torch.compile."""

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
    """

    name: str
    precision: str
    function: Function | None
    reason: str = ""

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


def pytorch_peers(device: Device, problem: Problem, sample: Tensors, cxx: str) -> list[Contestant]:
    """PyTorch eager and torch.compile, in each of the device's arithmetic modes.

    Args:
        device: Gives the modes.
        problem: What they compute.
        sample: Inputs on the device, on which compilation is triggered now.
        cxx: The C++ compiler for torch.compile.
    """
    # Its own pool of compilers would go on working while samples are taken.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ.setdefault("CXX", cxx)
    found = []
    plain = plain_function(problem)
    for mode in device.math_modes(problem.dtype.name):
        found.append(Contestant(f"eager{mode.suffix}", mode.precision, _in_mode(plain, mode)))
    for mode in device.math_modes(problem.dtype.name):
        found.append(_compiled(problem, mode, sample))
    return found


def plain_function(problem: Problem) -> Function:
    """The reference as a user would write it: attributes and scalars bound, nothing looked up at the call."""
    family = problem.operator.family
    return _whole(problem, family.reference)


def _whole(problem: Problem, linear: Callable[..., torch.Tensor]) -> Function:
    """``linear`` in the family's place, and the epilogue behind it."""
    family, attributes, scalars = problem.operator.family, problem.attributes(), dict(problem.scalars)
    names, steps, roles = [t.name for t in family.tensors], problem.steps, roles_of(family)

    def function(tensors: Tensors) -> torch.Tensor:
        v = linear(**{name: tensors.get(name) for name in names}, **attributes)
        return apply_chain(steps, v, roles, tensors, scalars)

    return function


def _in_mode(function: Function, mode: MathMode) -> Function:
    def call(tensors: Tensors) -> torch.Tensor:
        with mode.enter():
            return function(tensors)

    return call


def _compiled(problem: Problem, mode: MathMode, sample: Tensors) -> Contestant:
    name = f"compile{mode.suffix}"
    try:
        function = _in_mode(torch.compile(plain_function(problem), fullgraph=True), mode)
        function(sample)
    except Exception as error:  # a peer of any kind of failure is a row with a reason
        lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
        return Contestant(name, mode.precision, None, " ".join(lines[:2])[:300])
    return Contestant(name, mode.precision, function)
