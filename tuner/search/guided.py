# SPDX-License-Identifier: Apache-2.0
"""The default sampler: after a few spread points, the unseen one of which a Gaussian process expects the most
improvement.
"""

from __future__ import annotations

import math

import numpy as np
from optuna.study import Study

from .encoding import encode
from .feasible import FeasibleSet
from .history import History, Reader
from .start import spread_points
from .surrogate import Surrogate
from .whole import WholePointSampler

START = 10
"""Spread points before the model is asked."""
_FIRST_STEPS, _STEPS = 12, 8
_FIT_AGAIN = 1.25
"""The weights are found anew when there are so many times the observations of the last time."""


class GaussianProcess(WholePointSampler):
    """Expected improvement over the unseen points."""

    def __init__(self, feasible: FeasibleSet, seed: int) -> None:
        super().__init__(feasible)
        self._rng = np.random.default_rng(seed)
        self._encoding = encode(feasible)
        self._reader = Reader(feasible)
        self._start = spread_points(self._encoding, START, self._rng)
        self._model = Surrogate(self._encoding)
        self._guesses: dict[int, float] = {}
        self._fit_at = 0

    def choose(self, study: Study) -> int:
        """The next of the spread points, then of the model's."""
        history = self._reader.read(study)
        while self._start and len(history) < START:
            index = self._start.pop(0)
            if self.feasible.unseen[index]:
                return index
        return self._improve(history)

    def _improve(self, history: History) -> int:
        values = history.objective(self._guesses)
        self._update(history, values)
        expected, deviation = self._model.predict(values)
        gain = improvement(expected, deviation, float(values.min()))
        gain[~self.feasible.unseen[self._model.candidates]] = -np.inf
        place = int(self._rng.choice(np.flatnonzero(gain == gain.max())))
        index = int(self._model.candidates[place])
        self._guesses[index] = float(expected[place])
        return index

    def _update(self, history: History, values: np.ndarray) -> None:
        """Brings the model to the history; observed points stay, unless some were withdrawn."""
        known = len(self._model.observed)
        if len(history) >= self._fit_at or history.points[:known] != self._model.observed:
            steps = _STEPS if known else _FIRST_STEPS
            self._model.fit(history.points, values, np.arange(len(self.feasible)), steps)
            self._fit_at = int(_FIT_AGAIN * len(history)) + 1
        for index in history.points[len(self._model.observed) :]:
            self._model.observe(index)


def improvement(expected: np.ndarray, deviation: np.ndarray, best: float) -> np.ndarray:
    """Expected improvement below `best` of normal variables, as its logarithm's order: where it underflows,
    what comes nearest to an improvement counts.
    """
    apart = (best - expected) / deviation
    gain = deviation * (apart * _normal(apart) + np.exp(-0.5 * apart**2) / math.sqrt(2 * math.pi))
    return np.where(gain > 1e-12 * deviation, gain, 1e-12 * deviation.min() * np.exp(apart / 100 - 1))


def _normal(x: np.ndarray) -> np.ndarray:
    """The normal distribution function, within 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x) / math.sqrt(2))
    series = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    tail = 0.5 * t * series * np.exp(-0.5 * x**2)
    return np.where(x > 0, 1 - tail, tail)
