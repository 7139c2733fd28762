# SPDX-License-Identifier: Apache-2.0
"""The sampler that a Gaussian process guides: after a few spread points, the unseen one of which the process
expects the most improvement.
"""

from __future__ import annotations

import math

import numpy as np
from optuna.study import Study

from .densities import by_turns, density_scores, near_the_best
from .encoding import Encoding, encode
from .feasible import FeasibleSet
from .history import History, Reader
from .start import START, spread_points
from .surrogate import Surrogate
from .whole import WholePointSampler

MOST_TRIALS = 500
"""Beyond, the process would take longer than it saves: the densities take over."""
LARGE, MOST_CANDIDATES = 16_000, 8_000
"""Of a set of more points a part is looked at, of so many; it is chosen anew from time to time."""
_FIRST_STEPS, _STEPS = 12, 8
_PATIENCE = 25
"""Trials without a new best after which the process shares the turns: it may be sure of something wrong."""
_FIT_AGAIN = 1.1
"""The weights are found anew when there are so many times the observations of the last time..."""
_FIT_SHARED = 1.25
"""...or so many times where other searches have made some of them: each has to do it for the observations of
all, and little changes by another tenth."""


class GaussianProcess(WholePointSampler):
    """Expected improvement over the unseen points."""

    def __init__(
        self,
        feasible: FeasibleSet,
        seed: int,
        encoding: Encoding | None = None,
        guesses: dict[int, float] | None = None,
    ) -> None:
        """Draws the spread points.

        Args:
            encoding: of the set, if it is known already.
            guesses: where what is expected of the points that are asked for is kept; two processes of one
                study share it, as each has to make do with what the other has under way.
        """
        super().__init__(feasible)
        self._rng = np.random.default_rng(seed)
        self._encoding = encoding or encode(feasible)
        self._reader = Reader(feasible)
        self._start = spread_points(self._encoding, START, self._rng)
        self._model = Surrogate(self._encoding)
        self._guesses = {} if guesses is None else guesses
        self._fit_at = self._fit_at_own = 0
        self._best_then = math.inf

    def choose(self, study: Study) -> int:
        """The next of the spread points, then of the process's."""
        return self.decide(self._reader.read(study), self.feasible.unseen)

    def decide(self, history: History, unseen: np.ndarray) -> int:
        """The same for a history, among the points that are `unseen`: bool [points], one at least."""
        if (index := self._next_of_start(history, unseen)) is not None:
            return index
        since = len(history) - history.best_at
        stuck = since > _PATIENCE and since % 2 == 0
        if stuck or len(history) > MOST_TRIALS or len(history) == 0:
            turn = since // 2 if stuck else len(history)
            return by_turns(self._encoding, history, unseen, self._rng, turn)
        return self.improve(history, unseen)

    def _next_of_start(self, history: History, unseen: np.ndarray) -> int | None:
        """One of the points to begin with; None when it is the process's turn."""
        while self._start and len(history) < START:
            index = self._start.pop(0)
            if unseen[index]:
                return index
        return None

    def improve(self, history: History, unseen: np.ndarray) -> int:
        """The unseen point of which the process expects the most."""
        values = history.objective(self._guesses)
        expected, deviation = self._expect(history, values, unseen)
        gain = improvement(expected, deviation, float(values.min()))
        gain[~unseen[self._model.candidates]] = -np.inf
        place = int(self._rng.choice(np.flatnonzero(gain == gain.max())))
        index = int(self._model.candidates[place])
        self._guesses[index] = float(expected[place])
        return index

    def _expect(
        self, history: History, values: np.ndarray, unseen: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each candidate's objective."""
        self._update(history, values, unseen)
        return self._model.predict(values)

    def _update(self, history: History, values: np.ndarray, unseen: np.ndarray) -> None:
        """Brings the model to the history. Observed points stay, unless some were withdrawn."""
        model = self._model
        known = len(model.observed)
        best = float(np.fmin.reduce(history.times, initial=math.inf))
        spent = not unseen[model.candidates].any()
        # Of a part of the set, what is near a new best may not be among the candidates.
        elsewhere = len(self.feasible) > LARGE and best < self._best_then
        fit = self._fit_due(history)
        if fit or spent or elsewhere or history.points[:known] != model.observed:
            steps = (_STEPS if known else _FIRST_STEPS) if fit else 0
            model.fit(history.points, values, self._candidates(history, values, unseen), steps)
            self._best_then = best
            if fit:
                self._fit_at_own = int(_FIT_AGAIN * len(history)) + 1 - history.elsewhere
                self._fit_at = int(_FIT_SHARED * len(history)) + 1
        for index in history.points[len(model.observed) :]:
            model.observe(index)

    def _fit_due(self, history: History) -> bool:
        """Whether the weights are to be found anew."""
        own = len(history) - history.elsewhere
        return own >= self._fit_at_own or len(history) >= self._fit_at

    def _candidates(self, history: History, values: np.ndarray, unseen: np.ndarray) -> np.ndarray:
        """All points; of a large set those near the best, those that the densities favour, and some drawn at
        random."""
        if len(unseen) <= LARGE:
            return np.arange(len(unseen))
        scores = np.where(unseen, density_scores(self._encoding, history, values), -np.inf)
        favoured = np.argpartition(scores, -MOST_CANDIDATES // 2)[-MOST_CANDIDATES // 2 :]
        drawn = self._rng.choice(len(unseen), MOST_CANDIDATES // 2, replace=False)
        near = near_the_best(self._encoding, history, values, unseen)
        return np.unique(np.concatenate([near, favoured, drawn]))


def improvement(expected: np.ndarray, deviation: np.ndarray, best: float) -> np.ndarray:
    """Expected improvement below `best` of normal variables. Where it is next to nothing everywhere, what
    comes nearest to an improvement counts.
    """
    apart = (best - expected) / deviation
    gain = deviation * (apart * _normal(apart) + np.exp(-0.5 * apart**2) / math.sqrt(2 * math.pi))
    least = 1e-12 * float(deviation.min())
    return np.where(gain > least, gain, least * np.exp(np.minimum(apart, 0) / 100))


def _normal(x: np.ndarray) -> np.ndarray:
    """The normal distribution function, within 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x) / math.sqrt(2))
    series = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    tail = 0.5 * t * series * np.exp(-0.5 * x**2)
    return np.where(x > 0, 1 - tail, tail)
