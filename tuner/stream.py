# SPDX-License-Identifier: Apache-2.0
"""What is under way between ask and result: being compiled, compiled and waiting, on the device.

One thread keeps both ends busy: compilers work while the device does. Few points wait between them, so that
the sampler, which must choose without their results, does not run far ahead.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..codegen.compile import Artifact
from ..codegen.errors import CompileError
from ..codegen.render import KernelSource
from .outcome import TrialResult
from .search import Point
from .tools import Compiler, Job, Measurer

WAITING = 2
"""Points that may wait for the device when every compiler is busy."""

Wait = Callable[[list[Any], float | None], object]
"""`multiprocessing.connection.wait`, or a test's."""


@dataclass
class Flight:
    """One point on its way.

    Attributes:
        index: its number in the feasible set.
        order: when it was asked for.
        source: None where it does not render.
        job: once it is compiled.
    """

    index: int
    order: int
    point: Point
    source: KernelSource | None
    job: Job | None = None


class Stream:
    """The points under way, in the order asked for where there is a choice.

    Attributes:
        running: the one on the device.
        ready: those that wait for it.
    """

    def __init__(self, compiler: Compiler, measurer: Measurer, wait: Wait) -> None:
        self._compiler, self._measurer, self._wait = compiler, measurer, wait
        self._compiling: dict[int, Flight] = {}
        self.ready: list[Flight] = []
        self.running: Flight | None = None

    @property
    def window(self) -> int:
        """How many may be compiled or wait at a time."""
        return self._compiler.jobs + WAITING

    @property
    def compiling(self) -> int:
        """How many compilers are at work."""
        return min(self._compiler.load, self._compiler.jobs)

    @property
    def has_room(self) -> bool:
        """Whether another point can be compiled now, and is wanted."""
        waiting = len(self._compiling) + len(self.ready)
        return self._compiler.load < self._compiler.jobs and waiting < self.window

    def __len__(self) -> int:
        return len(self._compiling) + len(self.ready) + (self.running is not None)

    def submit(self, flight: Flight) -> None:
        """Has a point compiled."""
        assert flight.source is not None
        self._compiling[self._compiler.submit(flight.source)] = flight

    def collect(self) -> list[tuple[Flight, Artifact | CompileError]]:
        """What the compilers have finished; what compiled is ready from now on."""
        found = []
        for number, answer in self._compiler.collect():
            flight = self._compiling.pop(number)
            found.append((flight, answer))
            if isinstance(answer, Artifact) and flight.source is not None:
                flight.job = Job(flight.point, flight.source, answer)
                bisect.insort(self.ready, flight, key=lambda one: one.order)
        return found

    def begin(self, flight: Flight, best_ms: float | None, handed_over: Callable[[], None]) -> None:
        """Gives a point that was ready to the device, which must be free."""
        assert self.running is None
        assert flight.job is not None
        self.running = flight
        self._measurer.begin(flight.job, best_ms, handed_over)

    def poll(self) -> tuple[Flight, TrialResult] | None:
        """The point on the device and its result, once that is there."""
        result = self._measurer.poll() if self.running is not None else None
        if result is None or self.running is None:
            return None
        flight, self.running = self.running, None
        return flight, result

    def wait(self, limit_s: float | None) -> None:
        """Waits until there may be something to collect or to poll, at most so long."""
        limits = [limit_s, self._compiler.patience_s, self._measurer.patience_s]
        shortest = min((limit for limit in limits if limit is not None), default=None)
        self._wait([*self._compiler.waitables, *self._measurer.waitables], shortest)

    def withdraw(self, unwanted: Callable[[Flight], bool] = lambda flight: True) -> list[int]:
        """Takes points back that are not on the device, and tells which."""
        queued = {number: flight for number, flight in self._compiling.items() if unwanted(flight)}
        self._compiler.abandon(queued)
        for number in queued:
            del self._compiling[number]
        gone = [flight for flight in self.ready if unwanted(flight)]
        self.ready = [flight for flight in self.ready if not unwanted(flight)]
        return [flight.index for flight in [*queued.values(), *gone]]

    def withdraw_last(self, count: int) -> list[int]:
        """Takes back the points that were asked for last."""
        orders = sorted(flight.order for flight in [*self._compiling.values(), *self.ready])
        return self.withdraw(lambda flight: flight.order in orders[-count:]) if count > 0 else []
