# SPDX-License-Identifier: Apache-2.0
"""Is a variant right? Every check runs it into poisoned memory and judges every element against float64.

The checks of a problem (inputs, references, tolerances) are computed once and serve every variant: they
hang on the problem and the error class alone. A check also fails a variant that writes outside its output,
changes an input, or answers differently the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..codegen.errors import InputError
from .bound import Expectation, Judgement, expect, first_sample, judge, moved_by, reference_of
from .inputs import draw, ragged_kinds, workload_kinds
from .shapes import describe, elements, other_scalars, ragged_problems, ragged_workload

if TYPE_CHECKING:
    from ..codegen.problem import Problem
    from ..codegen.space import Launch
    from .devices.base import Call, Device
    from .devices.buffers import GuardedTensor

DEPENDENCE_TOLERANCES = {"fp32": 100.0}
"""By how many tolerances another draw of the data must move the output; 4 for a class too coarse for 100."""

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


def build_check(device: Device, problem: Problem, kind: str, precision: str, seed: int = 0) -> Check:
    """Draws inputs, places them on the device, and computes what the output must be."""
    drawn = draw(problem, kind, seed)
    placed = {name: device.place(value) for name, value in drawn.items()}
    tensors = {name: buffer.tensor for name, buffer in placed.items()}
    expected = expect(problem, tensors, problem.scalars, precision)
    inputs = tuple(placed.get(spec.name) for spec in problem.tensors)
    pristine = tuple(None if buffer is None else buffer.storage.clone() for buffer in inputs)
    return Check(problem, kind, inputs, pristine, expected)


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


def build_checks(device: Device, problem: Problem, precision: str, seed: int = 0) -> Checks:
    """Builds every check of a problem for an error class.

    Raises:
        InputError: On every kind of inputs that the workload is checked with the output hardly depends on
            the data: such a check would pass a kernel that ignores them.
        DeclarationError: The family asks for a kind of inputs that there is not.
    """
    wanted, least = workload_kinds(problem), _least_move(precision)
    telling = _telling_shapes(device, problem, precision, seed)
    left_out = [kind for kind, shapes in telling.items() if not shapes]
    workload: list[Check] = []
    # Whether a kind tells anything may depend on the size (a mean over more pixels moves less): asked again
    # at the workload, of one sample.
    for kind in (kind for kind in wanted if kind not in left_out):
        check = build_check(device, problem, kind, precision, seed)
        if _moved_by(device, check, seed + 1) >= least:
            workload.append(check)
        else:
            left_out.append(f"{kind} at the workload")
    if not workload:
        raise InputError(
            f"{problem.operator.name} at {describe(problem)}: its output hardly changes when the data do (on "
            f"inputs of kind {', '.join(wanted)}), so a wrong kernel would pass; choose scalars that do not "
            "hide the data, or other workload_inputs in the family's declaration"
        )
    ragged = [
        build_check(device, shape, kind, precision, seed)
        for kind, shapes in telling.items()
        for shape in shapes
    ]
    beside = ragged_workload(problem)
    near = () if beside is None else (build_check(device, beside, workload[0].kind, precision, seed),)
    return Checks(tuple(ragged), tuple(workload), near, tuple(left_out))


def _least_move(precision: str) -> float:
    return DEPENDENCE_TOLERANCES.get(precision, 4.0)


def _moved_by(device: Device, check: Check, seed: int) -> float:
    """By how many tolerances another draw of the data moves the first sample of a check."""
    placed = zip(check.problem.tensors, check.inputs, strict=True)
    tensors = {spec.name: buffer.tensor for spec, buffer in placed if buffer is not None}
    part, inputs, expected = first_sample(check.problem, tensors, check.expected)
    data = part.tensors[0].name
    inputs[data] = draw(part, check.kind, seed)[data].to(device.torch_device)
    return moved_by(part, expected, reference_of(part, inputs, part.scalars))


def _telling_shapes(
    device: Device, problem: Problem, precision: str, seed: int
) -> dict[str, tuple[Problem, ...]]:
    """For each kind of inputs the ragged shapes at which the output depends on the data: all of them where it
    does at the largest, else each is asked."""
    data, least = problem.tensors[0].name, _least_move(precision)
    # Every other shape with other scalars, the first to begin with: there may be one only.
    shapes = tuple(s if i % 2 else other_scalars(s) for i, s in enumerate(ragged_problems(problem)))

    def tells(kind: str, shape: Problem) -> bool:
        tensors = {n: t.to(device.torch_device) for n, t in draw(shape, kind, seed).items()}
        other = {**tensors, data: draw(shape, kind, seed + 1)[data].to(device.torch_device)}
        expected = expect(shape, tensors, shape.scalars, precision)
        return moved_by(shape, expected, reference_of(shape, other, shape.scalars)) >= least

    largest = max(shapes, key=elements)
    return {
        kind: shapes
        if tells(kind, largest)
        else tuple(s for s in shapes if s is not largest and tells(kind, s))
        for kind in ragged_kinds(problem)
    }


def verify(
    device: Device, kernel: Any, launch_of: LaunchOf, checks: Iterable[Check], *, workspace: bool = False
) -> Verdict:
    """Runs a variant through checks, stopping at the first that fails.

    Args:
        device: Where it was loaded.
        kernel: The loaded variant.
        launch_of: Its launch at a shape.
        checks: What to run.
        workspace: Whether its argument struct has a workspace pointer (which may be null at some shapes).

    Raises:
        LaunchRefused, DeviceFault: As the device does.
    """
    error, ratio, count = 0.0, 0.0, 0
    for check in checks:
        count += 1
        judgement, reason = _run_check(device, kernel, launch_of(check.problem), check, workspace)
        error, ratio = max(error, judgement.error), max(ratio, judgement.ratio)
        if reason:
            return Verdict(False, f"{check.name}: {reason}", error, ratio, count)
    return Verdict(True, "", error, ratio, count)


def _run_check(
    device: Device, kernel: Any, launch: Launch, check: Check, workspace: bool
) -> tuple[Judgement, str]:
    output = device.allocate(check.problem.output.shape, check.problem.dtype.torch)
    scratch = device.allocate_workspace(launch.workspace_bytes)
    arguments: list[torch.Tensor | None] = [None if b is None else b.tensor for b in check.inputs]
    arguments.append(output.tensor)
    if workspace:
        arguments.append(None if scratch is None else scratch.tensor)
    call = device.bind(kernel, launch, arguments, check.sizes, check.scalars)
    call()
    device.synchronize()
    judgement = judge(output.tensor, check.expected)
    reason = _overrun(output, scratch)
    if not reason and judgement.wrong:
        reason = _wrong_elements(judgement, check.problem)
    if not reason:
        reason = _second_run(device, call, output, scratch)
    return judgement, _changed_inputs(check) or reason


def _second_run(device: Device, call: Call, output: GuardedTensor, scratch: GuardedTensor | None) -> str:
    """What is wrong when the same call is made again into fresh poison; empty when nothing is."""
    first = output.tensor.clone()
    output.poison()
    if scratch is not None:
        scratch.poison()
    call()
    device.synchronize()
    different = 0
    if not torch.equal(_bits(output.tensor), _bits(first)):
        different = int((_bits(output.tensor) != _bits(first)).sum())
    again = f"a second run on the same inputs differs in {different} outputs" if different else ""
    return _overrun(output, scratch) or again


def _overrun(output: GuardedTensor, scratch: GuardedTensor | None) -> str:
    if not output.intact():
        return "it wrote outside its output"
    if scratch is not None and not scratch.intact():
        return "it wrote outside its workspace"
    return ""


def _changed_inputs(check: Check) -> str:
    """Which input is no longer as it was; empty when all are."""
    for spec, buffer, pristine in zip(check.problem.tensors, check.inputs, check.pristine, strict=True):
        if buffer is None or pristine is None or torch.equal(_words(buffer.storage), _words(pristine)):
            continue
        # Later variants must not be judged on spoilt inputs.
        buffer.storage.copy_(pristine)
        return f"it changed its input {spec.name} or memory beside it"
    return ""


def _words(storage: torch.Tensor) -> torch.Tensor:
    return storage.view(torch.int64)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _wrong_elements(judgement: Judgement, problem: Problem) -> str:
    total = 1
    for extent in problem.output.shape:
        total *= extent
    place = ", ".join(str(i) for i in judgement.worst)
    times = "" if judgement.ratio == float("inf") else f", {judgement.ratio:.3g} times the bound"
    return (
        f"{judgement.wrong} of {total} outputs are wrong; worst at [{place}]: "
        f"{judgement.got:.9g} instead of {judgement.want:.9g}{times}"
    )
