# SPDX-License-Identifier: Apache-2.0
"""The sampler that a Gaussian process guides, begun with what another study found: two processes by turns.

The plain one does not know of the other study. Until the times bear that out it does not even hear of what
was tried because of it: it asks for the very points that a run without a warm start asks for, in their order.
So a study that is never borne out costs its first turn, and one in ten for as long as that turn's point is
the best; one that cannot even predict its own times, nothing.

The other process explains what is left of the times when what the other study leads to expect is subtracted:
the whole of it, since of a study that is right in large and wrong about the best points a part would be borne
out, and the search would look for the best in the wrong place. While it is believed it has as many turns as
the plain one, which is told of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from optuna.study import Study

from .densities import near_the_best
from .encoding import Encoding, encode
from .feasible import FeasibleSet
from .guided import LARGE, MOST_CANDIDATES, MOST_TRIALS, GaussianProcess
from .history import History, Reader
from .start import START
from .surrogate import Surrogate
from .whole import WholePointSampler

_FAVOURITES = 4
"""Of the other study, that have every second of its first turns: what the process asks for is much alike at
first, and the best configs of another device may all share what is bad here."""
_LIKED = 0.02
"""The share of all points among which the other study's favourites are."""
_LEAST_EXPLAINED, _ENOUGH = 0.1, 20
"""Of the variance of another study's own values, if it has enough trials: less is noise. It was -0.3 to 0.0
of shuffled times, and 0.5 to 1.0 of recorded ones."""
_DOUBT = 3.0
"""Twice the logarithm of how much likelier the times must be without the other study to drop it."""
_ELSEWHERE = 10
"""One in so many turns is for a neighbour of the best as long as the plain process has not heard of that."""
_MOST_LEARNED, _BEST_LEARNED = 400, 150
"""Of a longer history as many are learned from, the best among them."""
_STEPS = 30
_AT_ONCE = 16_000
"""Points that are predicted at once, for the memory's sake."""


class WarmGaussianProcess(WholePointSampler):
    """Turns of a process as without a warm start, and of one that expects what another study found."""

    def __init__(self, feasible: FeasibleSet, seed: int, sibling: History) -> None:
        """Fits the other study.

        Args:
            sibling: its trials as points of this set; one at least has a time.
        """
        super().__init__(feasible)
        self._encoding = encode(feasible)
        self._reader = Reader(feasible)
        self._rng = np.random.default_rng([seed, 1])
        expected, explained = expectation(self._encoding, sibling)
        self._says_nothing = len(sibling) >= _ENOUGH and explained < _LEAST_EXPLAINED
        self._favourites = liked_and_apart(self._encoding, expected, _FAVOURITES)
        guesses: dict[int, float] = {}
        self._plain = GaussianProcess(feasible, seed, self._encoding, guesses)
        self._expecting = Expecting(feasible, seed, self._encoding, expected, guesses)
        self._turns, self._others_turns = 0, 0  # of the plain process, and because of the other study
        self._others: set[int] = set()  # the points of the latter
        self._told: dict[int, None] = {}  # what the plain process knows, in the order in which it came to

    def choose(self, study: Study) -> int:
        """The next point of the process whose turn it is."""
        history = self._reader.read(study)
        self._tell(point for point in history.points if point not in self._others)
        index = self._from_the_other(history)
        if index is None:
            self._turns += 1
            return self._from_the_plain(history)
        self._others_turns += 1
        self._others.add(index)
        return index

    def _from_the_other(self, history: History) -> int | None:
        """A point because of the other study; None when it is the plain process's turn."""
        unseen = self.feasible.unseen
        if self._says_nothing:
            return None
        if self._turns == 0 and self._others_turns == 0:
            return self._next_favourite()
        if len(self._told) < START or len(history) > MOST_TRIALS or self._others_turns > self._turns:
            return None
        if self._expecting.believes(history, unseen):
            self._tell(history.points)
            favourite = self._next_favourite() if self._others_turns % 2 == 0 else None
            return self._expecting.improve(history, unseen) if favourite is None else favourite
        if len(history) % _ELSEWHERE == 0 and history.points[history.best_at] not in self._told:
            near = near_the_best(self._encoding, history, history.objective({}), unseen)
            return int(self._rng.choice(near)) if near.size else None
        return None

    def _next_favourite(self) -> int | None:
        while self._favourites:
            index = self._favourites.pop(0)
            if self.feasible.unseen[index]:
                return index
        return None

    def _from_the_plain(self, history: History) -> int:
        """The plain process's next point. When it asks for one that was tried because of the other study, it
        is told what came of that, and asked again."""
        while True:
            known = history.part(self._told)
            unseen = self.feasible.unseen.copy()
            unseen[[point for point in history.points if point not in self._told]] = True
            index = self._plain.decide(known, unseen)
            if self.feasible.unseen[index]:
                self._others.discard(index)  # one that was taken back
                return index
            self._tell([index])

    def _tell(self, points: Iterable[int]) -> None:
        self._told.update(dict.fromkeys(points))


class Expecting(GaussianProcess):
    """A process for what is left of the times when an expectation is subtracted."""

    def __init__(
        self,
        feasible: FeasibleSet,
        seed: int,
        encoding: Encoding,
        expected: np.ndarray,
        guesses: dict[int, float],
    ) -> None:
        """Arguments as of its base.

        Args:
            expected: float64 [points], what the other study leads to expect.
        """
        super().__init__(feasible, seed, encoding, guesses)
        self._expected = expected
        self._believes = True

    def believes(self, history: History, unseen: np.ndarray) -> bool:
        """Whether the times seen so far leave room for the expectation: not before there are a few. Once they
        do not, they are looked at again when there are some more."""
        if np.count_nonzero(~history.pending) < START:
            return False
        if self._believes or self._fit_due(history):
            values, here = history.objective(self._guesses), self._expected[history.points]
            self._update(history, values - here, unseen)
            self._believes = borne_out(self._model, values, here) > -_DOUBT
        return self._believes

    def _expect(
        self, history: History, values: np.ndarray, unseen: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        rest = values - self._expected[history.points]
        self._update(history, rest, unseen)
        expected, deviation = self._model.predict(rest)
        return expected + self._expected[self._model.candidates], deviation

    def _candidates(self, history: History, values: np.ndarray, unseen: np.ndarray) -> np.ndarray:
        """As its base's, and of a large set those too that are expected to be the best."""
        found = super()._candidates(history, values, unseen)
        if len(unseen) <= LARGE:
            return found
        expected = np.where(unseen, self._expected, np.inf)
        return np.union1d(found, np.argpartition(expected, MOST_CANDIDATES // 4)[: MOST_CANDIDATES // 4])


def borne_out(model: Surrogate, values: np.ndarray, expected: np.ndarray) -> float:
    """Twice the logarithm of how much likelier an expectation makes the observed values.

    Args:
        model: has observed the points.
        values: of the points, and what was `expected` of them.
    """
    return len(values) * (model.misfit(values) - model.misfit(values - expected))


def expectation(encoding: Encoding, sibling: History) -> tuple[np.ndarray, float]:
    """What a study leads to expect of each point in a sibling.

    Returns:
        float64 [points], around a median of 0; and how much of the variance of its own values is explained
        when each is predicted from the others, at most 1.
    """
    values = sibling.objective({})
    kept = np.arange(len(values))
    if len(values) > _MOST_LEARNED:
        order = np.argsort(values, kind="stable")
        rest = np.random.default_rng(0).permutation(order[_BEST_LEARNED:])
        kept = np.concatenate([order[:_BEST_LEARNED], rest[: _MOST_LEARNED - _BEST_LEARNED]])
    model = Surrogate(encoding)
    points = [sibling.points[place] for place in kept]
    model.fit(points, values[kept], np.arange(0), _STEPS)
    apart = np.square(values[kept] - values[kept].mean()).sum()
    explained = 1 - np.square(values[kept] - model.left_out(values[kept])).sum() / max(apart, 1e-12)
    parts = []
    for part in np.array_split(np.arange(len(encoding)), -(-len(encoding) // _AT_ONCE)):
        model.fit(points, values[kept], part, 0)
        parts.append(model.predict(values[kept])[0])
    expected = np.concatenate(parts)
    return expected - np.median(expected), float(explained)


def liked_and_apart(encoding: Encoding, expected: np.ndarray, count: int) -> list[int]:
    """The point that is expected to be the best, then those among the best few in a hundred that differ from
    the ones chosen in the most parameters: the best ones alone may all share what is bad here."""
    liked = np.argsort(expected, kind="stable")[: max(count, int(_LIKED * len(expected)))]
    chosen = [int(liked[0])]
    while len(chosen) < min(count, len(liked)):
        apart = (encoding.codes[liked][:, None] != encoding.codes[chosen][None]).sum(axis=2).min(axis=1)
        chosen.append(int(liked[np.argmax(apart)]))
    return chosen
