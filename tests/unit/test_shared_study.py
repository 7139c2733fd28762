# SPDX-License-Identifier: Apache-2.0
"""The tuning loop beside other tuners on the same study, on a pretended compiler and worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from coldforge.tuner import study as study_module
from coldforge.tuner.known import given_up
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.study import Study
from coldforge.tuner.tools import NO_TERMS, Terms
from optuna.trial import FrozenTrial
from pretend import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def _finish(bench: Bench, count: int) -> None:
    """What another tuner does: finishes so many of the first configs that this one has not measured."""
    feasible = bench.plan.feasible()
    others = [i for i, point in enumerate(feasible.points) if point.key not in bench.worker.measured]
    _finish_these(bench, others[:count])


def _finish_these(bench: Bench, indices: Iterable[int]) -> None:
    feasible = bench.plan.feasible()
    for index in indices:
        result = TrialResult(TrialOutcome.OK, time_ms=50.0 + index)
        bench.study.record(feasible.points[index], result, feasible.distributions_of(index))


@pytest.mark.parametrize(
    ("jobs", "count", "trials", "when", "compile_s", "device_s"),
    [(1, 2, 7, 3, 5.0, 7.0), (2, 3, 9, 4, 5.0, 1.0), (1, 1, 6, 2, 3.0, 0.5)],
)
def test_others_finish_what_is_queued_and_the_total_is_reached(
    bench: Bench, jobs: int, count: int, trials: int, when: int, compile_s: float, device_s: float
) -> None:
    bench.compiler.on_submit = lambda number: _finish(bench, count) if number == when else None
    bench.compiler.seconds, bench.worker.seconds = compile_s, device_s
    assert bench.tune(jobs=jobs, trials=trials, sampler="exhaustive") == "ok"
    assert bench.tuner is not None
    assert bench.tuner.numbers()["finished"] == trials


def test_what_another_one_claims_is_left_to_it(bench: Bench) -> None:
    """It finishes some while this one works, the last while this one has nothing else to do."""
    feasible = bench.plan.feasible()
    theirs = [feasible.points[index] for index in (1, 2, 5)]
    ends = {theirs[0].key: 2.0, theirs[1].key: 7.0, theirs[2].key: 40.0}

    def claims() -> frozenset[str]:
        done = bench.keys()
        for index, point in enumerate(feasible.points):
            if ends.get(point.key, 1e9) <= bench.world.now and f"{point.params}" not in done:
                result = TrialResult(TrialOutcome.OK, time_ms=50.0)
                bench.study.record(point, result, feasible.distributions_of(index))
        return frozenset(ends)

    bench.record.others = claims
    bench.compiler.seconds, bench.worker.seconds = 0.5, 1.0
    assert bench.tune(jobs=2, trials=10, sampler="exhaustive") == "ok"
    assert len(set(bench.keys())) == len(bench.keys()) == 10
    assert not set(bench.worker.measured) & ends.keys()
    assert len(bench.compiler.compiled) == 7 + len(bench.worker.finalists)
    assert 40.0 <= bench.world.now < 41.0


def test_what_a_tuner_claimed_that_ended_is_tried_here(bench: Bench) -> None:
    feasible = bench.plan.feasible()
    theirs = frozenset(feasible.points[index].key for index in (1, 2))
    bench.record.others = lambda: theirs if bench.world.now < 30.0 else None
    bench.worker.seconds = 1.0
    assert bench.tune(trials=10, sampler="exhaustive") == "ok"
    assert len(set(bench.keys())) == len(bench.keys()) == 10
    assert set(bench.record.claimed) == set(bench.worker.measured)
    assert bench.tune(trials=len(feasible), sampler="exhaustive") == "ok"
    assert theirs <= set(bench.worker.measured)


def _stored_when_the_next_begins(bench: Bench) -> list[int]:
    stored: list[int] = []
    bench.record.others = lambda: frozenset()
    bench.worker.before = lambda number: stored.append(len(bench.study.trials()))
    bench.compiler.seconds = 0.1
    bench.tune(trials=60, jobs=2)
    return stored


def test_beside_another_one_the_device_does_not_wait_for_the_storage(bench: Bench) -> None:
    """A claim is enough, until few are left."""
    bench.worker.seconds = 0.3
    gaps = [number - count for number, count in enumerate(_stored_when_the_next_begins(bench))]
    assert gaps[2:50] == 48 * [1]
    assert set(gaps[-6:]) == {0}


def test_after_a_silence_what_others_did_is_looked_at_before_the_next_config(bench: Bench) -> None:
    bench.worker.seconds = 1.5
    assert _stored_when_the_next_begins(bench) == list(range(60))


def test_beside_another_one_the_study_is_not_read_at_each_step(bench: Bench) -> None:
    bench.record.others = lambda: frozenset()
    bench.compiler.seconds, bench.worker.seconds = 0.01, 0.01
    reads: list[float] = []
    search_all = Study.trials_beside

    def counted(study: Study, known: Collection[int]) -> list[FrozenTrial]:
        reads.append(bench.world.now)
        return search_all(study, known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Study, "trials_beside", counted)
        bench.tune(trials=300, jobs=2, sampler="random")
    early = [now for now in reads if now < 2.8]
    assert 10 < len(early) <= 2 + 2.8 / 0.2


def test_each_trial_is_read_once(bench: Bench) -> None:
    """Reading all of them again whenever one is new takes longer than measuring."""
    feasible = bench.plan.feasible()
    bench.record.others = lambda: frozenset()
    bench.worker.seconds = 0.3
    bench.worker.before = lambda number: _finish_these(bench, [len(feasible) - 1 - number])
    checked, read = study_module.checked_trial, Counter[str]()

    def counted(data: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        read[where] += 1
        return checked(data, where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_module, "checked_trial", counted)
        bench.tune(trials=60, finals=False, sampler="exhaustive")
    assert len(bench.keys()) == 60
    assert set(read.values()) == {1}


def test_what_others_are_at_is_not_asked_for(bench: Bench) -> None:
    """A search that would ask for the same has no use of a refusal."""
    theirs = [point.key for point in bench.plan.feasible().points[1:20]]
    bench.record.others = lambda: frozenset(theirs) if bench.world.now < 30.0 else None
    refused: list[str] = []
    claim = bench.record.claim

    def watched(key: str, terms: Terms) -> bool:
        if not (claimed := claim(key, terms)):
            refused.append(key)
        return claimed

    bench.record.claim = watched
    bench.worker.seconds = 1.0
    assert bench.tune(trials=10, sampler="exhaustive") == "ok"
    assert refused == []


def test_a_tuner_that_departed_is_followed_at_once(bench: Bench) -> None:
    """What it finished last is known here before it is asked for."""
    bench.record.others = lambda: frozenset()
    bench.worker.seconds = 0.01

    def depart(number: int) -> None:
        if number == 3:
            _finish_these(bench, range(8, 14))
            bench.record.others = lambda: None
        bench.record.departed = number == 3

    bench.worker.before = depart
    assert bench.tune(trials=40, sampler="exhaustive") == "ok"
    assert len(set(bench.keys())) == len(bench.keys()) == 40


def test_withdrawn_configs_are_released(bench: Bench) -> None:
    bench.compiler.seconds, bench.worker.seconds = 0.1, 1.0
    assert bench.tune(trials=None, time_budget_s=5.0, jobs=4) == "ok"
    assert sorted(bench.record.claimed) == sorted(bench.worker.measured)


def test_beside_another_one_the_random_stream_is_another(tmp_path: Path) -> None:
    def first(others: frozenset[str] | None) -> list[str]:
        bench = Bench(tmp_path)
        bench.record.others = lambda: others
        bench.tune(trials=12, sampler="random")
        return bench.worker.measured

    assert first(None) == first(None)
    assert first(frozenset()) != first(None)


def test_a_study_that_is_full_ends_the_search(bench: Bench) -> None:
    """A binding record counts what this run does not know of; it is not asked again and again."""
    bench.record.binding, asked = True, []

    def claim(key: str, terms: Terms) -> bool:
        asked.append(bench.world.now)
        bench.record.full = len(asked) > 5
        return not bench.record.full

    bench.record.claim = claim
    bench.worker.seconds = 1.0
    assert bench.tune(trials=10, sampler="exhaustive") == "ok"
    assert len(bench.keys()) == 5
    assert len(asked) <= 5 + 1 + bench.world.now


def test_what_is_given_back_after_a_refusal_is_tried(bench: Bench) -> None:
    """Another one is at the last config when this one claims it, and gives it back before this one looks."""
    record, refused = bench.record, []
    record.binding = True
    claim_it = record.claim

    def claim(key: str, terms: Terms) -> bool:
        record.full = len(record.claimed) == 9 and not refused
        if record.full:
            refused.append(key)
        return not record.full and claim_it(key, terms)

    record.claim = claim
    bench.worker.seconds = 0.1
    assert bench.tune(trials=10, sampler="exhaustive") == "ok"
    assert refused
    assert len(bench.keys()) == 10


@pytest.mark.parametrize("alone", [True, False])
def test_what_others_took_during_a_silence_is_left_to_them(bench: Bench, alone: bool) -> None:
    """This run stood still; what it had queued is under way elsewhere when it goes on."""
    taken: set[str] = set()
    running: list[str] = []

    def stop(number: int) -> None:
        if number == 3:
            bench.world.now += 500.0
            running.append(bench.record.begun[-1])
            taken.update({*bench.record.claimed} - {*bench.worker.measured, *running})

    bench.record.others = lambda: None if alone and not taken else frozenset(taken)
    bench.worker.before = stop
    bench.compiler.seconds, bench.worker.seconds = 0.01, 1.0
    bench.tune(trials=40, jobs=2, sampler="exhaustive", finals=False, time_budget_s=520.0)
    assert len(taken) > 1
    assert len(bench.worker.measured) > 10
    assert not taken & {*bench.worker.measured}
    assert not taken & {*bench.record.claimed}, "and given back, should they leave it"


def test_it_is_said_now_and_then_that_a_busy_run_lives(bench: Bench) -> None:
    beats: list[float] = []

    def beat() -> float:
        beats.append(bench.world.now)
        return 20.0

    bench.record.beat = beat
    bench.compiler.seconds, bench.worker.seconds = 100.0, 300.0
    bench.tune(trials=3, finals=False)
    assert max(after - before for before, after in pairwise([0.0, *beats, bench.world.now])) <= 20.0


def test_what_was_given_back_comes_first(bench: Bench) -> None:
    feasible = bench.plan.feasible()
    bench.record.binding = True
    given = [feasible.points[40].key, feasible.points[50].key]
    bench.record.offered = lambda: tuple(key for key in given if key not in bench.record.claimed)
    assert bench.tune(trials=4, sampler="exhaustive") == "ok"
    assert bench.worker.measured[:2] == given
    assert len(bench.keys()) == 4


def test_what_is_given_up_elsewhere_is_recorded_once(bench: Bench) -> None:
    feasible = bench.plan.feasible()
    bench.record.binding = True
    bad = feasible.points[7].key
    bench.worker.before = lambda number: setattr(bench.record, "suspected", (bad,) if number > 3 else ())
    bench.worker.seconds = 1.0
    assert bench.tune(trials=20, sampler="exhaustive") == "ok"
    crashed = [r for r in bench.study.results() if r.outcome is TrialOutcome.CRASH]
    assert [f"{r.template}:" + ",".join(f"{n}={v}" for n, v in r.config.items()) for r in crashed] == [bad]
    assert crashed[0].reason == "the tuner ended twice while it ran"


def test_what_two_give_up_at_once_is_recorded_once(bench: Bench) -> None:
    """Both see that a config is deadly; the other one stores it before this one looks."""
    feasible = bench.plan.feasible()
    bench.record.binding = True
    bad = feasible.points[200]

    def before(number: int) -> None:
        if number == 4:
            bench.study.record(bad, given_up(bad), feasible.distributions_of(200))
            bench.record.suspected = (bad.key,)

    bench.worker.before, bench.worker.seconds = before, 1.0
    assert bench.tune(trials=20, sampler="exhaustive") == "ok"
    assert len(bench.keys()) == len(set(bench.keys())) == 20
    assert bad.key not in bench.worker.measured


def test_a_deadly_config_is_given_up_although_another_one_departs(bench: Bench) -> None:
    """Then a claim is refused whosever the config is, and it would be tried a third time."""
    record, asked = bench.record, []
    bad = bench.plan.feasible().points[3].key
    record.suspected = (bad,)

    def claims() -> None:
        asked.append(bench.world.now)
        record.departed = len(asked) == 1  # somebody ends right after the first question

    def claim(key: str, terms: Terms = NO_TERMS) -> bool:
        if not record.departed:
            record.claimed.append(key)
        return not record.departed

    record.others, record.claim = claims, claim
    assert bench.tune(trials=10, sampler="exhaustive") == "ok"
    assert bad not in bench.worker.measured
    assert len(bench.keys()) == 10


def test_a_worker_leaves_the_finals_to_others(bench: Bench) -> None:
    assert bench.tune(trials=5, finals=False) == "ok"
    assert (len(bench.keys()), bench.worker.finalists, bench.study.winner) == (5, [], None)
