# SPDX-License-Identifier: Apache-2.0
"""Replays that begin with another recorded space: with what a study of it would have found."""

from __future__ import annotations

from functools import lru_cache

from ...codegen.errors import InputError
from ..search import FeasibleSet, Sibling, begun_with, sampler_named, sibling_of
from .recorded import Recorded
from .run import Run, replay

_OTHER_SEEDS = 1_000_000
"""Added to a seed for the study that is learned from, so that the two runs have no draws in common."""


class Beginning:
    """A recorded space to begin with.

    Attributes:
        source: the space.
        trials: how many configs a study of it has; None: the whole space is known.
    """

    def __init__(self, source: Recorded, trials: int | None) -> None:
        self.source, self.trials = source, trials
        self._study = lru_cache(maxsize=None)(self._run)

    def _run(self, sampler: str, seed: int) -> tuple[int, ...]:
        """The configs of a study by this very sampler."""
        count = len(self.source.feasible)
        if self.trials is None or self.trials >= count:
            return tuple(range(count))
        return replay(self.source, sampler_named(sampler), seed + _OTHER_SEEDS, self.trials).order

    def check(self, recorded: Recorded) -> None:
        """Refuses a space that it says nothing about.

        Raises:
            InputError: no config of the source that has a time is one of the space's.
        """
        if not self._sibling(recorded.feasible, range(len(self.source.feasible))).timed:
            raise InputError(
                f"--warm-start {self.source.name}: no config that has a time there is one of {recorded.name}"
            )

    def replay(self, recorded: Recorded, sampler: str, seed: int, budget: int, until: float = 0.0) -> Run:
        """`run.replay`, begun with a study of the source."""
        sibling = self._sibling(recorded.feasible, self._study(sampler, seed))
        factory, first = begun_with(sampler, sibling)
        return replay(recorded, factory, seed, budget, first, until)

    def _sibling(self, feasible: FeasibleSet, order: tuple[int, ...] | range) -> Sibling:
        theirs, times = self.source.feasible, self.source.times
        found = ((theirs.params(index), float(times[index])) for index in order)
        return sibling_of(feasible, self.source.name, found)


def trials_of(text: str) -> int | None:
    """``--warm-trials``: a number of configs, or `all` (None).

    Raises:
        InputError: it is neither.
    """
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text[:9]) <= 100_000:
        raise InputError(f"--warm-trials {text!r:.40}: expected a number of configs up to 100000, or all")
    return int(text)
