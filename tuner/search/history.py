# SPDX-License-Identifier: Apache-2.0
"""What a sampler knows: the trials of its study as points of the set with values to minimise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from .feasible import FeasibleSet

_TRIED = (TrialState.COMPLETE, TrialState.PRUNED)
_ELSEWHERE = "elsewhere"
ELSEWHERE: dict[str, Any] = {_ELSEWHERE: True}
"""The system attributes of a trial that another search asked for while this one was at work."""


@dataclass(frozen=True)
class History:
    """The points of a study in the order in which they were asked for.

    Attributes:
        points: index of each; those under way included.
        times: of each; NaN where it failed or is under way.
        pending: bool, which are under way.
        others: bool, which ones other searches asked for while this one was at work; None: none.
    """

    points: list[int]
    times: np.ndarray
    pending: np.ndarray
    others: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.points)

    @property
    def elsewhere(self) -> int:
        """How many of them other searches asked for while this one was at work."""
        return 0 if self.others is None else int(np.count_nonzero(self.others))

    def part(self, points: Iterable[int]) -> History:
        """What it says of these points, in their order; it need not have them all."""
        places = {point: place for place, point in enumerate(self.points)}
        kept = [places[point] for point in points if point in places]
        others = None if self.others is None else self.others[kept]
        return History([self.points[at] for at in kept], self.times[kept], self.pending[kept], others)

    @property
    def best_at(self) -> int:
        """Where in the history the best is; 0 when nothing is known."""
        return int(np.argmin(np.where(np.isnan(self.times), np.inf, self.times))) if len(self) else 0

    def objective(self, guesses: dict[int, float]) -> np.ndarray:
        """What a model learns of each point: the logarithm of its time, with the slow tail compressed, since
        it is the fast ones that must be told apart. A failed point counts as the slowest seen.

        Args:
            guesses: point -> what was expected of it when it was asked for; the middle stands in for those
                under way without one.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(self.times)
        known = np.isfinite(logs)
        if not known.any():
            return np.zeros(len(self))
        logs = np.where(known, logs, logs[known].max())
        middle = float(np.median(logs[~self.pending]))
        spread = max(middle - float(logs[known].min()), 1e-9)
        slow = logs > middle
        logs[slow] = middle + spread * np.log1p((logs[slow] - middle) / spread)
        for place in np.flatnonzero(self.pending):
            logs[place] = guesses.get(self.points[place], middle)
        return logs


class Reader:
    """Reads one study again and again; a finished trial is looked at once."""

    def __init__(self, feasible: FeasibleSet) -> None:
        self._feasible = feasible
        self._index: dict[int, int | None] = {}
        self._final: list[tuple[int, float, bool]] = []
        self._trials = 0  # of the study's first ones, all finished, that are in `_final` or left out

    def read(self, study: Study) -> History:
        """The study's trials that are points of the set; withdrawn ones (FAIL) are left out."""
        trials = study.get_trials(deepcopy=False)
        while self._trials < len(trials) and trials[self._trials].state.is_finished():
            trial = trials[self._trials]
            if trial.state in _TRIED and (index := self._point(trial)) is not None:
                self._final.append((index, _time(trial), _ELSEWHERE in trial.system_attrs))
            self._trials += 1
        points = [index for index, _, _ in self._final]
        times = [time for _, time, _ in self._final]
        others = [of_another for _, _, of_another in self._final]
        pending = [False] * len(points)
        for trial in trials[self._trials :]:
            if trial.state is not TrialState.RUNNING and trial.state not in _TRIED:
                continue
            index = self._point(trial)
            if index is None:
                continue
            points.append(index)
            pending.append(trial.state is TrialState.RUNNING)
            times.append(_time(trial))
            others.append(_ELSEWHERE in trial.system_attrs)
        flags = (np.array(flag, dtype=bool) for flag in (pending, others))
        return History(points, np.array(times, dtype=float), *flags)

    def _point(self, trial: FrozenTrial) -> int | None:
        if trial.number not in self._index:
            found = self._feasible.index_of(trial.params)
            if trial.state is TrialState.RUNNING:  # its parameters may be about to be suggested
                return found
            self._index[trial.number] = found
        return self._index[trial.number]


def _time(trial: FrozenTrial) -> float:
    if trial.state is not TrialState.COMPLETE or trial.value is None:
        return math.nan
    return trial.value if 0 < trial.value < math.inf else math.nan
