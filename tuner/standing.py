# SPDX-License-Identifier: Apache-2.0
"""Where a study stands: its results, which configs are finished, the best."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .outcome import TrialOutcome, TrialResult
from .search import Point
from .study import SPILLED, tally
from .tools import Terms


class Standing:
    """What a run knows of its study.

    Attributes:
        results: every result, this run's included.
        admitted: keys of configs that an earlier run did not run and that this one may.
        finished: keys of the finished configs: of every outcome but ``illegal``.
        seen: keys of the configs with a result.
        best: the fastest variant.
    """

    def __init__(self, spill_limit_bytes: int | None) -> None:
        """Empty.

        Args:
            spill_limit_bytes: of this run.
        """
        self._limit_bytes = spill_limit_bytes
        self.take_in(())

    def counts(self, result: TrialResult) -> bool:
        """Whether a result holds in this run; one that a stricter spill limit made does not."""
        spilled = result.details.get(SPILLED)
        admitted = isinstance(spilled, int) and (self._limit_bytes is None or spilled <= self._limit_bytes)
        return not admitted

    def take_in(self, results: Iterable[TrialResult]) -> None:
        """Makes these the study's results."""
        self.results: list[TrialResult] = []
        self.finished: set[str] = set()
        self.seen: set[str] = set()
        self.admitted: set[str] = set()
        self.best: TrialResult | None = None
        for result in results:
            self.add(result)

    def add(self, result: TrialResult) -> None:
        """One more result."""
        self.results.append(result)
        self.note_best(result)
        key = Point(result.template, result.config).key
        if not self.counts(result):
            self.admitted.add(key)
            return
        self.seen.add(key)
        if result.outcome is not TrialOutcome.ILLEGAL:
            self.finished.add(key)

    def note_best(self, result: TrialResult) -> None:
        """Takes a result as the best, if it is; it may not be stored yet."""
        if not result.ok or result.time_ms is None:
            return
        if self.best is None or result.time_ms < (self.best.time_ms or 0.0):
            self.best = result

    def terms(self, key: str, trials: int | None) -> Terms:
        """Of a claim.

        Args:
            trials: how many configs this run may leave finished.
        """
        again = self.admitted - self.seen  # the study counts them, this run does not
        known = sum(Point(r.template, r.config).key == key for r in self.results) if key in again else 0
        if trials is None:
            return Terms(finished=self.finished, admitted=self.admitted, known=known)
        left = trials - len(self.finished)
        return Terms(left, self.finished, self.admitted, limit=trials + len(again), known=known)

    def progress(self, trials: int | None, legal: int) -> dict[str, Any]:
        """What a display shows of it.

        Args:
            trials: as for `terms`.
            legal: how many configs there are.
        """
        done = len(self.finished)
        total = max(legal if trials is None else min(trials, legal), done)  # an earlier run may have gone on
        return {"done": done, "total": total, "best": self.best, "outcomes": tally(self.results)}
