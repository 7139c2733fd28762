# SPDX-License-Identifier: Apache-2.0
"""What the finals say: each finalist's time with its interval, and who is told apart from the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..limits import ENERGY, TIME
from ..ranking import too_few_rounds
from .material import Material

_WORDS = {
    TIME: {"leader": "the fastest", "tied": "may be as fast", "slower": "slower"},
    ENERGY: {"leader": "the least energy", "tied": "may take as little", "slower": "takes more"},
}


@dataclass(frozen=True)
class Finalist:
    """One config of the finals.

    Attributes:
        config, template: which.
        time_ms: the median of the interleaved rounds; None when it failed.
        low_ms, high_ms: its 95% interval; None where none was stored.
        energy_j, low_j, high_j: joules a launch and their 95% interval; None where they were not read.
        ratio, ratio_low, ratio_high: the median of its ratios to the leader round by round, and that one's
            95% interval; of what decided, times or joules. None of the leader, and where not stored.
        role: ``winner``, ``default`` or ``finalist``.
        place: ``leader`` (the fastest; the winner may be another, tied with it), ``tied``, ``slower``,
            ``failed``, or empty where the study does not say.
        reason: why it failed; empty when it did not.
        few_rounds: whether it is tied only as too few independent rounds were taken.
    """

    config: Mapping[str, Any]
    template: str
    time_ms: float | None
    low_ms: float | None = None
    high_ms: float | None = None
    energy_j: float | None = None
    low_j: float | None = None
    high_j: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    role: str = "finalist"
    place: str = ""
    reason: str = ""
    objective: str = TIME
    few_rounds: bool = False

    @property
    def figure(self) -> float | None:
        """What decides: its milliseconds, or its joules."""
        return self.energy_j if self.objective == ENERGY else self.time_ms

    @property
    def tied(self) -> bool:
        """Whether it may be as good as the leader."""
        return self.place == "tied"

    @property
    def standing(self) -> str:
        """In words."""
        if self.place == "failed":
            return f"failed: {self.reason}"
        words = _WORDS[self.objective].get(self.place, "")
        words += " (too few independent rounds to say)" if self.few_rounds else ""
        if self.role == "winner":
            more = {"leader": f", {words}", "tied": ", by the rule"}
            return f"the winner{more.get(self.place, '')}"
        return words


@dataclass(frozen=True)
class Verdict:
    """The finals.

    Attributes:
        finalists: the winner first, then the fastest; empty before the finals.
        declared: whether the winner was found to be faster than every other one; None where the study does
            not say.
        rule: what decided among those that are level; empty where nobody is.
        objective: what decided, "time" or "energy".
    """

    finalists: tuple[Finalist, ...] = ()
    declared: bool | None = None
    rule: str = ""
    objective: str = TIME

    @property
    def has_energy(self) -> bool:
        """Whether energy was read of any."""
        return any(f.energy_j is not None for f in self.finalists)

    @property
    def winner(self) -> Finalist | None:
        """The winner; None when it is not among them."""
        return next((f for f in self.finalists if f.role == "winner"), None)

    @property
    def runner_up(self) -> Finalist | None:
        """The best of the others."""
        return next((f for f in self.finalists if f.role != "winner" and f.figure is not None), None)

    @property
    def level(self) -> list[Finalist]:
        """The others that may be as good as the winner."""
        return [f for f in self.finalists if f.role != "winner" and f.place in ("leader", "tied")]


def verdict_of(material: Material) -> Verdict:
    """Reads a study's finals; none when they are not those of its trials."""
    best = material.best
    if not material.finals or best is None or not best["time_ms"]:
        return Verdict()
    objective = ENERGY if material.summary.get("objective") == ENERGY else TIME
    found = [_finalist(material, entry, best, objective) for entry in material.finals]
    found.sort(key=lambda f: (f.role != "winner", f.figure is None, f.figure or 0.0))
    measured = material.winner.measurement if material.winner else {}
    declared, rule = measured.get("declared"), measured.get("rule")
    return Verdict(
        tuple(found),
        declared if isinstance(declared, bool) else None,
        rule if isinstance(rule, str) else "",
        objective,
    )


def _finalist(
    material: Material, entry: Mapping[str, Any], best: Mapping[str, Any], objective: str
) -> Finalist:
    details = entry.get("details")
    # Studies of before the finals were ranked have the intervals among the details.
    figures = {**(details if isinstance(details, Mapping) else {}), **entry}
    low, high = _pair(figures.get("ci95_ms"))
    low_j, high_j = _pair(figures.get("energy_ci95_j"))
    joules = figures.get("energy_j")
    config, template = entry["config"], entry["template"]
    is_winner = config == best["config"] and template == best["template"]
    ok = entry["outcome"] == "ok" and bool(entry.get("time_ms"))
    found = Finalist(
        config=config,
        template=template,
        time_ms=entry["time_ms"] if ok else None,
        low_ms=low,
        high_ms=high,
        energy_j=float(joules) if isinstance(joules, int | float) else None,
        low_j=low_j,
        high_j=high_j,
        objective=objective,
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
    if not isinstance(place, str) or place not in _WORDS[TIME]:
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
            "few_rounds": too_few_rounds(figures),
        }
    )


def _pair(value: Any) -> tuple[float | None, float | None]:
    if isinstance(value, list | tuple) and len(value) == 2:
        low, high = value
        if all(isinstance(end, int | float) and not isinstance(end, bool) for end in value):
            return float(low), float(high)
    return None, None
