# SPDX-License-Identifier: Apache-2.0
"""What a run takes in of its study: each finished trial is read once, as others may add hundreds while it
works."""

from __future__ import annotations

from collections.abc import Callable

from optuna.trial import FrozenTrial

from .outcome import TrialResult
from .search import Point
from .standing import Standing
from .study import Study


class Intake:
    """Brings a standing to what the study holds.

    Args:
        study: is read.
        standing: takes in the results.
        mark: what this run's own results say in their detail ``worker``.
        learn: takes each result that is new to the run.
    """

    def __init__(
        self, study: Study, standing: Standing, mark: str, learn: Callable[[TrialResult], object]
    ) -> None:
        self._study, self._standing, self._mark, self._learn = study, standing, mark, learn
        self._known: set[int] = set()
        self._stored: set[str] = set()  # by this run, and not read back yet: keys

    def stored(self, result: TrialResult) -> None:
        """Takes in a result that this run has just stored."""
        self._standing.add(result)
        self._stored.add(_key(result))

    def take_in(self) -> list[FrozenTrial]:
        """Reads what is new; the trials of it that count in this run and are of others.

        Should the study hold something else than was taken in, everything is read again: a result that this
        run was to store, and another one was quicker with.
        """
        found = self._read()
        if len(self._known) == len(self._standing.results):
            return found
        self._known.clear()
        self._stored.clear()
        self._standing.take_in(())
        return self._read()

    def _read(self) -> list[FrozenTrial]:
        found = []
        trials = self._study.trials_beside(self._known)
        for trial, result in zip(trials, self._study.results(trials), strict=True):
            self._known.add(trial._trial_id)
            key = _key(result)
            if key in self._stored and result.details.get("worker") == self._mark:
                self._stored.remove(key)
                continue
            self._standing.add(result)
            self._learn(result)
            if self._standing.counts(result):
                found.append(trial)
        return found


def _key(result: TrialResult) -> str:
    return Point(result.template, result.config).key
