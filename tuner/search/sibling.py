# SPDX-License-Identifier: Apache-2.0
"""What another study found, told in the points of this one: of another shape, precision or device, or of an
older version of a template."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .feasible import FeasibleSet
from .guided import GaussianProcess
from .history import History
from .samplers import SamplerFactory, sampler_named
from .warm import WarmGaussianProcess

_FIRST = 5
"""Of the other study's best: what samplers that cannot learn from it are begun with."""


@dataclass(frozen=True)
class Sibling:
    """Another study's results, of the configs that are legal here.

    Attributes:
        name: the other study's.
        points: of this study's feasible set, each once.
        times: float64 [points], NaN where one failed; in whatever unit, as only their ratios count.
    """

    name: str
    points: list[int]
    times: np.ndarray

    @property
    def timed(self) -> int:
        """How many have a time."""
        return int(np.isfinite(self.times).sum())

    @property
    def history(self) -> History:
        """The same as a sampler reads its own study."""
        return History(self.points, self.times, np.zeros(len(self.points), dtype=bool))

    def best(self, count: int) -> tuple[int, ...]:
        """The points with the least times, at most so many."""
        order = np.argsort(self.times, kind="stable")[: min(count, self.timed)]
        return tuple(self.points[place] for place in order)


def sibling_of(
    feasible: FeasibleSet, name: str, results: Iterable[tuple[Mapping[str, Any], float | None]]
) -> Sibling:
    """Translates another study.

    Args:
        feasible: of this study.
        name: of the other one.
        results: parameters, the template among them, and the time, None or NaN for a failed config. Of a
            config that occurs again the last one counts; those that are not legal here are left out.
    """
    found: dict[int, float] = {}
    for params, time in results:
        index = feasible.index_of(params)
        if index is not None:
            found[index] = math.nan if time is None or not 0 < time < math.inf else float(time)
    return Sibling(name, list(found), np.array(list(found.values()), dtype=float))


def begun_with(name: str | None, sibling: Sibling | None) -> tuple[SamplerFactory, tuple[int, ...]]:
    """The sampler called ``name``, or the default one, with what a sibling teaches it.

    Returns:
        Its factory, and points to try before it is asked: the sibling's best, where the sampler cannot make
        more of them.

    Raises:
        UnknownName: there is no such sampler.
    """
    factory = sampler_named(name)
    if sibling is None or not sibling.timed:
        return factory, ()
    if factory is GaussianProcess:
        return functools.partial(WarmGaussianProcess, sibling=sibling.history), ()
    return factory, sibling.best(_FIRST)
