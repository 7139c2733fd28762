# SPDX-License-Identifier: Apache-2.0
"""The sampler that a Gaussian process guides, begun with what another study found.

The other study gives each point an expectation, by a process of its own. The process of this study explains
what is left when a share of that expectation is subtracted, and the share is what the times seen here bear
out: none, unless they are clearly more likely with it. So a study that has nothing to do with this one costs
little more than the three points that it was asked for.
"""

from __future__ import annotations

import math

import numpy as np

from .encoding import Encoding
from .feasible import FeasibleSet
from .guided import GaussianProcess
from .history import History
from .start import START, spread_points
from .surrogate import Surrogate

_OTHERS = 3
"""Points to begin with that the other study likes; the rest of `START` is spread."""
_LIKED = 0.1
"""The share of all points that count as liked."""
_SHARES = np.arange(0.0, 1.51, 0.1)
_DOUBT = 2.0
"""How much likelier the times must be with a share: this many times the logarithm of their count."""
_MOST_LEARNED, _BEST_LEARNED = 400, 150
"""Of a longer history as many are learned from, the best among them."""
_STEPS = 30
_AT_ONCE = 16_000
"""Points that are predicted at once, for the memory's sake."""


class WarmGaussianProcess(GaussianProcess):
    """As its base, and expects first what the other study found."""

    def __init__(self, feasible: FeasibleSet, seed: int, sibling: History) -> None:
        """Fits the other study.

        Args:
            sibling: its trials as points of this set; one at least has a time.
        """
        super().__init__(feasible, seed)
        self._expected = expectation(self._encoding, sibling)
        spread = spread_points(self._encoding, START - _OTHERS, self._rng)
        self._start = liked_and_apart(self._encoding, self._expected, _OTHERS) + spread
        self._share = 0.0

    def _expect(self, history: History, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        here = self._expected[history.points]
        self._update(history, values - self._share * here)
        self._share = share_of(self._model, values, here)
        expected, deviation = self._model.predict(values - self._share * here)
        return expected + self._share * self._expected[self._model.candidates], deviation


def expectation(encoding: Encoding, sibling: History) -> np.ndarray:
    """float64 [points]: what a study leads to expect of each point in a sibling, around a median of 0."""
    values = sibling.objective({})
    kept = np.arange(len(values))
    if len(values) > _MOST_LEARNED:
        order = np.argsort(values, kind="stable")
        rest = np.random.default_rng(0).permutation(order[_BEST_LEARNED:])
        kept = np.concatenate([order[:_BEST_LEARNED], rest[: _MOST_LEARNED - _BEST_LEARNED]])
    model = Surrogate(encoding)
    points = [sibling.points[place] for place in kept]
    model.fit(points, values[kept], np.arange(0), _STEPS)
    parts = []
    for part in np.array_split(np.arange(len(encoding)), -(-len(encoding) // _AT_ONCE)):
        model.fit(points, values[kept], part, 0)
        parts.append(model.predict(values[kept])[0])
    expected = np.concatenate(parts)
    return expected - np.median(expected)


def liked_and_apart(encoding: Encoding, expected: np.ndarray, count: int) -> list[int]:
    """The point that is expected to be the best, then those of the best tenth that differ from the ones
    chosen in the most parameters: the best ones alone may all share what is bad here."""
    liked = np.argsort(expected, kind="stable")[: max(count, int(_LIKED * len(expected)))]
    chosen = [int(liked[0])]
    while len(chosen) < min(count, len(liked)):
        apart = (encoding.codes[liked][:, None] != encoding.codes[chosen][None]).sum(axis=2).min(axis=1)
        chosen.append(int(liked[np.argmax(apart)]))
    return chosen


def share_of(model: Surrogate, values: np.ndarray, expected: np.ndarray) -> float:
    """Which share of an expectation makes the observed values most likely; 0 if none does clearly.

    Args:
        model: has observed the points.
        values: of the points, and what was `expected` of them.
    """
    count = len(values)
    losses = [count * model.misfit(values - share * expected) + share**2 for share in _SHARES]
    best = int(np.argmin(losses))
    return float(_SHARES[best]) if losses[best] < losses[0] - _DOUBT * math.log(count) else 0.0
