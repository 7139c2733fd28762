# SPDX-License-Identifier: Apache-2.0
"""A clock for time limits on other processes, which stands still when this process does.

Ctrl-Z stops this process and those that it watches alike, and a suspended machine stops them all: what was
under way has lost no time that it could have used.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WAKE_S = 2.0
"""Who waits by the clock reads it at least so often."""
_LONGEST_S = WAKE_S + 1.0


class AwakeClock:
    """Seconds in which this process ran. Between two readings pass at most 3 s.

    Args:
        clock: seconds, standstills included.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last, self._now = clock, clock(), 0.0

    def __call__(self) -> float:
        """The time."""
        last, self._last = self._last, self._clock()
        self._now += min(self._last - last, _LONGEST_S)
        return self._now

    def left_s(self, deadline: float) -> float:
        """How long to wait now for something that has until ``deadline``."""
        return min(WAKE_S, max(0.0, deadline - self()))
