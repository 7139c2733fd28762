# SPDX-License-Identifier: Apache-2.0
"""Runs variants through the checks of a study. Holds the memory for it, so that a variant costs launches and
few waits: the small checks first and together, then the large ones, each by itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .checks import Check, LaunchOf, Verdict
from .devices.buffers import STALE_BYTES
from .large_check import LargeCheck, LargeOutputs
from .shapes import elements
from .small_checks import SmallChecks

if TYPE_CHECKING:
    from ..codegen.problem import Problem
    from ..codegen.space import Launch
    from .devices.base import Device

SMALL_ELEMENTS = 1 << 20
"""A check of up to so many elements in all tensors is run together with others."""
TOGETHER_ELEMENTS = 1 << 24
"""Elements of the checks that are run together."""


class Examiner:
    """Judges variants by a fixed set of checks.

    Args:
        device: Where variants are loaded.
        checks: What to run.
        outputs: Memory for large outputs, shared with other examiners of the study.
    """

    def __init__(self, device: Device, checks: Iterable[Check], outputs: LargeOutputs | None = None) -> None:
        self.outputs = outputs or LargeOutputs(device)
        small, large = [], []
        for check in checks:
            (small if elements(check.problem) <= SMALL_ELEMENTS else large).append(check)
        self._together = [SmallChecks(device, group) for group in _groups(small)]
        stale = itertools.cycle(STALE_BYTES)
        self._alone = [LargeCheck(device, check, self.outputs, next(stale)) for check in large]

    def examine(self, kernel: Any, launch_of: LaunchOf, *, workspace: bool = False) -> Verdict:
        """Runs a variant through the checks, stopping where one fails.

        Args:
            kernel: The loaded variant.
            launch_of: Its launch at a shape.
            workspace: Whether its argument struct has a workspace pointer (which may be null at some shapes).

        Raises:
            LaunchRefused, DeviceFault: As the device does.
        """
        launches: dict[tuple[Any, ...], Launch] = {}

        def launch(problem: Problem) -> Launch:
            key = tuple(problem.values.items())
            if key not in launches:
                launches[key] = launch_of(problem)
            return launches[key]

        total = Verdict(True, "", 0.0, 0.0, 0)
        for group in self._together:
            each = [launch(check.problem) for check in group.checks]
            total = _sum(total, group.run(kernel, each, workspace=workspace))
            if not total.ok:
                return total
        for one in self._alone:
            total = _sum(total, one.run(kernel, launch(one.check.problem), workspace=workspace))
            if not total.ok:
                return total
        return total


def _groups(checks: Sequence[Check]) -> list[list[Check]]:
    groups: list[list[Check]] = []
    room = 0
    for check in checks:
        size = elements(check.problem)
        if size > room or check.problem.dtype != groups[-1][0].problem.dtype:
            groups.append([])
            room = TOGETHER_ELEMENTS
        groups[-1].append(check)
        room -= size
    return groups


def _sum(one: Verdict, other: Verdict) -> Verdict:
    return Verdict(
        other.ok,
        other.reason,
        max(one.error, other.error),
        max(one.bound_ratio, other.bound_ratio),
        one.checks + other.checks,
    )
