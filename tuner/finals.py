# SPDX-License-Identifier: Apache-2.0
"""The finals: the best configs and the defaults timed once more, interleaved, and the winner that is
stored, with what is known of how sure it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..codegen.compile import Artifact
from ..codegen.compile.nvrtc import own_arch
from .intervals import Interval, median_interval
from .limits import ENERGY, TIME
from .outcome import TrialResult
from .plan import Plan
from .ranking import RULE, Place, Ranking, rank, rank_apart
from .search import Point
from .study import Study, thinned
from .tools import Compiler, Job, Measurer
from .winners import PORTABLE, winner_record

_ROUNDS = 4


FAILED = "failed"
"""The standing of a finalist that did not work again."""


@dataclass(frozen=True)
class Verdict:
    """Who won.

    Attributes:
        ranking: Of the finalists that worked again.
        places: For each of these its index among all finalists.
        chosen: The winner's index among all finalists.
    """

    ranking: Ranking
    places: Sequence[int]
    chosen: int

    @property
    def tied(self) -> list[int]:
        """Who may be as fast as the leader, the leader included and first: indices among all finalists. Empty
        when nobody else is."""
        tied = self.ranking.tied
        return [self.places[index] for index in (self.ranking.leader, *tied)] if tied else []

    def place_of(self, finalist: int) -> Place | None:
        """Where a finalist ended; None when it did not work again."""
        return self.ranking.places[self.places.index(finalist)] if finalist in self.places else None


@dataclass(frozen=True)
class Finals:
    """What was timed again: jobs and their results, one for each, in the same order.

    Attributes:
        order: Point key -> the number of its trial, for ties.
        objective: What decides; the figures of a verdict by `ENERGY` are joules.
    """

    jobs: Sequence[Job]
    results: Sequence[TrialResult]
    order: Mapping[str, int]
    objective: str = TIME

    @property
    def working(self) -> list[int]:
        """Indices of those that are still right, and have the figure that decides."""
        right = [index for index, result in enumerate(self.results) if result.ok and result.time_ms]
        if self.objective == TIME:
            return right
        return [index for index in right if self.results[index].details.get("energy_samples_j")]

    def verdict(self) -> Verdict | None:
        """Who won, by `ranking`'s rules; None when none works."""
        places = self.working
        if not places:
            return None
        results = [self.results[index] for index in places]
        if self.objective == ENERGY:
            turns = [dict(enumerate(result.details["energy_samples_j"])) for result in results]
            return self._chosen(rank(turns), places)
        # Without rounds each was timed by itself: the worker was lost in the finals.
        rounds = {result.details.get("rounds") for result in results}
        if len(rounds) == 1 and None not in rounds and all(result.samples_ms for result in results):
            ranking = rank([dict(enumerate(result.samples_ms)) for result in results])
        else:
            ranking = rank_apart([_interval(r) for r in results], [r.time_ms or 0.0 for r in results])
        return self._chosen(ranking, places)

    def _chosen(self, ranking: Ranking, places: Sequence[int]) -> Verdict:
        chosen = ranking.chosen([self._cost(index) for index in places])
        return Verdict(ranking, places, places[chosen])

    def _cost(self, index: int) -> tuple[int, ...]:
        """What decides among equals; see `ranking.RULE`."""
        job = self.jobs[index]
        resources = job.artifact.resources
        return (resources.registers, resources.code_bytes, self.order.get(job.point.key, len(self.order)))

    @property
    def failure(self) -> str:
        """Why there is no winner."""
        if not self.jobs:
            return "none of the best variants compiled again for the finals"
        if self.objective == ENERGY and any(result.ok for result in self.results):
            return "the device told no energy of the best variants in the finals"
        return f"none of the {len(self.jobs)} best variants worked in the finals: {self.results[0].reason}"


def _interval(result: TrialResult) -> Interval:
    time_ms = result.time_ms or 0.0
    return median_interval(result.samples_ms) if result.samples_ms else Interval(time_ms, time_ms)


def choose_finalists(
    results: Sequence[TrialResult], plan: Plan, count: int, without: Collection[str] = ()
) -> list[Point]:
    """The best ``count`` points by search time, each machine code once, then the best of those that other
    architectures can run too if there is none among them, then the default of each template if it worked and
    is not among them.

    Args:
        without: keys of points that are not to be chosen.
    """
    results = [r for r in results if Point(r.template, r.config).key not in without] if without else results
    timed = sorted((r for r in results if r.ok and r.time_ms is not None), key=lambda r: r.time_ms or 0.0)
    distinct = [r for r in timed if "same_code_as" not in r.details]
    chosen = [Point(r.template, r.config) for r in distinct[:count]]
    if not plan.portable_templates & {point.template for point in chosen}:
        portable = (r for r in distinct if r.template in plan.portable_templates)
        chosen += [Point(r.template, r.config) for r in itertools.islice(portable, 1)]
    working = {Point(r.template, r.config).key: Point(r.template, r.config) for r in timed}
    for template, config in plan.defaults.items():
        point = working.get(Point(template, config).key)
        if point is not None and point.key not in {p.key for p in chosen}:
            chosen.append(point)
    return chosen


def hold(
    plan: Plan,
    compiler: Compiler,
    measurer: Measurer,
    results: Sequence[TrialResult],
    count: int,
    objective: str = TIME,
) -> Finals:
    """Times the best variants of the search again, and reads their energy where that decides; when none of
    them works, the next best, a few times."""
    order: dict[str, int] = {}
    for number, result in enumerate(results):
        order.setdefault(Point(result.template, result.config).key, number)
    finals, tried = Finals([], [], order, objective), set[str]()
    energy = objective == ENERGY
    for _ in range(_ROUNDS):
        points = choose_finalists(results, plan, count, tried)
        if finals.working or not points:
            break
        tried |= {point.key for point in points}
        jobs = compiled_again(plan, compiler, points)
        results_again = [*finals.results, *measurer.finals(jobs, energy=energy)]
        finals = Finals([*finals.jobs, *jobs], results_again, order, objective)
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
    verdict = finals.verdict()
    if verdict is None:
        return False
    rows = [_finalist(finals, verdict, index) for index in range(len(finals.jobs))]
    job, result = finals.jobs[verdict.chosen], finals.results[verdict.chosen]
    names = ("ci95_ms", "energy_ci95_j", "ratio", "ratio_ci95", "ratio_deciding")
    shown = {name: rows[verdict.chosen][name] for name in names if name in rows[verdict.chosen]}
    ties = [named(finals.jobs[index]) for index in verdict.tied]
    sure = {
        "declared": verdict.ranking.declared,
        "ties": ties,
        "rule": RULE if ties else "",
        "objective": finals.objective,
    }
    result = replace(result, details={**result.details, **shown, **sure})
    record = winner_record(plan, study.name, job, result, trials, final=True)
    beside = portable_beside(finals, verdict)
    if beside is not None:
        portable = finals.jobs[beside], finals.results[beside]
        kept = winner_record(plan, study.name, *portable, trials, final=True, portable_only=True)
        record[PORTABLE] = kept["winner"]
    study.set_winner({**record, **sure}, rows)
    return True


def portable_beside(finals: Finals, verdict: Verdict) -> int | None:
    """Where no other architecture has the winner's instructions: the index of the fastest finalist that can
    run on others too, if there is one."""
    if own_arch(finals.jobs[verdict.chosen].source.text) is None:
        return None
    portable = [i for i in finals.working if own_arch(finals.jobs[i].source.text) is None]
    return min(portable, key=lambda i: finals.results[i].time_ms or math.inf, default=None)


def named(job: Job) -> dict[str, Any]:
    """A finalist as ties name it."""
    return {"template": job.point.template, "config": dict(job.point.config)}


def keep_provisional(plan: Plan, study: Study, job: Job, result: TrialResult) -> None:
    """After an interrupted search: stores the best variant so far with its search time, unless the stored
    winner is at least as fast, or was chosen for its energy.

    Args:
        job: the best variant.
        result: its search result.
    """
    known = study.winner
    better = known is None or (
        known.get("objective") != ENERGY and (result.time_ms or 0.0) < known["time_ms"]
    )
    if result.time_ms is not None and better:
        study.set_winner(winner_record(plan, study.name, job, result, trials=0, final=False), [])


def _finalist(finals: Finals, verdict: Verdict, index: int) -> dict[str, Any]:
    job, result = finals.jobs[index], finals.results[index]
    row = {
        **named(job),
        "outcome": result.outcome.value,
        "reason": result.reason,
        "standing": FAILED,
        "chosen": index == verdict.chosen,
        "time_ms": result.time_ms,
        "floor_ms": result.details.get("floor_ms"),
        "energy_j": result.details.get("energy_j"),
        "error": None if result.error is None or not math.isfinite(result.error) else result.error,
        "samples_ms": thinned(result.samples_ms),
        "details": dict(result.details),
        "resources": job.artifact.resources.to_dict(),
    }
    place = verdict.place_of(index)
    if place is None:
        return row
    row |= {"standing": place.standing, "ci95_ms": place.ci95_ms.to_list()}
    if finals.objective == ENERGY:
        row |= {"ci95_ms": _interval(result).to_list(), "energy_ci95_j": place.ci95_ms.to_list()}
    return row if place.ratio is None else {**row, **place.ratio.to_dict()}
