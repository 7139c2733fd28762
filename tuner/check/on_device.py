# SPDX-License-Identifier: Apache-2.0
"""The worker's part of checking a variant on a GPU: verified as a tuned one is, and not timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...codegen.compile import Artifact
from ..devices.base import LaunchRefused
from ..outcome import TrialOutcome, TrialResult
from ..request import TrialRequest
from ..verify import Check, verify
from .cases import few

if TYPE_CHECKING:
    from ...codegen.problem import Problem
    from ...codegen.space import Launch
    from ..workbench import Workbench

_PERIOD = 11
"""Prime to any number of shapes here: in turns of it every shape meets both launches."""


def run_check(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    """Answers the worker's message "check": a TrialResult without times.

    Raises:
        InputError: The problem cannot be verified.
        DeviceFault: The variant broke the device.
    """
    request = TrialRequest.from_dict(message["request"])
    checks = workbench.study(request).checks.all()
    return {"kind": "result", "result": _judged(workbench, request, checks).to_dict()}


def _judged(workbench: Workbench, request: TrialRequest, checks: tuple[Check, ...]) -> TrialResult:
    import torch

    device = workbench.device
    targets = (device.target, few(device.target))
    error, ratio = 0.0, 0.0
    try:
        kernel = device.load(Artifact.from_dict(request.artifact))
        try:
            for turn, target in enumerate(targets):
                mine = [check for index, check in enumerate(checks) if index % _PERIOD % 2 == turn]

                def launch_of(problem: Problem, target: Any = target) -> Launch:
                    return request.launch_at(problem, target)

                verdict = verify(device, kernel, launch_of, mine, workspace=request.has_workspace)
                error, ratio = max(error, verdict.error), max(ratio, verdict.bound_ratio)
                if not verdict.ok:
                    return TrialResult(
                        TrialOutcome.WRONG_RESULT, verdict.reason, error=error, bound_ratio=ratio
                    )
        finally:
            device.unload(kernel)
    except (LaunchRefused, torch.OutOfMemoryError) as refusal:
        return TrialResult(TrialOutcome.RESOURCE_LIMIT, str(refusal).splitlines()[0])
    return TrialResult(TrialOutcome.OK, error=error, bound_ratio=ratio, details={"checks": len(checks)})
