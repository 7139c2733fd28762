# SPDX-License-Identifier: Apache-2.0
"""Recorded spaces made of others: told in other words, and such as are bad to begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..search import FeasibleSet
from ..search.encoding import encode
from ..search.feasible import choice_order
from .recorded import Recorded

_BEST = 0.05
_DRAWS = 50
"""Of so many smooth landscapes the one is wrong whose best configs are the slowest."""


def derived(recorded: Recorded, *names: str) -> Recorded:
    """A space with the changes called so (see `CHANGES`), one after the other; the same each time.

    Raises:
        KeyError: there is no such change.
    """
    for name in names:
        changed = CHANGES[name](recorded)
        recorded = Recorded(f"{recorded.name}, {name}", changed.feasible, changed.times)
    return recorded


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _made(recorded: Recorded, configs: list[dict[str, Any]], times: np.ndarray) -> Recorded:
    """Of a space with one template, as recorded ones are."""
    (template,) = recorded.feasible.names
    return Recorded(recorded.name, FeasibleSet({template: configs}), times)


def _configs(recorded: Recorded) -> list[dict[str, Any]]:
    return [dict(point.config) for point in recorded.feasible.points]


def _cubed(recorded: Recorded) -> Recorded:
    return _made(recorded, _configs(recorded), recorded.times**3)


def _half(recorded: Recorded) -> Recorded:
    """Half of the configs, drawn; of two spaces with the same configs the same half."""
    configs = _configs(recorded)
    order = np.argsort([repr(sorted(config.items())) for config in configs], kind="stable")
    kept = np.sort(_rng().permutation(order)[: len(configs) // 2])
    return _made(recorded, [configs[at] for at in kept], recorded.times[kept])


def _other_values(recorded: Recorded) -> Recorded:
    """Each number stands for another one of its parameter's, which takes ranks and products their meaning.
    In spaces with the same values it is the same one."""
    configs = _configs(recorded)
    for name in configs[0]:
        values = sorted({config[name] for config in configs}, key=choice_order)
        if not any(isinstance(value, str) for value in values):
            other = dict(zip(values, _rng().permutation(values).tolist(), strict=True))
            configs = [{**config, name: other[config[name]]} for config in configs]
    return _made(recorded, configs, recorded.times)


def _shuffled(recorded: Recorded) -> Recorded:
    """The times of other configs: it says nothing."""
    return _made(recorded, _configs(recorded), _rng().permutation(recorded.times))


def _wrong(recorded: Recorded) -> Recorded:
    """A smooth landscape whose best configs are slow here."""
    places, rng = encode(recorded.feasible).places, _rng()
    slowness = np.argsort(np.argsort(recorded.times))
    best, chosen, slowest = max(1, int(_BEST * len(places))), np.zeros(len(places)), -1.0
    for _ in range(_DRAWS):
        middle, weights = rng.random(places.shape[1]), rng.random(places.shape[1]) + 0.3
        logs = 3 * (places - middle) ** 2 @ weights
        found = float(np.median(slowness[np.argsort(logs)[:best]]))
        if found > slowest:
            chosen, slowest = logs, found
    return _made(recorded, _configs(recorded), np.exp(chosen))


def _half_right(recorded: Recorded) -> Recorded:
    """Right but for the best twentieth: that is three times as slow."""
    times = recorded.times.copy()
    times[np.argsort(times)[: max(1, int(_BEST * len(times)))]] *= 3
    return _made(recorded, _configs(recorded), times)


CHANGES: dict[str, Callable[[Recorded], Recorded]] = {
    "cubed": _cubed,
    "half of it": _half,
    "other values": _other_values,
    "shuffled": _shuffled,
    "wrong": _wrong,
    "half-right": _half_right,
}
