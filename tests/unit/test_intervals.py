# SPDX-License-Identifier: Apache-2.0
"""Intervals of medians and of ratios on made-up samples, of which is known what they must say."""

from __future__ import annotations

import time

import numpy as np
import pytest
from coldforge.tuner.intervals import (
    MedianBootstrap,
    correlation_time,
    median_interval,
    paired,
    ratio_bootstrap,
)
from noises import NOISES, correlated


def test_intervals_cover_the_median_as_often_as_they_say() -> None:
    random = np.random.default_rng(1)
    hits = {0.8: 0, 0.95: 0}
    for _ in range(300):
        found = MedianBootstrap(random.lognormal(0.0, 0.2, 101))
        for level in hits:
            interval = found.interval(level)
            hits[level] += interval.low <= 1.0 <= interval.high
    assert 240 <= hits[0.8] <= 285
    assert 285 <= hits[0.95] <= 300


def test_the_distribution_is_that_of_drawn_resamples() -> None:
    values = np.random.default_rng(2).lognormal(0.0, 0.2, 75)
    found = MedianBootstrap(values)
    draws = np.random.default_rng(3).choice(values, (20_000, found.independent))
    medians = np.median(draws, axis=1)
    for level in (0.5, 0.9, 0.99):
        low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
        interval = found.interval(level)
        spread = float(np.quantile(medians, 0.99) - np.quantile(medians, 0.01))
        assert abs(interval.low - low) < 0.05 * spread
        assert abs(interval.high - high) < 0.05 * spread


def test_an_interval_excludes_what_its_p_value_says() -> None:
    random = np.random.default_rng(4)
    for _ in range(50):
        found = MedianBootstrap(1.003 * np.exp(random.normal(0, 0.01, 80)))
        p = found.p_value(1.0)
        for level in (0.9, 0.99, 0.999):
            interval = found.interval(level)
            assert (interval.low <= 1.0 <= interval.high) or p <= 1 - level
            assert (interval.low > 1.0 or interval.high < 1.0) or p >= 1 - level


def test_no_draws_no_seed() -> None:
    values = np.random.default_rng(5).lognormal(0.0, 0.2, 301)
    state = np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    assert MedianBootstrap(values).interval(0.999) == MedianBootstrap(values).interval(0.999)
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index,union-attr]


def test_common_drift_cancels_in_a_ratio() -> None:
    random = np.random.default_rng(2)
    drift = np.linspace(1.0, 2.0, 41)
    leader = drift * random.normal(1.0, 0.005, 41)
    other = 1.03 * drift * random.normal(1.0, 0.005, 41)
    found = ratio_bootstrap(other.tolist(), leader.tolist()).interval()
    assert 1.02 < found.low < 1.03 < found.high < 1.04
    alone = median_interval(other.tolist())
    assert alone.low < float(np.median(leader)) < alone.high


def test_bad_samples() -> None:
    with pytest.raises(ValueError, match="paired samples of different length: 1 and 2"):
        ratio_bootstrap([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    assert median_interval([2.0]).to_list() == [2.0, 2.0]
    assert paired({0: 1.0, 2: 3.0}, {2: 5.0, 3: 7.0}) == ([3.0], [5.0])


@pytest.mark.parametrize(("by", "true"), [(0.0, 1.0), (0.5, 3.0), (0.8, 9.0)])
def test_neighbours_that_are_alike_count_for_less(by: float, true: float) -> None:
    random = np.random.default_rng(6)
    found = [correlation_time(correlated(by)(random, 301)) for _ in range(40)]
    assert true <= float(np.median(found)) < 1.8 * true


def test_few_rounds_cannot_say_more_than_a_sign_test() -> None:
    few = MedianBootstrap([1.01, 1.03, 1.02, 1.04, 1.01])
    assert few.interval(0.999).low > 1.0
    assert few.p_value(1.0) >= 2.0**-4
    # Unless there is nothing to ask.
    assert MedianBootstrap([20.0, 25.0, 30.0, 22.0, 21.0]).p_value(1.0) < 1e-3
    many = MedianBootstrap(np.random.default_rng(7).normal(20.0, 1.0, 41))
    assert many.p_value(1.0) < 1e-3
    assert many.p_value(20.0) > 0.01


@pytest.mark.parametrize("name", NOISES)
def test_a_difference_is_seen(name: str) -> None:
    """Of 5% in 200 rounds, whatever the noise."""
    random, seen = np.random.default_rng(8), 0
    for _ in range(20):
        leader, other = (np.exp(NOISES[name](random, 200)) for _ in range(2))
        found = ratio_bootstrap((1.05 * other).tolist(), leader.tolist())
        seen += found.p_value(1.0) < 0.01 / 8 and found.interval(1 - 0.01 / 8).low > 1.0
    assert seen >= (15 if name in ("neighbours much alike", "switching") else 20), seen


def test_the_finals_of_nine_cost_little() -> None:
    random = np.random.default_rng(9)
    samples = random.lognormal(0.0, 0.05, (9, 301))
    MedianBootstrap(samples[0])
    began = time.process_time()
    for one in samples[1:]:
        median_interval(one.tolist())
        found = ratio_bootstrap(one.tolist(), samples[0].tolist())
        found.interval()
        found.interval(0.999)
        found.p_value(1.0)
    assert time.process_time() - began < 0.2
