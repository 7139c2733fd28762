# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and a polite kill end a run at once, but never in the middle of a commit."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A terminal, a shell and `timeout` may each pass on the same interrupt; these seconds belong to the first.
_GRACE_S = 2.0


class Interrupts:
    """Within ``with``, SIGINT and SIGTERM raise KeyboardInterrupt, held back while `shielded`. What follows
    within two seconds is taken for the same interrupt, so that the end stays clean; later ones count again.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._shields = 0
        self._pending = False
        self._last: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def pending(self) -> bool:
        """Whether an interrupt is held back."""
        return self._pending

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """Holds an interrupt back until the block ends."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if self._pending and not self._shields:
            self._pending = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._last is not None and now - self._last < _GRACE_S:
            return
        self._last = now
        if self._shields:
            self._pending = True
        else:
            raise KeyboardInterrupt
