# SPDX-License-Identifier: Apache-2.0
"""How far a run is, on stderr: a live panel on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .outcome import TrialOutcome, TrialResult
from .speed import speed_text
from .summary import entry_of

_LINE_EVERY_S = 5.0
_RATES_AFTER_S = 2.0


@dataclass(frozen=True)
class Snapshot:
    """One moment of a run.

    Attributes:
        phase: ``compiling``, ``timing`` (which verifies too), ``waiting`` (for what others are at) or
            ``finals``.
        done, total: finished configs of the study, and how many it will have.
        added: finished in this run, which began ``seconds`` ago.
        compiled, measured: compiled in this run, and judged by the device.
        budget_s: the run's time budget.
        best: the fastest variant so far.
        outcomes: outcome -> count.
    """

    phase: str
    done: int
    total: int
    added: int = 0
    seconds: float = 0.0
    budget_s: float | None = None
    best: TrialResult | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    compiled: int = 0
    measured: int = 0

    @property
    def left_s(self) -> float | None:
        """Seconds left of the search: by the rate so far and by the budget, the shorter; None when
        unknown.
        """
        by_budget = None if self.budget_s is None else max(0.0, self.budget_s - self.seconds)
        if not self.added:
            return by_budget
        by_rate = max(0, self.total - self.done) * self.seconds / self.added
        return by_rate if by_budget is None else min(by_rate, by_budget)

    @property
    def best_text(self) -> str:
        """The best time, and how much of the device's speed it reaches."""
        if self.best is None or self.best.time_ms is None:
            return "none yet"
        speed = speed_text(entry_of(self.best))
        return f"{self.best.time_ms:.4g} ms" + (f" ({speed})" if speed else "")

    @property
    def failures_text(self) -> str:
        """Failed configs by cause; empty when none failed."""
        failed = {name: count for name, count in self.outcomes.items() if name != TrialOutcome.OK}
        return ", ".join(f"{count} {name}" for name, count in failed.items())

    @property
    def rates_text(self) -> str:
        """How many configs a minute this run compiles and times; empty in its first moments."""
        if self.seconds < _RATES_AFTER_S or not self.compiled + self.measured:
            return ""
        compiled, measured = (60 * count / self.seconds for count in (self.compiled, self.measured))
        return f"{compiled:.0f} compiled and {measured:.0f} timed a minute"

    @property
    def left_text(self) -> str:
        """The time left, readable."""
        return "?" if self.left_s is None else readable_seconds(self.left_s)


class Progress(Protocol):
    """Shows snapshots. `close` may be called again and leaves the terminal as it was."""

    def update(self, snapshot: Snapshot) -> None:
        """Shows a moment; cheap enough for every trial."""
        ...

    def close(self) -> None:
        """Ends the display."""
        ...


class NoProgress:
    """Shows nothing."""

    def update(self, snapshot: Snapshot) -> None:
        """Shows it not."""

    def close(self) -> None:
        """Nothing is left open."""


class PlainProgress:
    """A line at most every few seconds, and one for the finals."""

    def __init__(
        self, title: str, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._write, self._clock = title, write, clock
        self._last: float | None = None
        self._phase = ""

    def update(self, snapshot: Snapshot) -> None:
        """Writes a line when it is time for one."""
        now = self._clock()
        new_phase = snapshot.phase == "finals" and self._phase != "finals"
        self._phase = snapshot.phase
        if self._last is not None and now - self._last < _LINE_EVERY_S and not new_phase:
            return
        self._last = now
        try:
            self._write(plain_line(self._title, snapshot))
        except (OSError, ValueError):  # nobody reads any more (a closed pipe or file): the search goes on
            self._write = lambda line: None

    def close(self) -> None:
        """Nothing is left open."""


class LiveProgress:
    """A panel that is redrawn in place, its clock running on between updates."""

    def __init__(self, title: str, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._clock = title, clock
        self._snapshot = Snapshot("starting", 0, 0)
        self._updated = clock()
        self._live = Live(get_renderable=self._panel, console=console, refresh_per_second=4, transient=True)
        self._open = False

    def update(self, snapshot: Snapshot) -> None:
        """Takes the moment; it is drawn within a quarter of a second."""
        self._snapshot, self._updated = snapshot, self._clock()
        if not self._open:
            self._open = True
            with contextlib.suppress(OSError):  # the terminal is gone
                self._live.start(refresh=True)

    def close(self) -> None:
        """Removes the panel."""
        if self._open:
            self._open = False
            with contextlib.suppress(OSError):
                self._live.stop()

    def _panel(self) -> Group:
        seconds = self._snapshot.seconds + self._clock() - self._updated
        return panel(self._title, replace(self._snapshot, seconds=seconds))


def open_progress(title: str, console: Console | None = None) -> Progress:
    """The display that suits stderr."""
    target = console or Console(stderr=True)
    if target.is_terminal and not target.is_dumb_terminal:
        return LiveProgress(title, target)
    return PlainProgress(title, lambda line: _print(line, target.file))


def _print(line: str, file: IO[str]) -> None:
    try:
        print(line, file=file, flush=True)
    except BrokenPipeError:
        # What is left in the buffer would fail again at the process's end, which makes its exit status 120.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, file.fileno())
            os.close(nowhere)
        raise


def plain_line(title: str, snapshot: Snapshot) -> str:
    """One snapshot as one line."""
    failures = f", failed: {snapshot.failures_text}" if snapshot.failures_text else ""
    left = f", {snapshot.left_text} left" if snapshot.phase != "finals" else ""
    rates = f", {snapshot.rates_text}" if snapshot.rates_text and left else ""
    count = f"{snapshot.done}/{snapshot.total}"
    return f"{title}: {snapshot.phase} {count}, best {snapshot.best_text}{failures}{rates}{left}"


def panel(title: str, snapshot: Snapshot) -> Group:
    """One snapshot for a terminal."""
    facts = Table.grid(padding=(0, 2))
    facts.add_row("best", Text(snapshot.best_text, style="bold green"))
    if snapshot.best is not None:
        config = " ".join(f"{name}={value}" for name, value in snapshot.best.config.items())
        facts.add_row("", Text(f"{snapshot.best.template}: {config}", style="dim"))
    if snapshot.failures_text:
        facts.add_row("failed", Text(snapshot.failures_text, style="yellow"))
    if snapshot.rates_text and snapshot.phase != "finals":
        facts.add_row("rate", Text(snapshot.rates_text))
    left = f", {snapshot.left_text} left" if snapshot.phase != "finals" else ""
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(title, style="bold"),
        ProgressBar(total=max(1, snapshot.total), completed=snapshot.done, width=30),
        f"{snapshot.done}/{snapshot.total}",
        snapshot.phase,
        readable_seconds(snapshot.seconds) + left,
    )
    return Group(head, facts)


def readable_seconds(seconds: float) -> str:
    """``42 s``, ``3:07`` or ``1:02:03``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
