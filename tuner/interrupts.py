# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and a polite kill end a run at once, but never in the middle of a commit."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Within ``with``, SIGINT and SIGTERM raise KeyboardInterrupt, held back while `shielded`.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._shields = 0
        self._pending = False
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
        if self._shields:
            self._pending = True
        else:
            raise KeyboardInterrupt
