# SPDX-License-Identifier: Apache-2.0
"""Points to begin with, spread over a feasible set."""

from __future__ import annotations

import numpy as np

from .encoding import Encoding

START = 8
"""Spread points before a model is asked."""


def spread_points(encoding: Encoding, count: int, rng: np.random.Generator) -> list[int]:
    """A Latin hypercube over the parameters, each sample snapped to the nearest point of the set.

    Of `count` samples each takes another slice of each parameter's choices. Near is, first, what differs in
    the fewest parameters.

    Returns:
        Distinct points, at most `count`.
    """
    parameters = encoding.codes.shape[1]
    slices = [rng.permutation(count) for _ in range(parameters)]
    samples = (np.array(slices).reshape(parameters, count).T + rng.random((count, parameters))) / count
    chosen: list[int] = []
    for sample in samples[: len(encoding.codes)]:
        differ = np.floor(sample * encoding.choices) != encoding.codes
        distance = (differ + np.abs(encoding.places - sample)).sum(axis=1)
        distance[chosen] = np.inf
        chosen.append(int(rng.choice(np.flatnonzero(distance <= distance.min() + 1e-9))))
    return chosen
