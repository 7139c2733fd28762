# SPDX-License-Identifier: Apache-2.0
"""Many runs of one sampler on one space, in figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .recorded import Recorded
from .run import Run

WITHIN = {"5pct": 0.05, "1pct": 0.01}
AFTER = (50, 100, 200)
MISSED = 2
"""Times the budget is what a run counts for that did not get there."""


def row_of(
    recorded: Recorded, sampler: str, runs: Sequence[Run], budget: int, warm_start: str | None = None
) -> dict[str, Any]:
    """The figures of a sampler on a space, plain JSON.

    `warm_start` names the space that a study of the sampler's was begun with.

    `to_5pct_*` are evaluations until the best was within 5% of the optimum, over the seeds: median, 90th
    percentile, geometric mean, and the share of runs that got there within the budget. `ratio_at` is the
    median of best / optimum after so many evaluations, None beyond the budget.
    """
    row: dict[str, Any] = {
        "space": recorded.name,
        "sampler": sampler,
        "warm_start": warm_start,
        "seeds": len(runs),
        "budget": budget,
        "configs": len(recorded.feasible),
        "failed_configs": int(np.isnan(recorded.times).sum()),
    }
    for name, share in WITHIN.items():
        row |= _reached(name, runs, recorded.optimum * (1 + share), budget)
        row[f"configs_within_{name}"] = int((recorded.times <= recorded.optimum * (1 + share)).sum())
    row["ratio_at"] = {str(after): _ratio(runs, recorded.optimum, after, budget) for after in AFTER}
    row["repeats_mean"] = round(float(np.mean([run.repeats for run in runs])), 2)
    row["outside_mean"] = round(float(np.mean([run.outside for run in runs])), 2)
    row["ask_ms"] = round(1e3 * sum(run.ask_s for run in runs) / max(1, sum(run.asks for run in runs)), 3)
    return row


def _reached(name: str, runs: Sequence[Run], limit: float, budget: int) -> dict[str, Any]:
    found = [run.reached(limit) for run in runs]
    counted = np.array([MISSED * budget if count is None else count for count in found], dtype=float)
    return {
        f"to_{name}_median": float(np.median(counted)),
        f"to_{name}_p90": float(np.quantile(counted, 0.9)),
        f"to_{name}_geomean": round(float(np.exp(np.log(counted).mean())), 2),
        f"to_{name}_share": sum(count is not None for count in found) / len(runs),
    }


def _ratio(runs: Sequence[Run], optimum: float, after: int, budget: int) -> float | None:
    if after > budget:
        return None
    best = [run.best(after) for run in runs]
    ratios = np.array([np.inf if found is None else found / optimum for found in best])
    median = float(np.median(ratios))
    return round(median, 4) if np.isfinite(median) else None


def overall(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By sampler and what it was begun with, over all spaces: shares of runs that got there, geometric means
    of evaluations."""
    found = []
    for kind in dict.fromkeys((row["sampler"], row["warm_start"]) for row in rows):
        own = [row for row in rows if (row["sampler"], row["warm_start"]) == kind]
        total: dict[str, Any] = {"sampler": kind[0], "warm_start": kind[1], "spaces": len(own)}
        for name in WITHIN:
            total[f"to_{name}_share"] = round(float(np.mean([row[f"to_{name}_share"] for row in own])), 4)
            logs = np.log([row[f"to_{name}_geomean"] for row in own])
            total[f"to_{name}_geomean"] = round(float(np.exp(np.mean(logs))), 2)
        found.append(total)
    return found


def compared(cold: dict[str, Any], warm: dict[str, Any]) -> dict[str, Any]:
    """How many times the evaluations were without the other study what they are with it: of the medians, and
    of the geometric means.

    Args:
        cold, warm: rows of the same space, sampler and seeds.
    """
    found: dict[str, Any] = {name: warm[name] for name in ("space", "sampler", "warm_start")}
    for name in WITHIN:
        for figure in ("median", "geomean"):
            key = f"to_{name}_{figure}"
            found[f"fewer_{name}_{figure}"] = round(cold[key] / warm[key], 2)
    return found
