# SPDX-License-Identifier: Apache-2.0
"""Samplers for any number of trials: the densities of tree-structured Parzen estimators, scored on the unseen
points themselves, and steps to the neighbours of the best.
"""

from __future__ import annotations

import math

import numpy as np
from optuna.study import Study

from .encoding import Encoding, encode
from .feasible import FeasibleSet
from .history import History, Reader
from .start import START, spread_points
from .whole import WholePointSampler

_GOOD_SHARE, _MOST_GOOD = 0.1, 25  # as Optuna's TPE
_PRIOR = 1.0
_CENTRES = 3


def density_scores(encoding: Encoding, history: History, values: np.ndarray) -> np.ndarray:
    """Of every point: log of how much denser the best tenth of the history is there than the rest, parameter
    by parameter."""
    order = np.argsort(values, kind="stable")
    good = min(_MOST_GOOD, math.ceil(_GOOD_SHARE * len(history)))
    codes = encoding.codes[np.array(history.points, dtype=int)[order]] + 1  # -1: the template has it not
    scores = np.zeros(len(encoding.codes))
    for parameter, choices in enumerate(encoding.choices):
        logs = []
        for part in (codes[:good, parameter], codes[good:, parameter]):
            counts = np.bincount(part, minlength=choices + 1) + _PRIOR / choices
            logs.append(np.log(counts / counts.sum()))
        scores += (logs[0] - logs[1])[encoding.codes[:, parameter] + 1]
    return scores


def near_the_best(encoding: Encoding, history: History, values: np.ndarray, unseen: np.ndarray) -> np.ndarray:
    """The unseen points one step from the best few of the history, or from the next few, and so on; empty
    when no point of the history has any."""
    order = np.argsort(values, kind="stable")
    for first in range(0, len(order), _CENTRES):
        centres = order[first : first + _CENTRES]
        steps = [encoding.neighbours(history.points[place]) for place in centres]
        found = np.unique(np.concatenate(steps))
        if (found := found[unseen[found]]).size:
            return found
    return np.arange(0)


class Densities(WholePointSampler):
    """Three by the densities, one neighbour of the best, and so on, after some spread points."""

    def __init__(self, feasible: FeasibleSet, seed: int) -> None:
        super().__init__(feasible)
        self._rng = np.random.default_rng(seed)
        self._encoding = encode(feasible)
        self._reader = Reader(feasible)
        self._start = spread_points(self._encoding, START, self._rng)

    def choose(self, study: Study) -> int:
        """The next of the spread points, then by turns."""
        history = self._reader.read(study)
        while self._start and len(history) < START:
            index = self._start.pop(0)
            if self.feasible.unseen[index]:
                return index
        return by_turns(self._encoding, history, self.feasible.unseen, self._rng, len(history))


def by_turns(
    encoding: Encoding, history: History, unseen: np.ndarray, rng: np.random.Generator, turn: int
) -> int:
    """An unseen point: by the densities, each fourth turn a neighbour of the best."""
    values = history.objective({})
    if turn % 4 == 3:
        near = near_the_best(encoding, history, values, unseen)
        if near.size:
            return int(rng.choice(near))
    scores = np.where(unseen, density_scores(encoding, history, values), -np.inf)
    return int(rng.choice(np.flatnonzero(scores == scores.max())))


class LocalSearch(WholePointSampler):
    """The neighbours of the best point in random order; from a random point anew when none is better."""

    def __init__(self, feasible: FeasibleSet, seed: int) -> None:
        super().__init__(feasible)
        self._rng = np.random.default_rng(seed)
        self._encoding = encode(feasible)
        self._reader = Reader(feasible)
        self._begun = 0  # where in the history this descent began

    def choose(self, study: Study) -> int:
        """An unseen neighbour of the best since the last restart, or a random point."""
        history = self._reader.read(study)
        values = history.objective({})
        if len(history) > self._begun:
            best = self._begun + int(np.argmin(values[self._begun :]))
            steps = self._encoding.neighbours(history.points[best])
            if (steps := steps[self.feasible.unseen[steps]]).size:
                return int(self._rng.choice(steps))
            self._begun = len(history)
        return int(self._rng.choice(np.flatnonzero(self.feasible.unseen)))
