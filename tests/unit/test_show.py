# SPDX-License-Identifier: Apache-2.0
"""``show``, the summaries and the progress display, from stored trials alone."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import make_problem
from coldforge.tuner.cli import options, run
from coldforge.tuner.identity import StudyInputs
from coldforge.tuner.labels import study_label
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.progress import (
    LiveProgress,
    PlainProgress,
    Snapshot,
    open_progress,
    plain_line,
    readable_seconds,
)
from coldforge.tuner.search import FeasibleSet
from coldforge.tuner.show import _top, result_tables
from coldforge.tuner.speed import fraction_of_floor, speed_text
from coldforge.tuner.storage import open_storage
from coldforge.tuner.study import Study, open_study
from coldforge.tuner.summary import failures, summarise
from rich.console import Console

OP = "conv2d_divide_leaky_relu"
FEASIBLE = FeasibleSet({"direct": [{"TILE": t, "KIND": k} for t in range(8) for k in ("plain", "[packed]")]})


def _inputs(workload: str = "small") -> StudyInputs:
    return StudyInputs(
        operator=OP,
        workload=workload,
        operator_digest="d",
        problem={"operator": OP, "dims": {"N": 4, "H": 64}, "dtype": "fp32", "workload": workload},
        precision="fp32",
        target={"kind": "cpu", "arch": "x86-64-v3", "device": "Fast CPU [tm]", "attributes": {}},
        spaces={"direct": "s"},
        sources={},
        compiler="g++ 12.2.0",
        driver="",
    )


def test_a_run_without_a_right_variant_says_why() -> None:
    failed = {"compile_error": {"count": 2, "example": "row_norm.cpp.jinja:3: 'nope' was not declared"}}
    facts = {"status": "failed", "added": 2, "seconds": 1.0, "best": None, "default": None, "study": "s"}
    facts |= {"operator": OP, "workload": "small", "device": "d", "target": "cpu", "arch": "a", "touched": ""}
    facts |= {"problem": {"dims": {}, "dtype": "fp32"}, "precision": "fp32", "compiler": "c", "driver": ""}
    for best, expected in ((None, True), ({"time_ms": 1.0, "template": "t", "config": {}}, False)):
        screen = io.StringIO()
        run_facts = {**facts, "outcomes": {"compile_error": 2}, "failures": failed, "best": best}
        Console(file=screen, width=160).print(result_tables(run_facts))
        assert ("'nope' was not declared" in screen.getvalue()) == expected


@pytest.mark.parametrize(
    ("best_ms", "searched_ms", "added", "words", "absent"),
    [
        (8.0, 0.012, 3, "The search saw 0.012 ms: this machine was busy", "are done"),
        (1.0, 0.9, 3, "3 configs in 1 s", "busy"),
        (1.0, 0.9, 0, "all 12 configs are done", "busy"),
    ],
)
def test_the_end_of_a_run(best_ms: float, searched_ms: float, added: int, words: str, absent: str) -> None:
    best = {"time_ms": best_ms, "template": "t", "config": {}, "floor_ms": None, "from": "finals"}
    run = {"status": "ok", "added": added, "seconds": 1.0, "best": best, "default": None, "study": "s"}
    run |= {"operator": OP, "workload": "small", "device": "d", "target": "cpu", "arch": "a", "touched": ""}
    run |= {"problem": {"dims": {}, "dtype": "fp32"}, "precision": "fp32", "compiler": "c", "driver": ""}
    run |= {"outcomes": {"ok": 12}, "failures": {}, "finished": 12, "feasible_configs": 12}
    screen = io.StringIO()
    Console(file=screen, width=200).print(result_tables({**run, "searched_ms": searched_ms}))
    assert words in screen.getvalue()
    assert absent not in screen.getvalue()


@pytest.mark.parametrize(
    ("status", "finished", "kind", "words"),
    [
        ("stopped", 8, "search", "stopped: before a config was finished; 8 of 16 are"),
        ("stopped", 0, None, "stopped: before a config was finished; 0 of 16 are"),
        ("stopped", 16, "search", "stopped: all 16 configs are done, the finals are not held"),
        ("stopped", 16, "finals", "stopped: all 16 configs are done\n"),
        ("ok", 8, "finals", "ok: no config was added; 8 of 16 are done"),
        ("ok", 16, "finals", "ok: all 16 configs are done\n"),
    ],
)
def test_a_run_that_added_nothing(status: str, finished: int, kind: str | None, words: str) -> None:
    best = kind and {"time_ms": 1.0, "template": "t", "config": {}, "floor_ms": None, "from": kind}
    run = {"status": status, "added": 0, "seconds": 1.0, "best": best, "default": None, "study": "s"}
    run |= {"operator": OP, "workload": "small", "device": "d", "target": "cpu", "arch": "a", "touched": ""}
    run |= {"problem": {"dims": {}, "dtype": "fp32"}, "precision": "fp32", "compiler": "c", "driver": ""}
    run |= {"outcomes": {}, "failures": {}, "finished": finished, "feasible_configs": 16, "searched_ms": 1.0}
    screen = io.StringIO()
    Console(file=screen, width=200).print(result_tables(run))
    first = screen.getvalue().splitlines()[0].rstrip() + "\n"
    assert first.startswith(words)


def _fill(study: Study) -> None:
    """14 trials: the first is the default, two fail, the fastest is number 13."""
    for index in range(14):
        if index in (3, 5):
            reason = f"[normal] inputs: off by {index} bounds"
            result = TrialResult(TrialOutcome.WRONG_RESULT, reason, error=0.1)
        else:
            details = {"floor_ms": 0.5, "default": index == 0}
            figures = {"error": 1e-7, "resources": {"registers": 0, "code_bytes": 1000 + index}}
            time = 3.0 - index / 10
            figures["samples_ms"] = (0.9 * time, time, 1.1 * time) if index == 13 else ()
            result = TrialResult(TrialOutcome.OK, time_ms=time, details=details, **figures)
        study.record(FEASIBLE.points[index], result, FEASIBLE.distributions_of(index))
    study.touch()


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    storage = open_storage(None, tmp_path)
    assert storage is not None
    made = open_study(storage, _inputs())
    _fill(made)
    return made


def test_summary(study: Study) -> None:
    summary = summarise(study)
    assert summary["outcomes"] == {"ok": 12, "wrong_result": 2}
    assert summary["best"]["time_ms"] == pytest.approx(1.7)
    assert summary["best"]["config"] == {"TILE": 6, "KIND": "[packed]"}
    assert summary["default"]["time_ms"] == 3.0
    assert fraction_of_floor(summary["best"]) == pytest.approx(0.5 / 1.7)
    assert fraction_of_floor(None) is None

    assert failures(study.results()) == {"wrong_result": (2, "[normal] inputs: off by 3 bounds")}
    wrong = summary["misbehaved"]
    assert [row["config"] for row in wrong] == [dict(FEASIBLE.points[i].config) for i in (3, 5)]
    assert {row["outcome"] for row in wrong} == {"wrong_result"}
    assert wrong[1]["reason"] == "[normal] inputs: off by 5 bounds"


def test_show_json(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", OP, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["study"] == study.name
    times = [entry["time_ms"] for entry in document["top"]]
    assert times == sorted(times)
    assert len(times) == 10
    assert document["top"][0]["resources"]["code_bytes"] == 1013
    assert document["top"][0]["ci95_ms"] == pytest.approx([1.53, 1.87])
    assert document["top"][1]["ci95_ms"] is None
    cause = document["failures"]["wrong_result"]
    assert cause == {"count": 2, "example": "[normal] inputs: off by 3 bounds"}
    assert document["finals_held"] is False


def test_show_text(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets in names and reasons are text, not the display's markup."""
    assert run(["show", study.name[:-3]]) == 0
    text = capsys.readouterr().out
    for expected in (
        study.name,
        "Fast CPU [tm]",
        "12 ok, 2 wrong_result",
        "1.7 ms (29% of the device's speed)",
        "TILE=6 KIND=[packed]",
        "[normal] inputs: off by 3 bounds",
        "100%",
        "1.53-1.87",
        "29%",
        "code",
    ):
        assert expected in text
    assert "registers" not in text


def test_show_lists_studies(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = open_storage(None, tmp_path)
    assert storage is not None
    empty = open_study(storage, _inputs("seed"))
    empty.touch()
    assert run(["show", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["studies"]
    assert [row["study"] for row in rows] == [empty.name, study.name]
    assert rows[0]["best"] is None
    assert rows[1]["finished"] == 14
    assert rows[1]["outcomes"] == {"ok": 12, "wrong_result": 2}
    assert run(["show"]) == 0
    text = capsys.readouterr().out
    assert study.name in text
    assert "small: 14 configs, 2 of them failed, best 1.7 ms (no finals yet)" in text
    assert run(["show", empty.name]) == 0
    assert "none" in capsys.readouterr().out


def test_studies_of_several_shapes_are_told_apart(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = open_storage(None, tmp_path)
    assert storage is not None
    shapes = ["N=1,H=20", "N=2,kernel_size=5,stride=2,padding_h=1,bias=0"]
    for shape in shapes:
        problem = make_problem(catalogue().operator(OP), "small", options.parse_shape(shape))
        about = {"workload": problem.workload, "problem": problem.to_dict()}
        open_study(storage, replace(_inputs(), **about)).touch()
    assert run(["show"]) == 0
    text = capsys.readouterr().out
    assert all(f"    small {shape}: 0 configs" in text for shape in shapes)
    assert "    small: 14 configs" in text
    assert run(["show", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["studies"]
    assert [row["shape"] for row in rows] == [*(f"small {shape}" for shape in reversed(shapes)), "small"]
    assert run(["show", OP]) == 0
    assert "the newest of 3 studies; coldforge show lists them" in capsys.readouterr().out
    assert run(["show", OP + "-small+"]) == 2
    err = capsys.readouterr().err
    assert all(f" (small {shape})" in err for shape in shapes)
    assert err.count("\n") == 1


def test_a_shape_of_an_operator_that_is_not_declared_is_named_in_full(study: Study, tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    assert storage is not None
    problem = {"dims": {"rows": 3, "columns": 4}, "dtype": "fp32"}
    inputs = replace(_inputs("small+"), operator="gone", problem=problem)
    assert study_label(open_study(storage, inputs)) == "small rows=3,columns=4"
    away = replace(_inputs("away+"), problem=problem)
    other = open_study(storage, away)
    other.remember_roots([str(tmp_path / "nowhere")])
    assert study_label(other) == "away rows=3,columns=4"


def test_show_without_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looking makes nothing: no folder, no database."""
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "none"))
    assert run(["show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"studies": []}
    assert run(["show"]) == 0
    assert "no studies yet" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "nope"], "unknown study 'nope'"),
        (["show", "--follow"], "--follow shows one study"),
        (["show", OP, "--follow", "--json"], "--follow shows one study"),
        (["show", OP, "--storage", "nonsense"], "storage URL 'nonsense' is malformed"),
    ],
)
def test_bad_input(
    study: Study, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


def test_follow_ends_with_the_finals(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"trials": 14, "final": True, "time_ms": 1.6}
    measured = {"time_ms": 1.6, "floor_ms": 0.5, "error": 1e-7}
    winner = {
        "template": "direct",
        "config": {"TILE": 6, "KIND": "plain"},
        "resources": {},
        "measurement": measured,
    }
    study.set_winner({**record, "winner": winner}, [])
    assert run(["show", OP, "--follow"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 1
    assert "14 configs (12 ok, 2 wrong_result), best 1.6 ms (31% of the device's speed)" in lines[0]


def _snapshot(**changes: object) -> Snapshot:
    best = TrialResult(
        TrialOutcome.OK, time_ms=0.5, template="direct", config={"X": 1}, details={"floor_ms": 0.25}
    )
    given = {"phase": "timing", "done": 10, "total": 40, "added": 10, "seconds": 20.0, "best": best}
    return Snapshot(**{**given, "outcomes": {"ok": 8, "crash": 2}, **changes})  # type: ignore[arg-type]


def test_time_left() -> None:
    assert _snapshot().left_s == pytest.approx(60.0)
    assert _snapshot(budget_s=30.0).left_s == pytest.approx(10.0)
    assert _snapshot(budget_s=10.0).left_s == 0.0
    assert _snapshot(added=0).left_s is None
    assert [readable_seconds(s) for s in (4.4, 61, 3725)] == ["4 s", "1:01", "1:02:05"]


def test_rates_are_told_once_they_are_known() -> None:
    busy = {"compiled": 30, "measured": 25}
    assert _snapshot(**busy).rates_text == "90 compiled and 75 timed a minute"
    assert _snapshot(**busy, seconds=1.0).rates_text == ""
    assert _snapshot().rates_text == ""
    expected = (
        "op: timing 10/40, best 0.5 ms (50% of the device's speed), failed: 2 crash, "
        "90 compiled and 75 timed a minute, 1:00 left"
    )
    assert plain_line("op", _snapshot(**busy)) == expected
    assert "minute" not in plain_line("op", _snapshot(**busy, phase="finals"))


def test_plain_progress_is_sparse() -> None:
    now, lines = [0.0], []
    progress = PlainProgress("op small", lines.append, lambda: now[0])
    for step in range(100):
        now[0] = step / 10
        progress.update(_snapshot(done=step))
    progress.update(_snapshot(phase="finals"))
    progress.close()
    assert len(lines) == 3
    assert lines[0] == (
        "op small: timing 0/40, best 0.5 ms (50% of the device's speed), failed: 2 crash, 1:20 left"
    )
    assert lines[-1].startswith("op small: finals 10/40")


def test_live_progress_draws_and_cleans_up() -> None:
    stream = io.StringIO()
    progress = open_progress("op [small]", Console(file=stream, force_terminal=True, width=120))
    assert isinstance(progress, LiveProgress)
    progress.update(_snapshot(compiled=30, measured=25))
    progress.close()
    progress.close()
    drawn = stream.getvalue()
    for expected in (
        "op [small]",
        "10/40",
        "0.5 ms (50% of the device's speed)",
        "2 crash",
        "1:00 left",
        "X=1",
    ):
        assert expected in drawn
    assert "compiled and" in drawn


def test_no_terminal_gives_plain_lines() -> None:
    stream = io.StringIO()
    progress = open_progress("op", Console(file=stream))
    assert isinstance(progress, PlainProgress)
    progress.update(_snapshot())
    assert stream.getvalue().startswith("op: timing 10/40")


def test_the_default_is_compared_by_the_rounds_that_both_were_in() -> None:
    from coldforge.tuner.summary import over_default

    best = {"template": "t", "config": {"A": 1}, "time_ms": 1.0}
    default = {"template": "t", "config": {"A": 2}, "time_ms": 6.0}
    rows = [{**best, "standing": "tied", "ratio": 1.25}, {**default, "standing": "slower", "ratio": 2.0}]
    assert over_default(best, default, rows) == 1.6
    rows[0] |= {"standing": "leader", "ratio": None}
    assert over_default(best, default, rows) == 2.0
    assert over_default(best, default, rows[:1]) == 6.0
    assert over_default(best, default, []) == 6.0
    assert over_default(best, {**default, "time_ms": None}, rows) is None
    assert over_default(None, default, rows) is None


def test_the_words_for_a_share_of_the_devices_speed() -> None:
    def words(time_ms: float | None, floor_ms: float | None, **limit: str) -> str:
        return speed_text({"time_ms": time_ms, "floor_ms": floor_ms, **limit})

    assert words(2.0, 1.0, limit="memory") == "50% of the device's memory speed"
    assert words(2.0, 1.0, limit="arithmetic") == "50% of the device's arithmetic speed"
    assert words(2.0, 1.0) == "50% of the device's speed"
    assert words(1000.0, 1.0) == "under 1% of the device's speed"
    # A kernel that beat the probe of its device: 100% would sound as if nothing faster were possible.
    assert words(1.0, 1.0, limit="memory") == "the highest memory speed seen on the device"
    assert words(1.0, 1.3) == "the highest speed seen on the device"
    assert words(1.0, None) == words(None, 1.0) == words(1.0, 0.0) == speed_text(None) == ""


def test_the_fastest_are_told_apart_by_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    """A config in full takes ten lines of a narrow terminal; and one problem on one device has one floor."""
    configs = [{"TILE": 8, "KIND": "a", "VEC": 4}, {"TILE": 8, "KIND": "b", "VEC": 4}, {"TILE": 16}]
    floors = (0.5, 0.8, 0.4)  # as the probe of the device was corrected
    entries = [
        {
            "template": "t" if index < 2 else "u",
            "config": config,
            "time_ms": 1.0 + index,
            "floor_ms": floor_ms,
            "error": 1e-7,
            "resources": {},
            "ci95_ms": None,
        }
        for index, (config, floor_ms) in enumerate(zip(configs, floors, strict=True))
    ]
    Console(width=80).print(_top(entries, {**entries[0], "from": "finals"}))
    heads, *lines = capsys.readouterr().out.splitlines()
    assert heads.split()[:4] == ["#", "ms", "speed", "error"]
    assert [line.split()[2] for line in lines] == ["40%", "20%", "13%"]
    assert [line.split()[4:] for line in lines] == [["(the", "best)"], ["KIND=b"], ["u", "TILE=16"]]
