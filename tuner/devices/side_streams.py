# SPDX-License-Identifier: Apache-2.0
"""Work that a call leaves on other streams, which events on its own stream do not see.

Events time one stream. A call that enqueues work on another one and does not join it would look as fast as
what is left on its own; one that joins it, but does not make it wait for its own stream, would have part of
it done before the first event. Both are found by running the call with nothing else enqueued and all streams
waited for. Noise only makes such a run look longer, so one that shows nothing clears the call.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .base import Call

TOLERANCE_MS, TOLERANCE = 0.02, 1.03
"""Hidden work shorter than this is not told from the host's own delays, nor three hundredths of the whole."""
TRIES = 10


@dataclass(frozen=True)
class _Alone:
    """One call with nothing else enqueued.

    Attributes:
        own_ms: From its start to the end of its own stream's work.
        after_ms: From there to the end of all streams' work, the host's delay included.
        host_ms: What the host took to enqueue it.
    """

    own_ms: float
    after_ms: float
    host_ms: float


class StreamGuard:
    """Tells calls that work aside; asks about each once.

    Args:
        synchronize: Waits for all streams.
        sample: Times a call once as the headline does, with a warm cache.
    """

    def __init__(self, synchronize: Callable[[], None], sample: Callable[[Call], float]) -> None:
        self._synchronize, self._sample = synchronize, sample
        self._known: weakref.WeakKeyDictionary[Call, bool] = weakref.WeakKeyDictionary()
        self._delay_ms: float | None = None

    def trust(self, call: Call) -> None:
        """Notes that a call works on the current stream alone."""
        self._known[call] = False

    def works_aside(self, call: Call) -> bool:
        """Whether events on its own stream do not see all of a call's work."""
        try:
            found = self._known.get(call)
            if found is None:
                found = self._known[call] = self._look(call)
        except TypeError:  # a callable that cannot be remembered
            return self._look(call)
        return found

    def all_streams_ms(self, call: Call) -> float:
        """The time of a call until all streams are done, with what the host takes to launch and to wait."""
        run = self._alone(call)
        return run.own_ms + run.after_ms

    def _look(self, call: Call) -> bool:
        if self._delay_ms is None:
            self._delay_ms = min(self._alone(_nothing).after_ms for _ in range(TRIES))
        self._alone(call)  # what a call does the first time is of no interest
        seen_ms = max(self._sample(call) for _ in range(2))
        tails = starts = True
        for _ in range(TRIES):
            run = self._alone(call)
            tails = tails and run.after_ms - self._delay_ms > TOLERANCE_MS
            # While the host enqueued, the device may have waited for it; the rest was work.
            work_ms = run.own_ms - run.host_ms
            if starts and work_ms > TOLERANCE * seen_ms + TOLERANCE_MS:
                # Compared with what it takes now: under such a load the clocks may have sunk since.
                seen_ms = max(seen_ms, self._sample(call))
            starts = starts and work_ms > TOLERANCE * seen_ms + TOLERANCE_MS
            if not (tails or starts):
                return False
        return True

    def _alone(self, call: Call) -> _Alone:
        start, middle, stop = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        self._synchronize()
        start.record()
        began = time.perf_counter()
        call()
        host_s = time.perf_counter() - began
        middle.record()
        self._synchronize()
        stop.record()
        self._synchronize()
        return _Alone(start.elapsed_time(middle), middle.elapsed_time(stop), 1e3 * host_s)


def _nothing() -> None: ...
