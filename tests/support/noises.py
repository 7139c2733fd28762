# SPDX-License-Identifier: Apache-2.0
"""Kinds of noise that times have, as logarithms of factors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Noise = Callable[[np.random.Generator, int], np.ndarray]


def correlated(by: float) -> Noise:
    """Normal noise in which neighbours correlate."""

    def noise(random: np.random.Generator, count: int) -> np.ndarray:
        fresh = random.normal(0, np.sqrt(1 - by * by), count)
        fresh[0] = random.normal()
        for index in range(1, count):
            fresh[index] += by * fresh[index - 1]
        return 0.01 * fresh

    return noise


def switching(random: np.random.Generator, count: int) -> np.ndarray:
    """Two states 2% apart, for ten rounds or so each."""
    return 0.02 * (np.cumsum(random.random(count) < 0.1) % 2) + random.normal(0, 0.002, count)


# In logarithms, of one contestant.
NOISES: dict[str, Noise] = {
    "normal": lambda random, count: random.normal(0, 0.01, count),
    "heavy tails": lambda random, count: 0.01 * random.standard_t(2, count),
    "spikes": lambda random, count: (
        random.normal(0, 0.002, count) + (random.random(count) < 0.3) * random.exponential(0.5, count)
    ),
    "a coarse clock": lambda random, count: np.round(random.normal(0, 0.01, count), 2),
    "neighbours alike": correlated(0.5),
    "neighbours much alike": correlated(0.8),
    "switching": switching,
}
