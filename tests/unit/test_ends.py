# SPDX-License-Identifier: Apache-2.0
"""How a run ends when something is wrong: what it found is kept, and what is wrong is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from coldforge.codegen.errors import ColdforgeError
from coldforge.tuner.outcome import TrialResult
from coldforge.tuner.search import Point
from coldforge.tuner.study import Study
from coldforge.tuner.tools import Job
from coldforge.tuner.winners import study_winner
from pretend import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_machine_at_fault_leaves_the_best_so_far(bench: Bench) -> None:
    def refuse(number: int) -> None:
        if number == 5:
            raise ColdforgeError("the device is gone")

    bench.worker.before = refuse
    with pytest.raises(ColdforgeError, match="the device is gone"):
        bench.tune(trials=20, jobs=2)
    winner = study_winner(bench.study)
    assert winner is not None
    assert winner.measurement["final"] is False
    assert winner.time_ms == min(t.value for t in bench.study.trials() if t.value is not None)
    bench.worker.before = lambda number: None
    assert bench.tune(trials=20, jobs=2) == "ok"
    final = study_winner(bench.study)
    assert final is not None
    assert final.measurement["final"] is True


def test_a_storage_that_fails_too_does_not_hide_the_first_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> None:
        if number == 3:
            raise ColdforgeError("the first fault")

    def full(*_: object) -> None:
        raise ColdforgeError("the second fault")

    bench.worker.before = refuse
    monkeypatch.setattr(Study, "set_winner", full)
    with pytest.raises(ColdforgeError, match="the first fault"):
        bench.tune(trials=20)


def test_where_the_finalists_fail_the_next_best_are_tried(bench: Bench) -> None:
    ranked: list[str] = []

    def works(job: Job) -> bool:
        if not ranked:
            ranked.extend(Point(r.template, r.config).key for r in sorted(bench.study.results(), key=_time))
        return job.point.key == ranked[11]

    bench.worker.works_again = works
    assert bench.tune(trials=30) == "ok"
    winner = study_winner(bench.study)
    assert winner is not None
    assert Point(winner.template, winner.config).key == ranked[11]
    assert winner.measurement["final"] is True
    assert len(set(bench.worker.finalists)) == len(bench.worker.finalists) >= 16
    assert len(bench.study.finals) == len(bench.worker.finalists)


def _time(result: TrialResult) -> float:
    assert result.time_ms is not None
    return result.time_ms


def test_where_none_works_in_the_finals_the_run_failed(bench: Bench) -> None:
    bench.worker.works_again = lambda job: False
    assert bench.tune(trials=10) == "failed"
    assert bench.study.winner is None
    assert len(set(bench.worker.finalists)) == len(bench.worker.finalists) == 10
    assert bench.tuner is not None
    expected = "none of the 10 best variants worked in the finals: pretended crash"
    assert bench.tuner.numbers()["reason"] == expected
    bench.worker.works_again = lambda job: True
    assert bench.tune(trials=10) == "ok"
    assert "reason" not in bench.tuner.numbers()
