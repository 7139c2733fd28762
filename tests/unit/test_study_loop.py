# SPDX-License-Identifier: Apache-2.0
"""The tuning loop on a real plan with a pretended compiler and worker: no compiler, no device, no waiting."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from coldforge.codegen.errors import InfeasibleConfig
from coldforge.codegen.space import Config
from coldforge.tuner.interrupts import Interrupts
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.summary import summarise
from coldforge.tuner.winners import collect_winners, study_winner
from optuna.trial import TrialState
from pretend import SMALL, TARGET, Bench, digest_of, make_plan


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_run_records_each_config_once_and_stores_a_winner(bench: Bench) -> None:
    assert bench.tune(trials=40, jobs=2) == "ok"
    assert len(bench.study.trials()) == 40
    assert len(set(bench.keys())) == 40
    assert len(bench.worker.finalists) in (8, 9)
    summary = summarise(bench.study)
    assert summary["outcomes"] == {"ok": 40}
    best = summary["best"]
    times = {t.value for t in bench.study.trials()}
    assert best["time_ms"] == pytest.approx(min(t for t in times if t is not None) / 2)
    assert (best["floor_ms"], best["error"], best["template"], best["from"]) == (
        0.5,
        1e-7,
        "direct",
        "finals",
    )
    assert summary["default"]["config"] == dict(bench.plan.defaults["direct"])
    assert summary["default"]["from"] == "finals"
    assert bench.progress.closed


def test_the_default_is_the_first_trial_and_among_the_finalists(bench: Bench) -> None:
    bench.tune(trials=20, jobs=4)
    default = bench.plan.defaults["direct"]
    assert bench.study.results()[0].config == default
    assert any(key.endswith(default.key) for key in bench.worker.finalists)


def test_300_trials_have_no_duplicates(bench: Bench) -> None:
    assert bench.tune(trials=300, jobs=5) == "ok"
    assert len(set(bench.keys())) == len(bench.study.trials()) == 300


def test_the_same_command_again_adds_none(bench: Bench) -> None:
    bench.tune(trials=12, jobs=2)
    before = summarise(bench.study)
    bench.compiler.compiled.clear()
    bench.worker.finalists.clear()
    assert bench.tune(trials=12, jobs=2) == "ok"
    after = summarise(bench.study)
    assert {k: after[k] for k in after if k != "touched"} == {k: before[k] for k in before if k != "touched"}
    assert bench.compiler.compiled == []
    assert bench.worker.finalists == []


def test_a_larger_total_adds_exactly_what_is_missing(bench: Bench) -> None:
    bench.tune(trials=12, jobs=4)
    first = bench.keys()
    assert bench.tune(trials=20, jobs=3) == "ok"
    assert bench.keys()[:12] == first
    assert len(set(bench.keys())) == len(bench.keys()) == 20
    assert len(bench.worker.measured) == 20
    assert bench.tuner is not None
    assert bench.tuner.accounts.counts.added == 8


def test_failures_are_outcomes_told_as_pruned(bench: Bench) -> None:
    outcomes = [o for o in TrialOutcome if o not in (TrialOutcome.ILLEGAL, TrialOutcome.COMPILE_ERROR)]
    bench.worker.outcome = lambda job: outcomes[int(digest_of(job.point.key), 16) % len(outcomes)]
    bench.compiler.refuse = lambda source: int(source.digest, 16) % 5 == 0
    assert bench.tune(trials=40, jobs=4) == "ok"
    trials = bench.study.trials()
    assert len(trials) == 40
    expected = {"ok": TrialState.COMPLETE}
    assert all(t.state is expected.get(t.user_attrs["outcome"], TrialState.PRUNED) for t in trials)
    counts = Counter(t.user_attrs["outcome"] for t in trials)
    assert summarise(bench.study)["outcomes"] == dict(counts)
    assert counts["compile_error"] > 0
    assert counts["crash"] > 0
    refused = next(t for t in trials if t.user_attrs["outcome"] == "compile_error")
    assert "error: no such thing" in refused.user_attrs["reason"]


def test_no_working_variant_is_failed(bench: Bench) -> None:
    bench.worker.outcome = lambda job: TrialOutcome.CRASH
    assert bench.tune(trials=6) == "failed"
    assert bench.study.winner is None
    summary = summarise(bench.study)
    assert summary["best"] is None
    assert summary["default"]["outcome"] == "crash"
    assert collect_winners(bench.storage) == []


def test_an_exhausted_space_is_ok(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_plan(tmp_path, **SMALL))
    assert bench.tune(trials=1000, jobs=4) == "ok"
    assert len(set(bench.keys())) == len(bench.keys()) == 12
    assert bench.tune(trials=1000, jobs=4) == "ok"
    assert len(bench.keys()) == 12


def test_a_used_time_budget_is_ok(bench: Bench) -> None:
    def tick(number: int) -> None:
        bench.world.now += 1.0

    bench.worker.before = tick
    assert bench.tune(trials=None, time_budget_s=5.0, jobs=4) == "ok"
    assert len(bench.study.trials()) == 5
    assert bench.study.winner is not None
    assert bench.tune(trials=None, time_budget_s=3.0, jobs=4) == "ok"
    assert len(set(bench.keys())) == 8


def test_ctrl_c_keeps_everything_and_the_next_run_continues(bench: Bench) -> None:
    def interrupt(number: int) -> None:
        if number == 7:
            os.kill(os.getpid(), signal.SIGINT)

    bench.worker.before = interrupt
    assert bench.tune(trials=20, jobs=4) == "stopped"
    assert len(bench.study.trials()) == 7
    assert bench.progress.closed
    winner = study_winner(bench.study)
    assert winner is not None
    assert winner.measurement["final"] is False
    assert winner.time_ms == min(t.value for t in bench.study.trials() if t.value is not None)
    bench.worker.before = lambda number: None
    assert bench.tune(trials=20, jobs=4) == "ok"
    assert len(set(bench.keys())) == len(bench.keys()) == 20
    final = study_winner(bench.study)
    assert final is not None
    assert final.measurement["final"] is True


def test_interrupts_wait_for_a_commit() -> None:
    steps: list[str] = []

    def commit(guard: Interrupts) -> None:
        with guard.shielded():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("committed")
        steps.append("went on")

    with Interrupts() as guard, pytest.raises(KeyboardInterrupt):
        commit(guard)
    assert steps == ["committed"]


def test_an_interrupt_that_arrives_twice_is_one() -> None:
    with Interrupts():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)


def test_the_same_machine_code_is_timed_once(bench: Bench) -> None:
    """Sources that differ in text only are recorded with the result of the first."""
    bench.compiler.code = lambda source: source.name.split("_fp32_")[1].split("_")[0]  # TILE decides
    assert bench.tune(trials=40, jobs=3) == "ok"
    results = bench.study.results()
    codes = {(r.code_digest, *sorted(r.details["launch"].items())) for r in results}
    assert len(bench.worker.measured) == len(codes) < 40
    assert len({f"{r.config}" for r in results}) == 40
    copies = [r for r in results if "same_code_as" in r.details]
    assert len(copies) == 40 - len(codes)
    by_key = {f"direct:{Config(r.config).key}": r for r in results}
    for copy in copies:
        original = by_key[copy.details["same_code_as"]]
        assert "same_code_as" not in original.details
        assert (copy.time_ms, copy.code_digest) == (original.time_ms, original.code_digest)
    assert len(set(bench.worker.finalists)) == len(bench.worker.finalists)
    measured = len(bench.worker.measured)
    bench.compiler.code = lambda source: "one"
    bench.tune(trials=60, jobs=3)
    launches = {tuple(sorted(r.details["launch"].items())) for r in bench.study.results()[40:]}
    assert len(bench.worker.measured) - measured == len(launches)


def test_a_crash_is_not_passed_on_to_the_same_machine_code(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_plan(tmp_path, **SMALL))
    bench.compiler.code = lambda source: "one"
    bench.worker.outcome = lambda job: TrialOutcome.CRASH
    assert bench.tune(trials=6) == "failed"
    assert len(bench.worker.measured) == 6


def test_compilers_and_device_work_at_the_same_time(bench: Bench) -> None:
    bench.compiler.seconds, bench.worker.seconds = 1.0, 0.5
    under_way: list[int] = []

    def look(number: int) -> None:
        assert bench.tuner is not None
        under_way.append(bench.tuner._asked - len(bench.study.trials()))

    bench.worker.before = look
    assert bench.tune(trials=40, jobs=2) == "ok"
    assert bench.compiler.most_load == 2
    assert bench.world.now == pytest.approx(0.5 * 40 + 1.0)  # the first compilation, then the device alone
    assert max(under_way) <= 2 + 2 + 2, "the sampler runs too far ahead"
    assert bench.tuner is not None
    profile = bench.tuner.numbers()["profile"]
    assert profile["bounded_by"] == "device"
    assert profile["device_idle"] == pytest.approx(1 / 21, abs=1e-3)
    assert profile["seconds"]["verify"] == pytest.approx(40 * 0.25)
    assert profile["seconds"]["compile"] == pytest.approx(40 * 0.2)
    assert profile["configs_per_minute"] == pytest.approx(60 * 40 / 21, rel=1e-3)


def test_slow_compilers_bound_a_run(bench: Bench) -> None:
    bench.compiler.seconds, bench.worker.seconds = 4.0, 0.5
    assert bench.tune(trials=40, jobs=2) == "ok"
    assert bench.world.now == pytest.approx(4.0 * 20 + 0.5, abs=1.1)
    assert bench.tuner is not None
    profile = bench.tuner.numbers()["profile"]
    assert profile["bounded_by"] == "compilers"
    assert profile["device_idle"] == pytest.approx(0.75, abs=0.02)


def test_the_device_has_its_next_config_before_the_last_is_stored(bench: Bench) -> None:
    bench.compiler.seconds, bench.worker.seconds = 0.1, 0.5
    stored: list[int] = []
    bench.worker.before = lambda number: stored.append(len(bench.study.trials()))
    bench.tune(trials=100, jobs=4)
    gaps = [number - count for number, count in enumerate(stored)]
    assert set(gaps[:80]) == {0, 1}
    assert gaps[2:80] == [1] * 78
    assert set(gaps[90:]) == {0}, "towards the end others' work is looked at before each"


def test_what_waits_at_the_end_of_the_time_is_withdrawn(bench: Bench) -> None:
    bench.compiler.seconds, bench.worker.seconds = 0.1, 1.0
    assert bench.tune(trials=None, time_budget_s=5.0, jobs=4) == "ok"
    assert len(bench.study.trials()) == len(bench.worker.measured) == 5
    assert bench.tuner is not None
    assert int((~bench.tuner.feasible.unseen).sum()) == 5


def test_a_compiler_that_hangs_does_not_outlast_the_time(bench: Bench) -> None:
    bench.compiler.seconds = 1e6
    assert bench.tune(trials=None, time_budget_s=5.0, jobs=4) == "failed"
    assert bench.world.now == 5.0


def test_each_config_is_on_record_before_the_device_has_it(bench: Bench) -> None:
    bench.worker.before = lambda number: bench.record.begun[number]
    bench.tune(trials=9, jobs=2)
    assert bench.record.begun == bench.worker.measured


def test_a_config_that_tuners_died_of_is_not_tried(bench: Bench) -> None:
    keys = [point.key for point in bench.plan.feasible().points]
    bench.record.suspected = (keys[3], "direct:of=another,space=1")
    assert bench.tune(trials=5, sampler="exhaustive") == "ok"
    assert keys[3] not in bench.worker.measured
    assert len(bench.worker.measured) == 4
    crashed = bench.study.results()[0]
    assert (crashed.outcome, crashed.reason) == (TrialOutcome.CRASH, "the tuner ended twice while it ran")
    assert f"direct:{Config(crashed.config).key}" == keys[3]
    bench.tune(trials=8, sampler="exhaustive")
    assert len(set(bench.keys())) == len(bench.keys()) == 8


def test_heavy_spills_are_not_run_but_for_the_default(bench: Bench) -> None:
    bench.compiler.spills = lambda source: 257 if int(source.digest, 16) % 2 else 256
    bench.compiler.spills = lambda source, plain=bench.compiler.spills: (
        999 if "_fp32_16_1_1_1_" in source.name else plain(source)
    )
    assert bench.tune(trials=30, jobs=3) == "ok"
    results = bench.study.results()
    skipped = [r for r in results if r.outcome is TrialOutcome.RESOURCE_LIMIT]
    assert 0 < len(skipped) == 30 - len(bench.worker.measured)
    assert {r.reason for r in skipped} == {
        "not run: its registers spill 257 bytes a thread (stores and loads), over 256"
    }
    assert all(r.resources["spill_store_bytes"] == 257 for r in skipped)
    (default,) = [r for r in results if r.config == bench.plan.defaults["direct"]]
    assert default.ok
    assert bench.tuner is not None
    numbers = bench.tuner.numbers()
    assert (numbers["skipped_spilling"], numbers["resource_failures"]) == (len(skipped), 0)
    bench.tune(trials=50, jobs=3, spill_limit_bytes=None)
    assert len(bench.worker.measured) == 50


def test_a_template_that_fails_for_one_config_costs_that_one(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, **SMALL)
    (tmp_path / "direct.cpp.jinja").write_text("{{ banner }}\n{{ config.TILE // (config.TILE - 64) }}\n")
    bench = Bench(tmp_path, plan)
    assert bench.tune(trials=100, jobs=2) == "ok"
    failed = [r for r in bench.study.results() if not r.ok]
    assert {(r.outcome, r.config["TILE"]) for r in failed} == {(TrialOutcome.COMPILE_ERROR, 64)}
    assert len(failed) == 3
    assert "direct.cpp.jinja" in failed[0].reason
    assert len(bench.keys()) == 12


def test_what_another_run_finished_meanwhile_is_not_measured_again(bench: Bench) -> None:
    feasible = bench.plan.feasible()

    def other_run(number: int) -> None:
        if number == 1:
            for index in (2, 3):  # compiled here and waiting
                fast = TrialResult(TrialOutcome.OK, time_ms=0.1)
                bench.study.record(feasible.points[index], fast, feasible.distributions_of(index))

    bench.compiler.seconds, bench.worker.seconds = 0.1, 1.0
    bench.worker.before = other_run
    assert bench.tune(trials=8, sampler="exhaustive", jobs=2) == "ok"
    assert len(set(bench.keys())) == len(bench.keys()) == 8
    assert not {feasible.points[index].key for index in (2, 3)} & set(bench.worker.measured)


def test_no_legal_config_is_bad_input(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    elsewhere = dataclasses.replace(plan, target=dataclasses.replace(TARGET, arch="riscv64"))
    with pytest.raises(InfeasibleConfig, match=r"no config is legal here.*riscv64"):
        Bench(tmp_path, elsewhere).tune(trials=1)


def test_the_winner_is_complete(bench: Bench) -> None:
    bench.tune(trials=10)
    (winner,) = collect_winners(bench.storage, ["conv2d_divide_leaky_relu"])
    assert winner == study_winner(bench.study)
    assert winner.operator == "conv2d_divide_leaky_relu"
    assert winner.target["attributes"] == dict(TARGET.attributes)
    assert hashlib.sha256(winner.source_text.encode()).hexdigest() == winner.source_digest
    assert winner.binary is None
    assert set(winner.launch) >= {"units", "grain"}
    assert {"time_ms", "floor_ms", "error", "bound_ratio"} <= set(winner.measurement)
    assert winner.study == bench.study.name


def test_where_the_default_is_not_legal_none_is_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path, make_plan(tmp_path, TILE=[8, 16], VEC=[8, 1]))
    assert not bench.plan.defaults
    assert bench.tune(trials=3) == "ok"
    assert summarise(bench.study)["default"] is None


def test_two_runs_at_once_share_a_study(bench: Bench) -> None:
    feasible = bench.plan.feasible()
    others = [len(feasible) - 1, 2]

    def other_run(number: int) -> None:
        if number == 1:
            for index in others:
                fast = TrialResult(TrialOutcome.OK, time_ms=0.1)
                bench.study.record(feasible.points[index], fast, feasible.distributions_of(index))

    bench.worker.before = other_run
    assert bench.tune(trials=5, sampler="exhaustive") == "ok"
    assert len(set(bench.keys())) == len(bench.keys()) == 5
    assert {feasible.points[index].key for index in others} <= set(bench.worker.finalists)
    assert bench.study.winner_is_current(5)


def test_a_provisional_winner_has_its_own_time(bench: Bench) -> None:
    feasible = bench.plan.feasible()
    last = len(feasible) - 1

    def other_run(number: int) -> None:
        if number == 2:
            fast = TrialResult(TrialOutcome.OK, time_ms=0.1)
            bench.study.record(feasible.points[last], fast, feasible.distributions_of(last))
        if number == 4:
            raise KeyboardInterrupt

    bench.worker.before = other_run
    assert bench.tune(trials=9, sampler="exhaustive") == "stopped"
    winner = bench.study.winner
    assert winner is not None
    assert winner["winner"]["config"] != dict(feasible.points[last].config)
    assert winner["time_ms"] >= 1.0


def test_progress_counts_up(bench: Bench) -> None:
    bench.tune(trials=10, jobs=2)
    done = [snapshot.done for snapshot in bench.progress.seen]
    assert done == sorted(done)
    assert (done[-1], bench.progress.seen[-1].total) == (10, 10)
    assert {s.phase for s in bench.progress.seen} == {"timing", "compiling", "finals"}
