# SPDX-License-Identifier: Apache-2.0
"""What a study says, from storage alone: the facts that ``tune --json`` and ``show`` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .limits import TIME
from .outcome import TrialOutcome, TrialResult
from .ranking import LEADER, TIED
from .stored import ABOUT, checked
from .study import Study, finished_count, tally

Entry = dict[str, Any]
MISBEHAVED = (TrialOutcome.WRONG_RESULT, TrialOutcome.TIMEOUT, TrialOutcome.CRASH)
MOST_MISBEHAVED = 50
"""Of each outcome, so that a document stays short where a whole template is broken."""


def summarise(study: Study, results: list[TrialResult] | None = None) -> dict[str, Any]:
    """The study in plain JSON: operator, target, device, workload, study, outcomes, best, default and more
    (``searched_ms``: the best time that the search saw, before the finals; ``finals_held``, ``finals``,
    ``declared``, ``ties``: see `finals_entry`).

    Args:
        results: the study's results, when they are at hand already.
    """
    found = study.results() if results is None else results
    about = checked(study.about, ABOUT, f"study {study.name}")
    best, default, finals = best_entry(study, found), default_entry(study, found), finals_entry(study, found)
    return {
        "operator": about["operator"],
        "target": about["target"]["kind"],
        "arch": about["target"]["arch"],
        "device": about["target"]["device"],
        "workload": about["workload"],
        "problem": about["problem"],
        "precision": about["precision"],
        "study": study.name,
        "templates": list(about["spaces"]),
        "compiler": about["compiler"],
        "driver": about["driver"],
        "created": about["created"],
        "touched": study.touched,
        "finished": finished_count(found),
        "outcomes": tally(found),
        "misbehaved": misbehaved(found),
        "best": best,
        **finals,
        "searched_ms": found_ms[0].time_ms if (found_ms := ranked(found)) else None,
        "default": default,
        "over_default": over_default(best, default, finals["finals"] if finals["finals_held"] else ()),
    }


def over_default(best: Entry | None, default: Entry | None, finals: Sequence[Entry]) -> float | None:
    """How many times as fast as the default the best is: by the ratios of the rounds that both were timed in
    where they were, as medians of busy rounds may be far apart; else by their times. None where either is
    missing or has no time.

    Args:
        best, default: Of the summary.
        finals: Rows of the finals, each with its ``ratio`` to the leader (null: it is the leader).
    """
    if not best or not default or not default["time_ms"]:
        return None
    rows = [next((row for row in finals if same_point(row, one)), None) for one in (best, default)]
    ratios = [
        None if row is None else 1.0 if row.get("standing") == LEADER else row.get("ratio") for row in rows
    ]
    if ratios[0] and ratios[1]:
        return ratios[1] / ratios[0]
    return default["time_ms"] / best["time_ms"]


def is_alike(ratio: float) -> bool:
    """Whether a speed-up is none that one would name."""
    return 0.995 <= ratio < 1.005


def may_be_equal(summary: Mapping[str, Any]) -> bool:
    """Whether the finals leave open that the default is as good as the best."""
    rows = summary.get("finals") or () if summary.get("finals_held") else ()
    return any(row.get("standing") in (LEADER, TIED) and same_point(row, summary["default"]) for row in rows)


def same_point(row: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Whether two entries are of one config of one template."""
    return row.get("template") == entry.get("template") and row.get("config") == entry.get("config")


def best_entry(study: Study, results: list[TrialResult]) -> Entry | None:
    """The winner of the finals; before them, the best of the search. None when no variant works."""
    winner = study.winner
    if winner is not None and study.winner_is_current(len(results)):
        stored = winner["winner"]
        return {
            **_entry({**stored["measurement"], "config": stored["config"], "template": stored["template"]}),
            "resources": stored["resources"],
            "from": "finals",
        }
    best = ranked(results)[:1]
    return _searched(best[0]) if best else None


def finals_entry(study: Study, results: list[TrialResult]) -> Entry:
    """The finals as they stand in the study: ``finals_held`` (whether with all of its trials), ``finals``
    (rows; see `finals.decide`), ``declared`` (whether the winner is surely the fastest; null: nobody asked),
    ``ties`` (those that may be as fast, the leader first) and the ``rule`` that chose among these, and the
    ``objective`` that decided them ("time" or "energy").
    """
    held = study.winner_is_current(len(results))
    winner = study.winner if held else None
    return {
        "finals_held": held,
        "finals": study.finals,
        "declared": None if winner is None else winner.get("declared"),
        "ties": (winner or {}).get("ties") or [],
        "rule": (winner or {}).get("rule") or "",
        "objective": (winner or {}).get("objective") or TIME,
    }


def default_entry(study: Study, results: list[TrialResult]) -> Entry | None:
    """The default config of the study's first template that has a legal one. None before it ran, and where
    the problem allows none.
    """
    defaults = study.defaults
    # A study that no run of this version has touched says it of each result.
    marked = (
        r.details.get("default") if not defaults else defaults.get(r.template) == r.config for r in results
    )
    first = next((result for result, yes in zip(results, marked, strict=True) if yes), None)
    if first is None:
        return None
    if study.winner_is_current(len(results)):
        for finalist in study.finals:
            if _same(finalist, first) and finalist["outcome"] == TrialOutcome.OK:
                return {**_entry(finalist), "outcome": finalist["outcome"], "from": "finals"}
    return {**_searched(first), "outcome": first.outcome.value}


def ranked(results: list[TrialResult]) -> list[TrialResult]:
    """The working variants, the fastest first."""
    return sorted((r for r in results if r.ok and r.time_ms is not None), key=lambda r: r.time_ms or 0.0)


def failures(results: list[TrialResult]) -> dict[str, tuple[int, str]]:
    """Cause -> how many, and the reason of the first."""
    found: dict[str, tuple[int, str]] = {}
    for result in results:
        if not result.ok:
            count, reason = found.get(result.outcome.value, (0, result.reason))
            found[result.outcome.value] = (count + 1, reason)
    return found


def misbehaved(results: list[TrialResult]) -> list[Entry]:
    """Which variants compiled and ran but were wrong, hung or crashed, with the reason of each: often only a
    machine that is gone by then shows it again.

    Returns:
        At most MOST_MISBEHAVED of each outcome, in the order of the trials.
    """
    found = []
    for outcome in MISBEHAVED:
        those = [result for result in results if result.outcome is outcome]
        found += [
            {
                "outcome": outcome.value,
                "template": result.template,
                "config": dict(result.config),
                "reason": result.reason,
                "code_digest": result.code_digest,
            }
            for result in those[:MOST_MISBEHAVED]
        ]
    return found


def _same(finalist: Mapping[str, Any], result: TrialResult) -> bool:
    return finalist["template"] == result.template and finalist["config"] == dict(result.config)


def _entry(data: Mapping[str, Any]) -> Entry:
    """With ``energy_j`` where it was read, and the floor's ``limit`` where it is known."""
    energy = {} if data.get("energy_j") is None else {"energy_j": data["energy_j"]}
    plain = ("config", "template", "time_ms", "floor_ms", "error")
    details = data.get("details")
    limit = _limit(details if isinstance(details, Mapping) else data)
    return {**{name: data.get(name) for name in plain}, **limit, **energy}


def _limit(details: Mapping[str, Any]) -> Entry:
    """What sets the floor: memory or arithmetic."""
    floor = details.get("floor")
    limit = floor.get("limit") if isinstance(floor, Mapping) else None
    return {"limit": limit} if limit in ("memory", "arithmetic") else {}


def entry_of(result: TrialResult) -> Entry:
    """A timed config as the documents show it."""
    return {
        "config": dict(result.config),
        "template": result.template,
        "time_ms": result.time_ms,
        "floor_ms": result.details.get("floor_ms"),
        **_limit(result.details),
        "error": result.error,
        "resources": dict(result.resources),
    }


def _searched(result: TrialResult) -> Entry:
    return {**entry_of(result), "from": "search"}
