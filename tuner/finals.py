# SPDX-License-Identifier: Apache-2.0
"""The finals: the best configs and the defaults timed once more, interleaved, and the winner that is
stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..codegen.compile import Artifact
from .outcome import TrialResult
from .plan import Plan
from .search import Point
from .study import Study, thinned
from .tools import Compiler, Job, Measurer
from .winners import winner_record

_ROUNDS = 4


@dataclass(frozen=True)
class Finals:
    """What was timed again: jobs and their results, one for each, in the same order."""

    jobs: Sequence[Job]
    results: Sequence[TrialResult]

    def best(self) -> tuple[Job, TrialResult] | None:
        """The fastest that is still right; the earlier one of equals. None when none is."""
        timed = [pair for pair in zip(self.jobs, self.results, strict=True) if pair[1].ok and pair[1].time_ms]
        return min(timed, key=lambda pair: pair[1].time_ms or 0.0, default=None)

    @property
    def failure(self) -> str:
        """Why there is no winner."""
        if not self.jobs:
            return "none of the best variants compiled again for the finals"
        return f"none of the {len(self.jobs)} best variants worked in the finals: {self.results[0].reason}"


def choose_finalists(
    results: Sequence[TrialResult], plan: Plan, count: int, without: Collection[str] = ()
) -> list[Point]:
    """The best ``count`` points by search time, each machine code once, then the default of each template if
    it worked and is not among them.

    Args:
        without: keys of points that are not to be chosen.
    """
    results = [r for r in results if Point(r.template, r.config).key not in without] if without else results
    timed = sorted((r for r in results if r.ok and r.time_ms is not None), key=lambda r: r.time_ms or 0.0)
    distinct = [r for r in timed if "same_code_as" not in r.details]
    chosen = [Point(r.template, r.config) for r in distinct[:count]]
    working = {Point(r.template, r.config).key: Point(r.template, r.config) for r in timed}
    for template, config in plan.defaults.items():
        point = working.get(Point(template, config).key)
        if point is not None and point.key not in {p.key for p in chosen}:
            chosen.append(point)
    return chosen


def hold(
    plan: Plan, compiler: Compiler, measurer: Measurer, results: Sequence[TrialResult], count: int
) -> Finals:
    """Times the best variants of the search again; when none of them works, the next best, a few times."""
    finals, tried = Finals([], []), set[str]()
    for _ in range(_ROUNDS):
        points = choose_finalists(results, plan, count, tried)
        if finals.best() is not None or not points:
            break
        tried |= {point.key for point in points}
        jobs = compiled_again(plan, compiler, points)
        finals = Finals([*finals.jobs, *jobs], [*finals.results, *measurer.finals(jobs)])
    return finals


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


def decide(plan: Plan, study: Study, finals: Finals, trials: int) -> bool:
    """Stores the finals and their winner; whether there is one. When none of the finalists worked again, the
    old winner stays.

    Args:
        trials: stored trials at the time of the finals.
    """
    best = finals.best()
    if best is None:
        return False
    entries = [_finalist(job, result) for job, result in zip(finals.jobs, finals.results, strict=True)]
    study.set_winner(winner_record(plan, study.name, *best, trials, final=True), entries)
    return True


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
