# SPDX-License-Identifier: Apache-2.0
"""What the finals say: each finalist's time with its interval, and who is told apart from the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .material import Material

_WORDS = {"leader": "the fastest", "tied": "may be as fast", "slower": "slower"}


@dataclass(frozen=True)
class Finalist:
    """One config of the finals.

    Attributes:
        config, template: which.
        time_ms: the median of the interleaved rounds; None when it failed.
        low_ms, high_ms: its 95% interval; None where none was stored.
        ratio, ratio_low, ratio_high: the median of its ratios to the leader round by round, and that one's
            95% interval; None of the leader, and where they were not stored.
        role: ``winner``, ``default`` or ``finalist``.
        place: ``leader`` (the fastest; the winner may be another, tied with it), ``tied``, ``slower``,
            ``failed``, or empty where the study does not say.
        reason: why it failed; empty when it did not.
    """

    config: Mapping[str, Any]
    template: str
    time_ms: float | None
    low_ms: float | None = None
    high_ms: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    role: str = "finalist"
    place: str = ""
    reason: str = ""

    @property
    def tied(self) -> bool:
        """Whether it may be as fast as the leader."""
        return self.place == "tied"

    @property
    def standing(self) -> str:
        """In words."""
        if self.place == "failed":
            return f"failed: {self.reason}"
        words = _WORDS.get(self.place, "")
        if self.role == "winner":
            return {"leader": "the winner, the fastest", "tied": "the winner, by the rule"}.get(
                self.place, "the winner"
            )
        return words


@dataclass(frozen=True)
class Verdict:
    """The finals.

    Attributes:
        finalists: the winner first, then the fastest; empty before the finals.
        declared: whether the winner was found to be faster than every other one; None where the study does
            not say.
        rule: what decided among those that are level; empty where nobody is.
    """

    finalists: tuple[Finalist, ...] = ()
    declared: bool | None = None
    rule: str = ""

    @property
    def winner(self) -> Finalist | None:
        """The winner; None when it is not among them."""
        return next((f for f in self.finalists if f.role == "winner"), None)

    @property
    def runner_up(self) -> Finalist | None:
        """The fastest of the others."""
        return next((f for f in self.finalists if f.role != "winner" and f.time_ms is not None), None)

    @property
    def level(self) -> list[Finalist]:
        """The others that may be as fast as the winner."""
        return [f for f in self.finalists if f.role != "winner" and f.place in ("leader", "tied")]


def verdict_of(material: Material) -> Verdict:
    """Reads a study's finals; none when they are not those of its trials."""
    best = material.best
    if not material.finals or best is None or not best["time_ms"]:
        return Verdict()
    found = [_finalist(material, entry, best) for entry in material.finals]
    found.sort(key=lambda f: (f.role != "winner", f.time_ms is None, f.time_ms or 0.0))
    measured = material.winner.measurement if material.winner else {}
    declared, rule = measured.get("declared"), measured.get("rule")
    return Verdict(
        tuple(found), declared if isinstance(declared, bool) else None, rule if isinstance(rule, str) else ""
    )


def _finalist(material: Material, entry: Mapping[str, Any], best: Mapping[str, Any]) -> Finalist:
    details = entry.get("details")
    # Studies of before the finals were ranked have the intervals among the details.
    figures = {**(details if isinstance(details, Mapping) else {}), **entry}
    low, high = _pair(figures.get("ci95_ms"))
    config, template = entry["config"], entry["template"]
    is_winner = config == best["config"] and template == best["template"]
    ok = entry["outcome"] == "ok" and bool(entry.get("time_ms"))
    found = Finalist(
        config=config,
        template=template,
        time_ms=entry["time_ms"] if ok else None,
        low_ms=low,
        high_ms=high,
        role="winner"
        if is_winner
        else "default"
        if material.defaults.get(template) == config
        else "finalist",
        place="failed" if not ok else "",
        reason="" if ok else str(entry.get("reason") or entry["outcome"]),
    )
    return _placed(found, figures) if ok else found


def _placed(found: Finalist, figures: Mapping[str, Any]) -> Finalist:
    low, high = _pair(figures.get("ratio_ci95"))
    ratio, place = figures.get("ratio"), figures.get("standing")
    if not isinstance(place, str) or place not in _WORDS:
        place = "" if low is None or high is None else "tied" if low <= 1.0 <= high else "slower"
        place = "leader" if (low, high) == (1.0, 1.0) else place
    if place == "leader":
        low = high = ratio = None
    return Finalist(
        **{
            **vars(found),
            "ratio": float(ratio) if isinstance(ratio, int | float) else None,
            "ratio_low": low,
            "ratio_high": high,
            "place": place,
        }
    )


def _pair(value: Any) -> tuple[float | None, float | None]:
    if isinstance(value, list | tuple) and len(value) == 2:
        low, high = value
        if all(isinstance(end, int | float) and not isinstance(end, bool) for end in value):
            return float(low), float(high)
    return None, None
