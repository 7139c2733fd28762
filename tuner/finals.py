# SPDX-License-Identifier: Apache-2.0
"""The finals: the best configs and the defaults timed once more, interleaved, and the winner that is
stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..codegen.compile import Artifact
from .outcome import TrialResult
from .plan import Plan
from .search import Point
from .study import Study, thinned
from .tools import Compiler, Job
from .winners import winner_record


@dataclass(frozen=True)
class Finals:
    """What was timed again: jobs and their results, one for each, in the same order."""

    jobs: Sequence[Job]
    results: Sequence[TrialResult]

    def best(self) -> tuple[Job, TrialResult] | None:
        """The fastest that is still right; the earlier one of equals. None when none is."""
        timed = [pair for pair in zip(self.jobs, self.results, strict=True) if pair[1].ok and pair[1].time_ms]
        return min(timed, key=lambda pair: pair[1].time_ms or 0.0, default=None)


def choose_finalists(results: Sequence[TrialResult], plan: Plan, count: int) -> list[Point]:
    """The best ``count`` points by search time, each machine code once, then the default of each template if
    it worked and is not among them."""
    timed = sorted((r for r in results if r.ok and r.time_ms is not None), key=lambda r: r.time_ms or 0.0)
    distinct = [r for r in timed if "same_code_as" not in r.details]
    chosen = [Point(r.template, r.config) for r in distinct[:count]]
    working = {Point(r.template, r.config).key: Point(r.template, r.config) for r in timed}
    for template, config in plan.defaults.items():
        point = working.get(Point(template, config).key)
        if point is not None and point.key not in {p.key for p in chosen}:
            chosen.append(point)
    return chosen


def compiled_again(plan: Plan, compiler: Compiler, points: Sequence[Point]) -> list[Job]:
    """The points compiled, through the cache: some may be from an earlier run. One that fails now is left out
    rather than lose the finals."""
    sources = [plan.source(point) for point in points]
    answers = dict(compiler.compile(sources))
    return [
        Job(point, source, answer)
        for position, (point, source) in enumerate(zip(points, sources, strict=True))
        if isinstance(answer := answers[position], Artifact)
    ]


def decide(plan: Plan, study: Study, finals: Finals, trials: int) -> None:
    """Stores the finals and their winner. When none of the finalists worked again, the old winner stays.

    Args:
        trials: stored trials at the time of the finals.
    """
    best = finals.best()
    if best is None:
        return
    entries = [_finalist(job, result) for job, result in zip(finals.jobs, finals.results, strict=True)]
    study.set_winner(winner_record(plan, study.name, *best, trials, final=True), entries)


def keep_provisional(plan: Plan, study: Study, job: Job, result: TrialResult) -> None:
    """After an interrupted search: stores the best variant so far with its search time, unless the stored
    winner is at least as fast.

    Args:
        job: the best variant.
        result: its search result.
    """
    known = study.winner
    if result.time_ms is not None and (known is None or result.time_ms < known["time_ms"]):
        study.set_winner(winner_record(plan, study.name, job, result, trials=0, final=False), [])


def _finalist(job: Job, result: TrialResult) -> dict[str, Any]:
    return {
        "template": job.point.template,
        "config": dict(job.point.config),
        "outcome": result.outcome.value,
        "reason": result.reason,
        "time_ms": result.time_ms,
        "floor_ms": result.details.get("floor_ms"),
        "error": result.error,
        "samples_ms": thinned(result.samples_ms),
        "details": dict(result.details),
        "resources": job.artifact.resources.to_dict(),
    }
