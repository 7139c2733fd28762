# SPDX-License-Identifier: Apache-2.0
"""Finals decided by energy, with a pretended compiler and worker: one study for both objectives."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coldforge.tuner.finals import keep_provisional
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.search import Point
from coldforge.tuner.show import result_tables, study_document, study_tables
from coldforge.tuner.summary import summarise
from coldforge.tuner.tools import Job
from coldforge.tuner.winners import study_winner
from pretend import SMALL, Bench, make_plan
from rich.console import Console


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Those that take longer take less energy: 1 J and a joule for each 0.1 ms under 2."""
    bench = Bench(tmp_path, make_plan(tmp_path, **SMALL))
    bench.worker.energy_j = lambda job: 21.0 - 10 * bench.worker.time_ms(job)
    return bench


def text_of(part: Any) -> str:
    screen = io.StringIO()
    Console(file=screen, width=220).print(part)
    return screen.getvalue()


def test_the_least_joules_win(bench: Bench) -> None:
    assert bench.tune(trials=12, objective="energy") == "ok"
    assert bench.worker.energy_asked == [True]
    summary = summarise(bench.study)
    assert summary["objective"] == "energy"
    assert summary["declared"] is True
    rows = summary["finals"]
    assert all(row["energy_j"] > 0 for row in rows)
    (chosen,) = (row for row in rows if row["chosen"])
    assert chosen["energy_j"] == min(row["energy_j"] for row in rows)
    assert chosen["time_ms"] == max(row["time_ms"] for row in rows), "of the finalists, which times chose"
    assert chosen["standing"] == "leader"
    for row in rows:
        assert row["energy_ci95_j"][0] <= row["energy_j"] <= row["energy_ci95_j"][1]
        assert row["ci95_ms"][0] <= row["time_ms"] <= row["ci95_ms"][1]
        if row is not chosen:
            ratio = row["energy_j"] / chosen["energy_j"]
            assert row["ratio"] == pytest.approx(ratio, rel=1e-3)
    assert summary["best"]["energy_j"] == chosen["energy_j"]
    assert summary["best"]["time_ms"] == chosen["time_ms"]
    winner = study_winner(bench.study)
    assert winner is not None
    assert winner.measurement["energy_j"] == chosen["energy_j"]
    assert winner.measurement["energy_ci95_j"] == chosen["energy_ci95_j"]


def test_what_is_shown(bench: Bench) -> None:
    assert bench.tune(trials=12, objective="energy") == "ok"
    shown = text_of(study_tables(study_document(bench.study)))
    assert "the winner surely takes the least energy of" in shown
    assert "mJ (95%)" in shown
    best = summarise(bench.study)["best"]
    assert f"{1e3 * best['energy_j']:.4g} mJ" in shown
    run = {**study_document(bench.study), "status": "ok", "added": 12, "seconds": 1.0}
    assert "times its energy" in text_of(result_tables(run))
    assert bench.tune(trials=12) == "ok"
    shown = text_of(study_tables(study_document(bench.study)))
    assert "is surely the fastest" in shown
    assert "mJ" not in shown


def test_the_bound_that_applies_is_shown(bench: Bench) -> None:
    final = bench.worker._final

    def with_floor(job: Job) -> TrialResult:
        result = final(job)
        return replace(result, details={**result.details, "floor": {"limit": "memory", "time_ms": 0.5}})

    bench.worker._final = with_floor  # type: ignore[method-assign]
    assert bench.tune(trials=12) == "ok"
    document = study_document(bench.study)
    assert document["best"]["limit"] == document["default"]["limit"] == "memory"
    assert "of the device's memory speed)" in text_of(study_tables(document))


def test_ties_in_energy(bench: Bench) -> None:
    bench.worker.energy_j = lambda job: 2.0
    assert bench.tune(trials=12, objective="energy") == "ok"
    summary = summarise(bench.study)
    assert summary["declared"] is False
    assert len(summary["ties"]) == len(summary["finals"])
    assert "configs may take the least energy" in text_of(study_tables(study_document(bench.study)))


def test_both_objectives_are_of_one_study(bench: Bench) -> None:
    assert bench.tune(trials=12) == "ok"
    times = summarise(bench.study)
    assert times["objective"] == "time"
    assert "energy_j" not in times["best"]
    for objective, held in (("time", 1), ("energy", 2), ("energy", 2), ("time", 3)):
        assert bench.tune(trials=12, objective=objective) == "ok"
        assert len(bench.worker.measured) == 12, "no trial is repeated"
        assert len(bench.worker.energy_asked) == held, (
            "the finals are held anew for the other objective alone"
        )
        assert summarise(bench.study)["objective"] == objective
    assert summarise(bench.study)["best"]["config"] == times["best"]["config"]


def test_finals_without_energy_have_no_winner(bench: Bench) -> None:
    bench.worker.energy_j = lambda job: None
    assert bench.tune(trials=12, objective="energy") == "failed"
    assert bench.tuner is not None
    assert bench.tuner.numbers()["reason"] == "the device told no energy of the best variants in the finals"
    assert bench.study.winner is None


def test_an_interrupted_search_leaves_a_winner_by_energy(bench: Bench) -> None:
    assert bench.tune(trials=6, objective="energy") == "ok"
    before = bench.study.winner
    point = bench.plan.feasible().points[0]
    assert isinstance(point, Point)
    source = bench.plan.source(point)
    (answer,) = bench.compiler.compile([source])
    fast = TrialResult(TrialOutcome.OK, time_ms=1e-6, details={})
    keep_provisional(bench.plan, bench.study, Job(point, source, answer[1]), fast)  # type: ignore[arg-type]
    assert bench.study.winner == before
    assert bench.tune(trials=6, objective="time") == "ok"
    keep_provisional(bench.plan, bench.study, Job(point, source, answer[1]), fast)  # type: ignore[arg-type]
    after = bench.study.winner
    assert after is not None
    assert after["time_ms"] == 1e-6
