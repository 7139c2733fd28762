# SPDX-License-Identifier: Apache-2.0
"""A few configs that stand for all: every pair of values that is legal anywhere occurs in one of them.

The legal configs are known one by one, so each pair that can occur is too. (Generators of covering arrays
build rows value by value under a filter; in spaces as constrained as ours they were not made to promise that
a pair which only a few rows allow is found.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy

from ...codegen.space import Config


def covering(configs: Sequence[Config], first: Sequence[Config] = ()) -> list[Config]:
    """Chooses configs, each time one that has most pairs of values which none chosen so far has.

    Args:
        configs: All legal configs, of one space, in its order: among equals the earlier one is taken.
        first: Of these the ones that are taken in any case.
    """
    if not configs:
        return []
    pairs = _pairs(configs)
    missing = numpy.ones(int(pairs.max(initial=0)) + 1, dtype=bool)
    chosen: list[int] = []

    def take(index: int) -> None:
        chosen.append(index)
        missing[pairs[index]] = False

    for config in first:
        take(configs.index(config))
    while True:
        gains = missing[pairs].sum(axis=1)
        best = int(gains.argmax())
        if gains[best] == 0:
            return [configs[index] for index in chosen or [0]]
        take(best)


def _pairs(configs: Sequence[Config]) -> numpy.ndarray:
    """Each config's pairs of values as numbers, one column a pair of parameters (of a single parameter: its
    values)."""
    columns = [_numbered([config[name] for config in configs]) for name in configs[0]]
    found: list[numpy.ndarray] = []
    start = 0
    for a, b in combinations(columns, 2) if len(columns) > 1 else [(columns[0], columns[0])]:
        numbers = _numbered(list(zip(a.tolist(), b.tolist(), strict=True)))
        found.append(numbers + start)
        start += int(numbers.max()) + 1
    return numpy.stack(found, axis=1)


def _numbered(values: Sequence[object]) -> numpy.ndarray:
    """Equal values get equal numbers, from 0."""
    numbers: dict[object, int] = {}
    return numpy.array([numbers.setdefault(value, len(numbers)) for value in values])
