# SPDX-License-Identifier: Apache-2.0
"""The worker at hand and its spare: who takes over, and who keeps still while something is timed."""

from __future__ import annotations

from collections.abc import Callable

from ..codegen.settings import Settings
from ..codegen.target import Target
from .worker_process import WorkerProcess

_SPARES = 3
"""So many spares may be lost idle before no more are started: perhaps the device takes one process only."""


class Workers:
    """At most two workers of one device.

    Args:
        target, settings: See `WorkerProcess`.
        spare: Whether to keep a second worker, idle, that takes over when the first is lost.
        hush: Called when a timing begins that other work on the machine would disturb.
        unhush: Called when it has ended.

    Attributes:
        current: The worker at hand; None before the first, and after a loss.
        starts: Processes started so far.
    """

    def __init__(
        self,
        target: Target,
        settings: Settings,
        *,
        spare: bool,
        hush: Callable[[], None],
        unhush: Callable[[], None],
    ) -> None:
        self._target, self._settings = target, settings
        self._keeps_spare, self._spares_lost = spare, 0
        self._hush, self._unhush, self._hushed = hush, unhush, False
        self._spare: WorkerProcess | None = None
        self.current: WorkerProcess | None = None
        self.starts = 0

    def take(self) -> WorkerProcess:
        """The worker at hand, if it lives; else the spare; else a new one, which is not ready yet."""
        if self.current is not None and self.current.alive:
            return self.current
        self.drop()
        if self._spare is not None and self._spare.alive:
            self.current, self._spare = self._spare, None
        else:
            self.current = WorkerProcess(self._target, self._settings)
            self.starts += 1
            self.current.start()
        return self.current

    def fill_up(self) -> None:
        """Starts a spare where one is wanted and lacks."""
        if self._spare is not None and not self._spare.alive:
            self._spare.kill()
            self._spare = None
            self._spares_lost += 1
        if self._keeps_spare and self._spare is None and self._spares_lost < _SPARES:
            self._spare = WorkerProcess(self._target, self._settings)
            self.starts += 1
            self._spare.start()

    def hush(self) -> None:
        """Stops what would disturb a timing. May be called again."""
        if not self._hushed:
            self._hushed = True
            if self._spare is not None:
                self._spare.pause()
            self._hush()

    def unhush(self) -> None:
        """Lets it go on. May be called again."""
        if self._hushed:
            self._hushed = False
            if self._spare is not None:
                self._spare.resume()
            self._unhush()

    def drop(self) -> None:
        """Ends the worker at hand at once, and forgets everything about it."""
        self.unhush()
        if self.current is not None:
            self.current.kill()
            self.current = None

    def close(self, *, kill: bool) -> None:
        """Ends both. In place: an interrupt of this call leaves the rest to the next.

        Args:
            kill: The one at hand too is to end at once, not in good order.
        """
        self.unhush()
        if self._spare is not None:
            self._spare.kill()
            self._spare = None
        if self.current is not None and not kill:
            self.current.stop()
        self.drop()
