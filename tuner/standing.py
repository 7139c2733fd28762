# SPDX-License-Identifier: Apache-2.0
"""Where a study stands: its results, which configs are finished, the best."""

from __future__ import annotations

from collections.abc import Iterable

from .outcome import TrialOutcome, TrialResult
from .search import Point


class Standing:
    """What a run knows of its study.

    Attributes:
        results: every result, this run's included.
        finished: keys of the finished configs: of every outcome but ``illegal``.
        seen: keys of the configs with a result.
        best: the fastest variant.
    """

    def __init__(self, results: Iterable[TrialResult] = ()) -> None:
        self.take_in(results)

    def take_in(self, results: Iterable[TrialResult]) -> None:
        """Makes these the study's results."""
        self.results: list[TrialResult] = []
        self.finished: set[str] = set()
        self.seen: set[str] = set()
        self.best: TrialResult | None = None
        for result in results:
            self.add(result)

    def add(self, result: TrialResult) -> None:
        """One more result."""
        self.results.append(result)
        self.note_best(result)
        key = Point(result.template, result.config).key
        self.seen.add(key)
        if result.outcome is not TrialOutcome.ILLEGAL:
            self.finished.add(key)

    def note_best(self, result: TrialResult) -> None:
        """Takes a result as the best, if it is; it may not be stored yet."""
        if not result.ok or result.time_ms is None:
            return
        if self.best is None or result.time_ms < (self.best.time_ms or 0.0):
            self.best = result
