# SPDX-License-Identifier: Apache-2.0
"""How well a median is known, and the ratio of two: bootstrap intervals of times that were taken in rounds.

The bootstrap distribution of a median need not be drawn. A resample of m values lies at or below v as often
as a coin of bias F(v) falls, F being the share of the sample up to v; so P(median <= v) is a sum of binomial
probabilities, exact also far out in the tails, with no seed and in a millisecond.

Neighbouring rounds may be alike (a clock that wanders, a neighbour that comes and goes): then n of them say
less than n. A resample has as many values as there are independent rounds, m = n / tau, where tau is the
integrated autocorrelation time of the ranks, estimated with a window that grows with it and then raised by
what such an estimate is off itself. In simulations (`tests/unit/test_intervals.py`) a coin of as many tosses
as rounds called two equal kernels different at the 99% level in half of all runs where neighbours correlate
by 0.9; this one in 1 to 3%, from a hundred rounds on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_WINDOW = 3.0
"""Correlations are added up to a distance of so many times what they came to by then."""
_DOUBT = 0.5
"""By how many of its standard deviations tau is raised: half of one costs independent rounds little."""

_FAR = 2.0
"""See `MedianBootstrap.p_value`."""
_TELLING, _SURELY_FAR = 6, 2.0
"""Fewer values than these do not tell how far they lie from one another (one lies nowhere from itself): of
them only what is this many times the point, or that part of it, is far from it."""


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval."""

    low: float
    high: float

    def to_list(self) -> list[float]:
        """[low, high], for JSON."""
        return [self.low, self.high]


class MedianBootstrap:
    """The bootstrap distribution of the median of values that were taken one after the other.

    Args:
        values: In the order taken, above 0.

    Attributes:
        median: Of the values.
        independent: How many independent values these are worth.

    Raises:
        ValueError: There are no values.
    """

    def __init__(self, values: Sequence[float] | np.ndarray) -> None:
        given = np.asarray(values, dtype=float)
        if given.size == 0:
            raise ValueError("no samples")
        self.median = float(np.median(given))
        self.independent = max(int(given.size / correlation_time(given)), 1)
        self._values, counts = np.unique(given, return_counts=True)
        self._count = given.size
        self._quarters = [float(quarter) for quarter in np.quantile(given, (0.25, 0.75))]
        self._up_to = _majority(np.cumsum(counts) / given.size, self.independent)

    def interval(self, level: float = 0.95) -> Interval:
        """The percentile interval; its ends are among the values, and at the level's edge the outer ones.

        Args:
            level: Coverage, below 1.
        """
        tail = (1 - level) / 2
        last = self._values.size - 1
        low = min(int(np.searchsorted(self._up_to, tail)), last)
        high = min(int(np.searchsorted(self._up_to, 1 - tail)), last)
        return Interval(float(self._values[low]), float(self._values[high]))

    def interval_about(self, point: float, level: float = 0.95) -> Interval:
        """The interval of that level, which leaves out a point only where `p_value` is below 1 - level: where
        so few independent values cannot say so, as no sign test of them could, it reaches to the point.

        Args:
            point: Above 0, as the values are.
            level: Coverage, below 1.
        """
        found = self.interval(level)
        if self.p_value(point) < 1 - level:
            return found
        return Interval(min(found.low, point), max(found.high, point))

    def too_few_about(self, point: float, level: float) -> bool:
        """Whether the number of independent values alone keeps an interval from leaving the point out."""
        found = self.interval(level)
        return not found.low <= point <= found.high and self.p_value(point) >= 1 - level

    def p_value(self, point: float) -> float:
        """Twice the share of the distribution on the thin side of a point: under 1 - level, the interval of
        that level excludes it. No less than what a sign test of as many independent values can say, unless
        the values lie much further from the point than from one another.

        Args:
            point: Above 0, as the values are.
        """
        at_or_below = int(np.searchsorted(self._values, point, side="right"))
        below = int(np.searchsorted(self._values, point, side="left"))
        up_to = float(self._up_to[at_or_below - 1]) if at_or_below else 0.0
        from_on = 1.0 - (float(self._up_to[below - 1]) if below else 0.0)
        share = min(2 * min(up_to, from_on), 1.0)
        return share if self._far_from(point) else max(share, 2.0 ** (1 - self.independent))

    def _far_from(self, point: float) -> bool:
        """Whether all values lie on one side of a point, and most of them far: in logarithms, twice as far as
        the middle half of them is wide. Ten rounds are enough to see that something takes twenty times as
        long, however much alike neighbours are."""
        away = np.log(self._values / point)
        if away[0] <= 0 <= away[-1]:
            return False
        near, far = sorted(abs(math.log(quarter / point)) for quarter in self._quarters)
        least = math.log(_SURELY_FAR) if self._count < _TELLING else 0.0
        return near > max(_FAR * (far - near), least)


def median_interval(samples: Sequence[float], level: float = 0.95) -> Interval:
    """Bootstrap interval of the median.

    Raises:
        ValueError: There are no samples.
    """
    return MedianBootstrap(samples).interval(level)


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """The samples of two contestants of `measure.in_rounds`, over the rounds that both have."""
    turns = [turn for turn in first if turn in second]
    return [first[turn] for turn in turns], [second[turn] for turn in turns]


def ratio_bootstrap(samples: Sequence[float], leader: Sequence[float]) -> MedianBootstrap:
    """The median of round-by-round ratios: what both had in common in a round cancels.

    Args:
        samples: Of one contestant.
        leader: Of another, from the same rounds.

    Raises:
        ValueError: The numbers of rounds differ, or are zero.
    """
    if len(samples) != len(leader):
        raise ValueError(f"paired samples of different length: {len(samples)} and {len(leader)}")
    return MedianBootstrap(np.asarray(samples, dtype=float) / np.asarray(leader, dtype=float))


def correlation_time(values: np.ndarray) -> float:
    """For how many of its neighbours each value speaks, at least 1: the integrated autocorrelation time of
    the ranks, which no outlier sways."""
    count = values.size
    if count < 4:
        return 1.0
    rank = np.empty(count)
    rank[np.argsort(values, kind="stable")] = np.arange(count, dtype=float)
    rank -= rank.mean()
    spectrum = np.fft.rfft(rank, 2 * count)
    alike = np.fft.irfft(spectrum * spectrum.conj(), 2 * count)[:count]
    total, window = 1.0, 1
    for window in range(1, max(count // 3, 2)):
        total += 2 * float(alike[window] / alike[0])
        if window >= _WINDOW * max(total, 1.0):
            break
    width = 2 * window + 1
    # The mean is the sample's own, which hides a part of the correlation: width / count of it.
    return max(total, 1.0) * (1 + width / count + _DOUBT * math.sqrt(2 * width / count))


def _majority(share: np.ndarray, count: int) -> np.ndarray:
    """The probability that more than half of `count` tosses fall, for coins of these biases; where half do,
    half of it: that the median of so many values lies at or below what `share` of the sample does.

    Args:
        share: float64 [n] in (0, 1], rising to 1.
    """
    fallen, ways = _ways(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        yes, no = np.log(share)[:, None], np.log1p(-share)[:, None]
        # 0 * -inf is 0 here: none of none.
        logs = ways + np.where(fallen > 0, fallen * yes, 0.0)
        logs = logs + np.where(fallen < count, (count - fallen) * no, 0.0)
    won = np.where(2 * fallen > count, 1.0, np.where(2 * fallen == count, 0.5, 0.0))
    return np.minimum(np.exp(logs) @ won, 1.0)


@lru_cache(maxsize=64)
def _ways(count: int) -> tuple[np.ndarray, np.ndarray]:
    """0 ... count, and the logarithm of the number of ways in which so many of them fall."""
    factorial = np.array([math.lgamma(i + 1) for i in range(count + 1)])
    return np.arange(count + 1), factorial[count] - factorial - factorial[::-1]
