# SPDX-License-Identifier: Apache-2.0
"""Where the time of a run went: seconds by phase, and which end of the stream waited for the other."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .outcome import TrialOutcome, TrialResult

# Of the parent's thread; the compilers' and the worker's run beside it.
PARENT = ("ask", "claim", "render", "record", "look")


@dataclass
class RunCounts:
    """What this run did.

    Attributes:
        added: finished configs recorded.
        compiled: configs that compiled, from the cache or not.
        cached: of those, from the cache.
        measured: that the device had: verified, and timed where they were right.
        reused: recorded without timing because their machine code was timed before.
        resource_failures: compiled, and refused by the device for want of a resource.
        skipped_spilling: compiled, and not run because their kernel spills more registers than allowed.
    """

    added: int = 0
    compiled: int = 0
    cached: int = 0
    measured: int = 0
    reused: int = 0
    resource_failures: int = 0
    skipped_spilling: int = 0


@dataclass
class Accounts:
    """Seconds of one search.

    Attributes:
        counts: what it did.
        seconds: phase -> seconds. ``ask``, ``claim``, ``render``, ``record`` and ``look`` (for what other
            tuners did) are the parent's; ``compile`` sums over the compilers; the others are the worker's.
    """

    clock: Callable[[], float] = time.monotonic
    counts: RunCounts = field(default_factory=RunCounts)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    wall_s: float = 0.0
    _device_s: float = 0.0
    _compilers_s: float = 0.0
    _since: float | None = None
    _state: tuple[bool, float] = (False, 0.0)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the block's time."""
        began = self.clock()
        try:
            yield
        finally:
            self.seconds[name] += self.clock() - began

    def add(self, phases: Mapping[str, Any]) -> None:
        """Adds seconds that another process reports."""
        for name, seconds in phases.items():
            self.seconds[name] += float(seconds)

    def judged(self, result: TrialResult) -> None:
        """Takes in what the worker made of a config."""
        self.add(result.details.get("phase_s", {}))
        self.counts.measured += 1
        self.counts.resource_failures += result.outcome is TrialOutcome.RESOURCE_LIMIT

    def state(self, device_busy: bool, compilers_busy: float) -> None:
        """Notes who is busy from now on.

        Args:
            compilers_busy: the share of the compilers that are.
        """
        self.pause()
        self._since, self._state = self.clock(), (device_busy, compilers_busy)

    def pause(self) -> None:
        """The search stands still, or has ended."""
        if self._since is None:
            return
        passed = self.clock() - self._since
        self.wall_s += passed
        self._device_s += passed * self._state[0]
        self._compilers_s += passed * self._state[1]
        self._since = None

    @property
    def device_s(self) -> float:
        """Seconds in which the device had a config."""
        return self._device_s

    @property
    def progress(self) -> dict[str, Any]:
        """The counts that a display shows."""
        counts = self.counts
        return {"added": counts.added, "compiled": counts.compiled, "measured": counts.measured}

    def numbers(self, seconds: float) -> dict[str, Any]:
        """Counts and rates of a run that took so long, in plain JSON."""
        counts = self.counts
        return {
            "seconds": round(seconds, 3),
            "added": counts.added,
            "compiled": counts.compiled,
            "from_cache": counts.cached,
            "measured": counts.measured,
            "reused_code": counts.reused,
            "resource_failures": counts.resource_failures,
            "skipped_spilling": counts.skipped_spilling,
            "compile_seconds": round(self.seconds["compile"], 3),
            "measure_seconds": round(self.device_s, 3),
            "trials_per_minute": round(60.0 * counts.added / seconds, 2) if seconds > 0 else 0.0,
            "profile": self.profile(),
        }

    def profile(self) -> dict[str, Any]:
        """The search in plain JSON: all but the finals."""
        wall = self.wall_s
        device_idle = 1.0 - self._device_s / wall if wall else 0.0
        compilers_idle = 1.0 - self._compilers_s / wall if wall else 0.0
        parent = sum(self.seconds[name] for name in PARENT)
        return {
            "wall_seconds": round(wall, 3),
            "configs_per_minute": round(60.0 * self.counts.added / wall, 2) if wall else 0.0,
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "device_idle": round(device_idle, 4),
            "compilers_idle": round(compilers_idle, 4),
            "parent_busy": round(parent / wall, 4) if wall else 0.0,
            "bounded_by": "compilers" if device_idle > compilers_idle else "device",
        }
