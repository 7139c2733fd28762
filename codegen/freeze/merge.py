# SPDX-License-Identifier: Apache-2.0
"""Winners of several sources as one set: a later winner replaces an earlier one of the same key, unless that
one is to stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ..catalogue import Catalogue
from ..errors import UnknownName
from .winner import OTHER_SIZES, Winner


@dataclass(frozen=True)
class Change:
    """What a merge did to one key.

    Attributes:
        name: the entry's name.
        what: ``added``, ``replaced``, ``kept`` (the same came again) or ``slower`` (the old one stays).
        old_ms, new_ms: measured times; None where there was none.
    """

    name: str
    what: str
    old_ms: float | None
    new_ms: float | None


def merge(
    old: Iterable[Winner],
    new: Iterable[Winner],
    stays: Callable[[Winner, Winner], bool] = lambda old, new: False,
) -> tuple[list[Winner], list[Change]]:
    """The winners of both, one for each key; what became of each new key.

    Args:
        stays: (old winner, new winner of the same key) -> whether the old one is not replaced.
    """
    merged = {winner.key: winner for winner in old}
    latest = {winner.key: winner for winner in new}
    changes = []
    for winner in latest.values():
        before = merged.get(winner.key)
        if before is not None:
            # A package gives its entries PTX and surveys them, a study does not.
            rows = {n: v for n, v in before.measurement.items() if n == OTHER_SIZES}
            same = replace(winner, ptx=winner.ptx or before.ptx, measurement={**rows, **winner.measurement})
            winner = before if same == before else winner
        what = "added" if before is None else "kept" if before == winner else "replaced"
        if before is not None and what == "replaced" and stays(before, winner):
            what = "slower"
        changes.append(Change(winner.name, what, before.time_ms if before else None, winner.time_ms))
        if before is None or what != "slower":
            merged[winner.key] = winner
    return list(merged.values()), changes


def split_stale(winners: Sequence[Winner], declared: Catalogue) -> tuple[list[Winner], list[Winner]]:
    """(winners of the operators as declared now, winners of another declaration or of none)."""
    current, stale = [], []
    for winner in winners:
        try:
            same = declared.operator(winner.operator).digest == winner.operator_digest
        except UnknownName:
            same = False
        (current if same else stale).append(winner)
    return current, stale
