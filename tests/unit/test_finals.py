# SPDX-License-Identifier: Apache-2.0
"""Finals with a pretended compiler and worker: who is declared, what ties are called and how they are broken,
what is stored of it, and what is shown."""

from __future__ import annotations

import dataclasses
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from coldforge.codegen.freeze.manifest import entries_of
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.search import Point
from coldforge.tuner.show import result_tables, study_document, study_tables
from coldforge.tuner.stored import FINALS, WINNER, checked
from coldforge.tuner.summary import summarise
from coldforge.tuner.tools import Job
from coldforge.tuner.winners import collect_winners, study_winner, study_winners
from pretend import SMALL, TEMPLATE, Bench, make_plan
from rich.console import Console


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, make_plan(tmp_path, **SMALL))


def text_of(part: Any) -> str:
    screen = io.StringIO()
    Console(file=screen, width=200).print(part)
    return screen.getvalue()


def keys(bench: Bench) -> list[str]:
    return sorted(point.key for point in bench.plan.feasible().points)


def alike(bench: Bench, *best: float) -> None:
    """The first configs in alphabetical order take these times, all others 2 ms."""
    times = dict(zip(keys(bench), best, strict=False))
    bench.worker.time_ms = lambda job: times.get(job.point.key, 2.0)  # type: ignore[method-assign]
    draw = random.Random(0)
    bench.worker.samples_ms = lambda time_ms, turn: time_ms * draw.gauss(1.0, 0.01)


def test_a_winner_that_is_surely_the_fastest_is_declared(bench: Bench) -> None:
    alike(bench, 1.0)
    assert bench.tune(trials=12) == "ok"
    summary = summarise(bench.study)
    assert summary["declared"] is True
    assert summary["ties"] == []
    assert summary["rule"] == ""
    rows = summary["finals"]
    assert [row["standing"] for row in rows].count("leader") == 1
    assert {row["standing"] for row in rows} == {"leader", "slower"}
    (leader,) = (row for row in rows if row["chosen"])
    assert leader["standing"] == "leader"
    assert summary["best"]["config"] == leader["config"]
    for row in rows:
        assert row["ci95_ms"][0] <= row["time_ms"] <= row["ci95_ms"][1]
        if row is not leader:
            assert 0.99 * row["ratio_ci95"][0] < 2.0 < 1.01 * row["ratio_ci95"][1]
            assert row["ratio_deciding"]["interval"][0] > 1
    shown = text_of(study_tables(study_document(bench.study)))
    assert f"surely the fastest of {len(rows)}" in shown
    assert "chosen" in shown


def test_ties_are_named_and_the_smallest_code_is_chosen(bench: Bench) -> None:
    alike(bench, 1.0, 1.0, 1.0)
    sizes: dict[str, int] = {}
    bench.compiler.size = lambda source: sizes.setdefault(source.name, 1000 - len(sizes))
    assert bench.tune(trials=12) == "ok"
    summary = summarise(bench.study)
    assert summary["declared"] is False
    assert len(summary["ties"]) == 3
    tied = [row for row in summary["finals"] if row["standing"] in ("leader", "tied")]
    assert all({"template": row["template"], "config": row["config"]} in summary["ties"] for row in tied)
    assert len(tied) == 3
    (chosen,) = (row for row in summary["finals"] if row["chosen"])
    near = [row for row in tied if row.get("ratio", 1.0) <= 1.005]
    assert chosen["resources"]["code_bytes"] == min(row["resources"]["code_bytes"] for row in near)
    assert summary["best"]["config"] == chosen["config"]
    winner = study_winner(bench.study)
    assert winner is not None
    assert dict(winner.config) == chosen["config"]
    assert winner.measurement["declared"] is False
    assert winner.measurement["ties"] == summary["ties"]
    (entry,) = entries_of([winner])
    assert entry["measurement"]["ties"] == summary["ties"]
    run = {**summary, "status": "ok", "added": 12, "seconds": 1.0, "failures": {}}
    shown = text_of(result_tables({**run, "finished": 12, "feasible_configs": 12}))
    assert "3 configs may be the fastest" in shown
    assert "fewer registers, then smaller code, then the earlier trial" in shown
    json.dumps(summary)


def test_a_tie_of_too_few_rounds_says_so(bench: Bench) -> None:
    """As a machine of many loads gives: the figures lie apart, and there are too few to say so."""
    alike(bench, 1.0, 1.4)
    assert bench.tune(trials=12) == "ok"
    rows = bench.study.finals
    index = next(i for i, row in enumerate(rows) if row.get("ratio"))
    deciding = {"level": 0.99, "interval": [1.0, 1.5], "p": 2.0**-5, "too_few_rounds": True}
    rows[index] |= {"standing": "tied", "ratio_deciding": deciding}
    named = [{"template": row["template"], "config": row["config"]} for row in rows]
    leader = next(i for i, row in enumerate(rows) if row["standing"] == "leader")
    unsure = {"declared": False, "ties": [named[leader], named[index]], "rule": "the rule"}
    bench.study.set_winner({**(bench.study.winner or {}), **unsure}, rows)
    shown = text_of(study_tables(study_document(bench.study)))
    assert "2 configs may be the fastest (of 1 too few independent rounds were taken to say)" in shown
    assert "tied, few rounds" in shown
    checked(rows, FINALS, "finals")


def test_the_earlier_trial_wins_where_nothing_else_differs(bench: Bench) -> None:
    bench.worker.time_ms = lambda job: 1.0  # type: ignore[method-assign]
    assert bench.tune(trials=12) == "ok"
    winner, first = study_winner(bench.study), bench.study.results()[0]
    assert winner is not None
    assert dict(winner.config) == dict(first.config)
    assert len(bench.study.winner["ties"]) == len(bench.worker.finalists)  # type: ignore[index]


def test_a_much_slower_one_with_smaller_code_is_not_chosen_however_loud_it_is(bench: Bench) -> None:
    """Noise of a factor of 20 either way: its interval may well reach 1."""
    alike(bench, 1.0)
    draw = random.Random(1)
    bench.worker.samples_ms = lambda time_ms, turn: (
        8 * time_ms * draw.lognormvariate(0, 3.0) if time_ms > 0.5 else 0.5
    )
    fast = min(keys(bench))
    (point,) = (point for point in bench.plan.feasible().points if point.key == fast)
    name = bench.plan.source(point).name
    bench.compiler.size = lambda source: 9000 if source.name == name else 100
    assert bench.tune(trials=12) == "ok"
    winner = study_winner(bench.study)
    assert winner is not None
    assert Point(winner.template, winner.config).key == fast


def test_a_finalist_that_fails_stands_so(bench: Bench) -> None:
    alike(bench, 1.0)
    lost: list[str] = []

    def works(job: Job) -> bool:
        lost.extend([job.point.key] if not lost else [])
        return job.point.key != lost[0]

    bench.worker.works_again = works
    assert bench.tune(trials=12) == "ok"
    rows = summarise(bench.study)["finals"]
    assert [row["standing"] for row in rows].count("failed") == 1
    (row,) = (row for row in rows if row["standing"] == "failed")
    assert row["reason"] == "pretended crash"
    assert "crash" in text_of(study_tables(study_document(bench.study)))


def test_finals_that_were_not_held_side_by_side_declare_nobody(bench: Bench) -> None:
    alike(bench, 1.0)

    def alone(job: Job) -> TrialResult:
        time_ms = bench.worker.time_ms(job)
        return TrialResult(TrialOutcome.OK, "", time_ms, (time_ms,) * 11, error=1e-7)

    bench.worker._final = alone  # type: ignore[method-assign]
    assert bench.tune(trials=12) == "ok"
    summary = summarise(bench.study)
    assert summary["declared"] is False
    assert summary["ties"] == []
    assert summary["best"]["time_ms"] == 1.0
    assert "not timed side by side" in text_of(study_tables(study_document(bench.study)))


def test_finals_of_an_older_version_are_read(bench: Bench) -> None:
    alike(bench, 1.0)
    assert bench.tune(trials=12) == "ok"
    study = bench.study
    added = ("standing", "chosen", "ci95_ms", "ratio", "ratio_ci95", "ratio_deciding")
    rows = [{k: v for k, v in row.items() if k not in added} for row in study.finals]
    record = {k: v for k, v in (study.winner or {}).items() if k not in ("declared", "ties", "rule")}
    checked(rows, FINALS, "old finals")
    checked(record, WINNER, "old winner")
    study.set_winner(record, rows)
    summary = summarise(study)
    assert (summary["declared"], summary["ties"]) == (None, [])
    assert summary["default"]["from"] == "finals"
    assert "finalist" not in text_of(study_tables(study_document(study)))


def test_before_the_finals_nothing_is_said(bench: Bench) -> None:
    assert bench.tune(trials=5) == "ok"
    bench.study.record(
        bench.plan.feasible().points[11],
        TrialResult(TrialOutcome.OK, time_ms=0.1),
        bench.plan.feasible().distributions_of(11),
    )
    summary = summarise(bench.study)
    assert (summary["finals_held"], summary["declared"], summary["ties"]) == (False, None, [])


@pytest.fixture
def two_templates(tmp_path: Path) -> Bench:
    """A bench of a portable template and of one whose instructions one architecture has."""
    spaces = {}
    for name, mark in (("direct", ""), ("own", "// for sm_90a\n")):
        (tmp_path / name).mkdir()
        plan = make_plan(tmp_path / name, **SMALL)
        (tmp_path / name / "direct.cpp.jinja").write_text(mark + TEMPLATE)
        spaces[name] = dataclasses.replace(plan.spaces["direct"], template=name)
    return Bench(tmp_path, dataclasses.replace(make_plan(tmp_path, **SMALL), spaces=spaces))


def test_a_winner_of_one_architecture_keeps_the_best_portable_one_beside_it(two_templates: Bench) -> None:
    bench = two_templates
    assert bench.plan.portable_templates == {"direct"}
    best = sorted(p.key for p in bench.plan.feasible().points if p.template == "direct")[-1]
    bench.worker.time_ms = lambda job: (  # type: ignore[method-assign]
        1.0 if job.point.template == "own" else 2.0 if job.point.key == best else 3.0
    )
    assert bench.tune(trials=24) == "ok"
    winner, beside = study_winners(bench.study)
    assert (winner.template, beside.template) == ("own", "direct")
    assert Point(beside.template, beside.config).key == best
    assert (winner.portable_only, beside.portable_only, beside.binary) == (False, True, None)
    assert winner.key != beside.key
    assert "_portable_" in beside.name
    assert beside.time_ms == pytest.approx(1.0)  # the pretended worker is twice as fast in finals
    assert len(collect_winners(bench.storage)) == 2


def test_a_portable_winner_has_none_beside_it(two_templates: Bench) -> None:
    bench = two_templates
    bench.worker.time_ms = lambda job: 2.0 if job.point.template == "own" else 1.0  # type: ignore[method-assign]
    assert bench.tune(trials=24) == "ok"
    (winner,) = study_winners(bench.study)
    assert winner.template == "direct"


@pytest.mark.parametrize(
    ("standing", "ratio", "words"),
    [
        ("tied", 1.37, "the best is 1.37x as fast as the default, though the two may be equally fast\n"),
        ("slower", 1.37, "the best is 1.37x as fast as the default\n"),
        ("tied", 1.004, "the best is as fast as the default\n"),
        (None, None, "the default is the best of them\n"),
    ],
)
def test_the_headline_says_of_the_default_what_the_finals_do(
    bench: Bench, standing: str | None, ratio: float | None, words: str
) -> None:
    assert bench.tune(trials=12) == "ok"
    summary = summarise(bench.study)
    best, default = summary["best"], summary["default"]
    if standing is None:
        summary |= {"best": default, "over_default": 1.0}
    else:
        assert best["config"] != default["config"]
        row = {**default, "standing": standing, "ratio": ratio, "ci95_ms": None, "resources": {}}
        rows = [{**best, "standing": "leader", "chosen": True, "ci95_ms": None, "outcome": "ok"}, row]
        summary |= {"finals": rows, "over_default": ratio}
    run = {**summary, "status": "ok", "added": 12, "seconds": 1.0, "failures": {}}
    head = text_of(result_tables(run)).splitlines()[0].rstrip() + "\n"
    assert head.endswith(f"; {words}")
