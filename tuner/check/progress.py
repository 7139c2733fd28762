# SPDX-License-Identifier: Apache-2.0
"""How far a check is, on stderr: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..progress import readable_seconds
from .run import Checked

_LINE_EVERY_S = 5.0


class Lines:
    """A line at the start, one at most every few seconds, and one at the end."""

    def __init__(
        self,
        title: str,
        total: int,
        write: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._write, self._clock = title, total, write, clock
        self._done = self._failed = 0
        self._started = self._last = clock()
        if total:
            self._write(self._line())

    def tell(self, checked: Checked) -> None:
        """Counts a config."""
        self._done += 1
        self._failed += bool(checked.faults)
        now = self._clock()
        if now - self._last >= _LINE_EVERY_S or self._done == self._total:
            self._last = now
            self._write(self._line())

    def _line(self) -> str:
        line = f"{self._title}: {self._done}/{self._total} configs"
        if not self._done:
            return line
        rate = (self._clock() - self._started) / self._done
        left = f", {readable_seconds((self._total - self._done) * rate)} left"
        return f"{line}, {_faults(self._failed)}{left if self._done < self._total else ''}"


@contextmanager
def counting(title: str, total: int, console: Console | None = None) -> Iterator[Callable[[Checked], None]]:
    """Gives what is to be called with each config that was checked.

    Args:
        title: what is checked.
        total: how many configs there will be.
        console: where; stderr when not given.
    """
    target = console or Console(stderr=True)
    if not target.is_terminal or target.is_dumb_terminal:
        yield Lines(title, total, lambda line: print(line, file=target.file, flush=True)).tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[faults]}"), console=target) as progress:
        task = progress.add_task(title, total=total, faults="")
        failed = 0

        def tell(checked: Checked) -> None:
            nonlocal failed
            failed += bool(checked.faults)
            progress.update(task, advance=1, faults=_faults(failed))

        yield tell


def _faults(count: int) -> str:
    return f"{count} with faults" if count else "no faults"
