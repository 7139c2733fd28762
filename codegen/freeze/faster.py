# SPDX-License-Identifier: Apache-2.0
"""Whether what is frozen is better than what would replace it, as far as two runs can tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..catalogue import Catalogue
from ..errors import ColdforgeError
from ..target import Target
from .checks import problem_of
from .winner import Winner


def clearly_faster(old: Winner, new: Winner) -> bool:
    """Whether the old winner of a key was measured faster than the new one under the same conditions (device,
    threads, compiler, driver; both chosen by time), by more than either figure is sure to.
    """
    by_time = all(winner.measurement.get("objective") in (None, "time") for winner in (old, new))
    if not old.verified or not by_time or _conditions(old) != _conditions(new):
        return False
    return _interval(old)[1] < _interval(new)[0]


def is_still_legal(winner: Winner, known: Catalogue) -> bool:
    """Whether its template, as declared now, admits its config."""
    try:
        problem, target = problem_of(winner, known), Target.from_dict(winner.target)
        spaces = known.spaces(known.operator(winner.operator), winner.kind, winner.template)
        return any(space.check(problem, winner.config, target) is None for space in spaces)
    except (ColdforgeError, KeyError):  # no such operator or template, other parameters
        return False


def _conditions(winner: Winner) -> tuple[Any, ...]:
    record = winner.measurement.get("device_record")
    driver = record.get("driver") if isinstance(record, Mapping) else None
    return dict(winner.target), winner.compiler, driver


def _interval(winner: Winner) -> tuple[float, float]:
    """The 95% interval of its time; the time alone where none was recorded."""
    ends = winner.measurement.get("ci95_ms")
    if isinstance(ends, list | tuple) and len(ends) == 2 and all(isinstance(e, int | float) for e in ends):
        return min(ends), max(ends)
    return winner.time_ms, winner.time_ms
