# SPDX-License-Identifier: Apache-2.0
"""Is a variant right? Every check runs it into poisoned memory and judges every element against float64.

The checks of a problem (inputs, references, tolerances) are computed once and serve every variant: they
hang on the problem and the error class alone. A check also fails a variant that writes outside its output,
changes an input, or answers differently the second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..codegen.errors import InputError
from .bound import expect, first_sample, moved_by, reference_of
from .checks import Check, Checks, LaunchOf, Verdict, abi_scalars, abi_sizes
from .examiner import Examiner
from .inputs import draw, ragged_kinds, workload_kinds
from .shapes import describe, elements, other_scalars, ragged_problems, ragged_workload

if TYPE_CHECKING:
    from ..codegen.problem import Problem
    from .devices.base import Device

__all__ = [
    "Check",
    "Checks",
    "LaunchOf",
    "Verdict",
    "abi_scalars",
    "abi_sizes",
    "build_check",
    "build_checks",
    "verify",
]

DEPENDENCE_TOLERANCES = {"fp32": 100.0, "tf32": 4.0, "fp16": 4.0, "bf16": 4.0}
"""By how many tolerances another draw of the data must move the output of a check, by error class.

A kernel that ignores the data is off by as much. In fp32 100 tells inputs that say something from those
that do not with room to spare: measured, the former move an output by 7e4 to 1e8 tolerances, normal data
behind a mean over pixels and a logsumexp by 53. Tolerances of tf32 and fp16 are 8192 times as wide, those
of bf16 65536 times: the same good inputs move an output by 9 to 1e4, or by 1 to 1e3, the least of them
offsets and impulses, which find faults that others miss; 100 would throw these away. 4 is the least that is
certain to find such a kernel: one that answers halfway between two draws is off by half of what they differ
by, 2 tolerances.
"""


def build_check(device: Device, problem: Problem, kind: str, precision: str, seed: int = 0) -> Check:
    """Draws inputs, places them on the device, and computes what the output must be."""
    drawn = draw(problem, kind, seed)
    placed = {name: device.place(value) for name, value in drawn.items()}
    tensors = {name: buffer.tensor for name, buffer in placed.items()}
    expected = expect(problem, tensors, problem.scalars, precision)
    inputs = tuple(placed.get(spec.name) for spec in problem.tensors)
    pristine = tuple(None if buffer is None else buffer.storage.clone() for buffer in inputs)
    return Check(problem, kind, inputs, pristine, expected)


def build_checks(device: Device, problem: Problem, precision: str, seed: int = 0) -> Checks:
    """Builds every check of a problem for an error class.

    Raises:
        InputError: On every kind of inputs that the workload is checked with the output hardly depends on
            the data: such a check would pass a kernel that ignores them.
        DeclarationError: The family asks for a kind of inputs that there is not.
    """
    wanted, least = workload_kinds(problem), DEPENDENCE_TOLERANCES[precision]
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
    data, least = problem.tensors[0].name, DEPENDENCE_TOLERANCES[precision]
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
    """Runs a variant through checks, the small ones first, stopping where one fails. For many variants make
    one `Examiner`.

    Args:
        device: Where it was loaded.
        kernel: The loaded variant.
        launch_of: Its launch at a shape.
        checks: What to run.
        workspace: Whether its argument struct has a workspace pointer (which may be null at some shapes).

    Raises:
        LaunchRefused, DeviceFault: As the device does.
    """
    return Examiner(device, checks).examine(kernel, launch_of, workspace=workspace)
