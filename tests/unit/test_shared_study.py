# SPDX-License-Identifier: Apache-2.0
"""The tuning loop beside other tuners on the same study, on a pretended compiler and worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from pretend import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def _finish(bench: Bench, count: int) -> None:
    """What another tuner does: finishes so many of the first configs that this one has not measured."""
    feasible = bench.plan.feasible()
    others = [i for i, point in enumerate(feasible.points) if point.key not in bench.worker.measured]
    for index in others[:count]:
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
