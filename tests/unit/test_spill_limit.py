# SPDX-License-Identifier: Apache-2.0
"""Configs that one run did not run for their spills, and a later run with a larger limit may."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.study import SPILLED
from coldforge.tuner.summary import summarise
from pretend import SMALL, Bench, make_plan


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """12 configs; of three spill 300 bytes, of three 2000, the default none."""
    bench = Bench(tmp_path, make_plan(tmp_path, **SMALL))
    bench.compiler.spills = lambda source: {"32": 300, "64": 2000}.get(source.name.split("_fp32_")[1][:2], 0)
    assert bench.tune(trials=12, jobs=2) == "ok"
    assert summarise(bench.study)["outcomes"] == {"ok": 6, "resource_limit": 6}
    return bench


@pytest.mark.parametrize(("limit", "more"), [(None, 6), (300, 3), (299, 0), (256, 0)])
def test_a_larger_limit_runs_what_was_skipped(bench: Bench, limit: int | None, more: int) -> None:
    before = len(bench.worker.measured)
    assert bench.tune(trials=12, jobs=2, spill_limit_bytes=limit) == "ok"
    assert len(bench.worker.measured) == len(set(bench.worker.measured)) == before + more
    assert bench.tuner is not None
    numbers = bench.tuner.numbers()
    assert (numbers["finished"], numbers["added"]) == (12, more)
    summary = summarise(bench.study)
    assert summary["finished"] == 12
    left = {"resource_limit": 6 - more} if more < 6 else {}
    assert summary["outcomes"] == {"ok": 6 + more, **left}
    # Again: nothing is left to do, whatever the limit.
    for again in (limit, 256):
        assert bench.tune(trials=12, jobs=2, spill_limit_bytes=again) == "ok"
        assert bench.tuner.numbers()["added"] == 0
    assert max(Counter(bench.keys()).values()) == (2 if more else 1)


def test_what_another_one_leaves_out_is_not_waited_for(tmp_path: Path) -> None:
    """It claims it as long as it lives, and has no result for this run."""
    bench = Bench(tmp_path)
    feasible = bench.plan.feasible()
    theirs = [200, 201, 202]
    others = frozenset(feasible.points[index].key for index in theirs)
    bench.record.others = lambda: others if bench.world.now < 1000.0 else None

    def leave_out(number: int) -> None:
        for index in theirs if number == 2 else ():
            result = TrialResult(TrialOutcome.RESOURCE_LIMIT, "spills", details={SPILLED: 100})
            bench.study.record(feasible.points[index], result, feasible.distributions_of(index))

    bench.worker.before, bench.worker.seconds = leave_out, 0.5
    assert bench.tune(trials=20, sampler="exhaustive", finals=False) == "ok"
    assert len(bench.worker.measured) == 20
    assert bench.world.now < 20.0


def test_they_count_towards_the_total_again(bench: Bench) -> None:
    assert bench.tune(trials=8, jobs=2, spill_limit_bytes=None) == "ok"
    assert len(bench.worker.measured) == 8
    results = bench.study.results()
    assert sum(r.outcome is TrialOutcome.OK for r in results) == 8
    assert len(results) == 14
