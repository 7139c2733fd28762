# SPDX-License-Identifier: Apache-2.0
"""The scripts under benchmarks/: what they make of measurements, and that they run on this machine."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.tuner.ranking import rank
from coldforge.tuner.search import Point

pytestmark = pytest.mark.build

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def _run(name: str, arguments: list[str], home: Path, ends: tuple[int, ...] = (0,)) -> str:
    environment = {**os.environ, "COLDFORGE_HOME": str(home)}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--target", "cpu", *arguments]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode in ends, done.stdout + done.stderr[-3000:]
    return done.stdout


def _row(size: int, fraction: float, axis: str = "batch", resident: bool = False) -> dict[str, Any]:
    return {"axis": axis, "size": size, "fraction": fraction, "cache_resident": resident, "cold": False}


def test_a_cliff_is_worse_than_the_smaller_size(monkeypatch: pytest.MonkeyPatch) -> None:
    cliffs = _script("sizes", monkeypatch).cliffs
    rows = [_row(1, 0.2), _row(2, 0.5), _row(3, 0.4), _row(4, 0.8), _row(8, 0.6), _row(16, 0.85)]
    assert [(c["axis"], c["size"]) for c in cliffs(rows)] == [("batch", 8)]
    assert cliffs(rows)[0]["worse"] == pytest.approx(0.8 / 0.6)
    # A step that lasts, two sizes in a row, the last size.
    assert [c["size"] for c in cliffs([_row(1, 0.9), _row(2, 0.4), _row(4, 0.4), _row(8, 0.9)])] == [2]
    assert [c["size"] for c in cliffs([_row(1, 0.9), _row(2, 0.4)])] == [2]
    # A line of its own for each axis, and none of shapes of which some fit the cache.
    assert cliffs([_row(1, 0.8), _row(64, 0.5, "image"), _row(96, 0.5, "image")]) == []
    assert cliffs([_row(1, 0.8, resident=True), _row(2, 0.5), _row(4, 0.6)]) == []


def test_every_size_is_swept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from coldforge.codegen.problem import make_problem

    sizes = _script("sizes", monkeypatch)
    base = make_problem(catalogue().operator(sizes.OPERATORS[0]), "seed")
    shapes = sizes.swept(base, sizes.BATCHES["cuda"], sizes.IMAGES["cuda"])
    batches = [problem.dims["N"] for axis, problem in shapes if axis == "batch"]
    images = [(problem.dims["H"], problem.dims["W"]) for axis, problem in shapes if axis == "image"]
    assert batches == sorted(set(batches))
    assert {2**power for power in range(10)} <= set(batches)
    assert {(2**power, 2**power) for power in range(5, 10)} <= set(images)
    assert any(size % 2 for size, _ in images)


def test_a_wrong_result_is_no_size_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = _script("sizes", monkeypatch)
    rows = [{**_row(n, 0.5), "time_ms": 1.0, "bound_ratio": r} for n, r in ((1, 0.3), (2, math.inf))]
    rows.append({"axis": "batch", "size": 4, "time_ms": None, "reason": "no kernel"})
    documents = [{"operators": {"conv": {"rows": rows[first:], "cliffs": []}}} for first in (2, 0)]
    monkeypatch.setattr(sizes, "measure", lambda _: {**documents.pop(0), "seconds": 1.0})
    monkeypatch.setitem(sys.modules, "sizes_plot", None)
    monkeypatch.setattr(sys, "argv", ["sizes.py", "--out", str(tmp_path)])
    assert (sizes.main(), sizes.main()) == (0, 1)
    assert "conv: batch 2 is inf times its error bound off" in capsys.readouterr().err


def test_a_bundle_that_cannot_be_made_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    geometries = _script("geometries", monkeypatch)
    rows = [{"name": "frozen", "time_ms": 1.0}]

    def coldforge(words: list[str]) -> dict[str, Any]:
        if "--bundle" in words:
            raise geometries.StepFailed("no space left")
        return {"rows": rows, "floor_ms": 0.5, "seconds": 1.0}

    monkeypatch.setattr(geometries, "coldforge", coldforge)
    words = ["--target", "cpu", "--only", "mish", "--out", str(tmp_path), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["geometries.py", *words])
    assert geometries.main() == 1
    assert "geometries.zip: no space left" in capsys.readouterr().out
    assert (tmp_path / "mish.json").is_file()


def test_the_geometries_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    geometries = _script("geometries", monkeypatch)
    declared = catalogue().operators
    for operator in geometries.GEOMETRIES.values():
        if operator in declared:  # each is a family's operator of its own
            assert {"seed", "small"} <= set(declared[operator].workloads)
    assert sum(operator in declared for operator in geometries.GEOMETRIES.values()) >= 4


def test_a_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    row = _script("geometries", monkeypatch).row
    rows = [{"name": "frozen", "time_ms": 2.0}, {"name": "eager", "time_ms": 5.0}]
    rows += [{"name": "compile", "time_ms": None}]
    document = {"geometry": "stem", "bench": {"rows": rows, "floor_ms": 1.0}}
    text = row({**document, "tune": {"best": {"template": "tensor"}}})
    assert text.split() == ["stem", "tensor", "2.0000", "1.0000", "2.00", "5.000", "2.50x", "-", "-", "-"]


def test_what_the_runs_of_a_kernel_against_itself_say(monkeypatch: pytest.MonkeyPatch) -> None:
    script = _script("aa", monkeypatch)
    same = dict.fromkeys(range(50), 1.0)
    slower = dict.fromkeys(range(50), 1.25)
    rows = [script.row_of(rank([dict(same), dict(same)]), 50) for _ in range(19)]
    assert rows[0]["declared"] is False
    assert rows[0]["ratio"] == 1.0
    rows.append(script.row_of(rank([slower, same]), 50))
    assert rows[-1]["declared"] is True
    assert rows[-1]["ratio"] == pytest.approx(0.8)  # of the second name to the first
    assert rows[-1]["ratio_ci95"] == pytest.approx([0.8, 0.8])
    summary = script.summary_of(rows, limit=5.0)
    assert (summary["false_winners"], summary["limit"], summary["passed"]) == (1, 1.0, True)
    assert summary["ci95_holds_1"] == 19
    assert script.summary_of(rows[-2:], limit=5.0)["passed"] is False


def test_winners_of_several_tunings_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tunings found the same config, which is timed once."""
    script = _script("ten_tunings", monkeypatch)
    tunings = [{"seed": s, "template": "direct", "config": {"A": a}} for s, a in enumerate((1, 2, 1))]
    distinct = [Point("direct", {"A": a}).key for a in (1, 2)]
    ranking = rank([dict.fromkeys(range(50), 1.0), dict.fromkeys(range(50), 1.02)])
    rows = script.compared(tunings, distinct, ranking)
    assert [row["within"] for row in rows] == [True, False, True]
    assert [row["of_the_best"] for row in rows] == pytest.approx([1.0, 1.02, 1.0])
    assert [row["standing"] for row in rows] == ["leader", "slower", "leader"]


@pytest.mark.parametrize("name", ["aa", "ten_tunings"])
def test_an_unknown_operator_is_one_line(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "COLDFORGE_HOME": str(tmp_path)}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "nosuch", "--target", "cpu"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"{name}.py: unknown operator")


def test_the_rate_of_two_workers_begins_when_both_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    script = _script("workers", monkeypatch)
    alone = [script.Measured(f"p{n}", "a", float(n)) for n in range(11)]
    assert script.rate_of(alone) == pytest.approx(60.0)
    late = [script.Measured(f"q{n}", "b", 6.0 + n) for n in range(5)]
    assert script.rate_of(alone + late) == pytest.approx(60.0 * 8 / 4)
    assert script.rate_of([]) == script.rate_of(alone[:1]) == 0.0
    twice = script.facts_of("two", [*alone, script.Measured("p3", "b", 20.0)], 11)
    assert (twice["duplicates"], twice["finished"], twice["by_worker"]) == (1, 12, [11, 1])


def _workers_row(run: str, rate: float, **change: Any) -> dict[str, Any]:
    row = {
        "run": run,
        "configs_per_minute": rate,
        "duplicates": 0,
        "finished": 9,
        "wanted": 9,
        "within": True,
    }
    return {**row, **change}


def test_what_is_asked_of_a_second_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = _script("workers", monkeypatch).verdict
    rows = [_workers_row("one", 100.0), _workers_row("two", 185.0), _workers_row("killed", 150.0)]
    assert verdict(rows, True)["passed"] is True
    assert verdict(rows, True)["speedup"] == 1.85
    slow = [rows[0], _workers_row("two", 170.0), rows[2]]
    assert (verdict(slow, True)["passed"], verdict(slow, False)["passed"]) == (False, True)
    for wrong in ({"duplicates": 1}, {"finished": 10}, {"within": False}):
        assert verdict([*rows[:2], _workers_row("killed", 150.0, **wrong)], True)["passed"] is False


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_on_one_study(tmp_path: Path) -> None:
    words = [
        "conv2d_divide_leaky_relu",
        "--trials",
        "8",
        "--template",
        "direct",
        "--work",
        str(tmp_path / "w"),
    ]
    printed = _run("workers", [*words, "--out", str(tmp_path / "workers.json")], tmp_path, ends=(0, 1))
    document = json.loads((tmp_path / "workers.json").read_text())
    assert [row["run"] for row in document["rows"]] == ["one", "two", "killed"]
    assert document["checks"]["no duplicates"]
    assert "two workers: " in printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kernel_against_itself(tmp_path: Path) -> None:
    words = ["conv2d_divide_leaky_relu", "--runs", "20", "--out", str(tmp_path / "aa.json")]
    assert "false_winners" in _run("aa", words, tmp_path)
    document = json.loads((tmp_path / "aa.json").read_text())
    assert document["summary"]["runs"] == len(document["rows"]) == 20
    assert document["summary"]["false_winners"] <= 1
    assert all(row["rounds"] >= 41 for row in document["rows"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_tunings_side_by_side(tmp_path: Path) -> None:
    words = ["conv2d_divide_leaky_relu", "--tunings", "2", "--trials", "3", "--work", str(tmp_path / "work")]
    words += ["--out", str(tmp_path / "ten.json")]
    _run("ten_tunings", words, tmp_path, ends=(0, 1))  # so few trials may well differ
    document = json.loads((tmp_path / "ten.json").read_text())
    assert [row["seed"] for row in document["rows"]] == [0, 1]
    assert all(row["finished"] == 3 for row in document["rows"])
    assert min(row["of_the_best"] for row in document["rows"]) <= 1.0
    assert document["within_1_percent"] == sum(row["within"] for row in document["rows"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_geometry_from_tuning_to_the_comparison(tmp_path: Path) -> None:
    words = [
        "--only",
        "mish",
        "--trials",
        "2",
        "--out",
        str(tmp_path / "out"),
        "--work",
        str(tmp_path / "work"),
    ]
    assert "mish" in _run("geometries", words, tmp_path)
    document = json.loads((tmp_path / "out/mish.json").read_text())
    assert document["tune"]["finished"] == 2
    assert document["bench"]["rows"][0]["name"] == "frozen"
    assert (tmp_path / "out/geometries.zip").is_file()
    assert "$ coldforge" not in _run("geometries", words, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sizes_of_a_frozen_kernel(tmp_path: Path) -> None:
    words = ["--operator", "conv2d_divide_leaky_relu", "--batches", "1,2,4", "--images", "32,33"]
    printed = _run("sizes", [*words, "--out", str(tmp_path)], tmp_path)
    assert "cliffs: " in printed
    rows = json.loads((tmp_path / "sizes.json").read_text())["operators"]["conv2d_divide_leaky_relu"]["rows"]
    assert [(row["axis"], row["size"]) for row in rows[:3]] == [("batch", 1), ("batch", 2), ("batch", 4)]
    assert len(rows) == 5
    for row in rows:
        assert row["time_ms"] is None or (row["time_ms"] > 0 and row["bound_ratio"] <= 1)


@pytest.mark.slow
def test_the_cost_of_a_call(tmp_path: Path) -> None:
    out = tmp_path / "overhead.json"
    _run("call_overhead", ["--rounds", "20", "--out", str(out)], tmp_path, (0, 1))
    rows = json.loads(out.read_text())["rows"]
    assert rows["empty op"]["over_empty_ns"] == 0
    # A busy machine takes longer: what is held here is the order of it.
    assert rows["function, batch 0"]["fastest_over_empty_ns"] < 6000


@pytest.mark.slow
def test_training_the_model(tmp_path: Path) -> None:
    out = tmp_path / "train.json"
    _run("train_cnn", ["--steps", "6", "--image", "16", "--out", str(out)], tmp_path)
    assert json.loads(out.read_text())["same_curve"]


def test_the_shapes_of_regret_are_tuned_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from coldforge.generated.runtime import manifest

    regret = _script("regret", monkeypatch)
    entries = manifest.load().entries
    for kind, largest in (("cuda", (256, 513)), ("cpu", (8, 129))):
        tuned = {tuple(e["workload"][n] for n in "NHW") for e in entries if e["target"]["kind"] == kind}
        problems = regret.problems_of("conv2d_divide_leaky_relu", kind, 12)
        shapes = [tuple(p.dims[n] for n in "NHW") for p in problems]
        assert len(set(shapes) - tuned) == 12
        assert (min(s[0] for s in shapes), max(s[0] for s in shapes)) == (1, largest[0])
        assert (min(min(s[1:]) for s in shapes), max(max(s[1:]) for s in shapes)) == (17, largest[1])
        assert max(p.bytes_read + p.bytes_written for p in problems) < 8e9


def _regret_row(
    ratio: float | None,
    exact: bool = False,
    tuned: bool = True,
    bound_ratios: tuple[float, float] = (0.5, 0.5),
) -> dict[str, Any]:
    dispatched, other = (
        {"exact": e, "bound_ratio": b} for e, b in zip((exact, tuned), bound_ratios, strict=True)
    )
    return {"ratio": ratio, "dispatched": dispatched, "tuned": other}


def test_regret_is_judged_by_its_mean_and_its_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    summary_of = _script("regret", monkeypatch).summary_of
    good = summary_of([_regret_row(1.1), _regret_row(1.0), _regret_row(0.99)])
    assert good["geometric_mean"] == pytest.approx((1.1 * 1.0 * 0.99) ** (1 / 3))
    assert (good["worst"], good["within"]) == (1.1, True)
    assert summary_of([_regret_row(1.16), *[_regret_row(1.0)] * 11])["within"] is False  # its worst
    assert summary_of([_regret_row(1.06)] * 12)["within"] is False  # its mean
    assert summary_of([_regret_row(1.0), _regret_row(None)])["within"] is False  # nothing covers one
    assert summary_of([_regret_row(1.0), _regret_row(1.0, exact=True)])["within"] is False  # one was tuned
    # Compared with the nearest kernel of the tuned package, and not with one of its own.
    assert summary_of([_regret_row(1.0), _regret_row(1.0, tuned=False)])["within"] is False
    for wrong in ((1.5, 0.5), (0.5, math.inf), (math.nan, 0.5)):
        assert summary_of([_regret_row(1.0), _regret_row(1.0, bound_ratios=wrong)])["within"] is False


@pytest.mark.slow
def test_regret_of_one_shape(tmp_path: Path) -> None:
    arguments = ["--first", "1", "--trials", "1", "--out", str(tmp_path), "--work", str(tmp_path / "work")]
    printed = _run("regret", arguments, tmp_path, (0, 1))
    (row,) = json.loads((tmp_path / "cpu_regret.json").read_text())["rows"]
    assert row["shape"] == {"N": 1, "H": 17, "W": 17}
    assert (row["dispatched"]["exact"], row["tuned"]["exact"]) == (False, True)
    assert max(row["dispatched"]["bound_ratio"], row["tuned"]["bound_ratio"]) <= 1
    assert row["ratio"] == pytest.approx(row["dispatched_ms"] / row["tuned_ms"], rel=1.0)
    assert "geometric mean" in printed


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("aa", ["conv2d_divide_leaky_relu", "--runs", "0"], "--runs 0"),
        ("regret", ["--first", "0"], "--first 0"),
        ("input_errors", ["conv2d_divide_leaky_relu", "--samples", "1", "--kinds", "nosuch"], "'nosuch'"),
    ],
)
def test_input_that_says_nothing_to_do_is_one_line(
    name: str, words: list[str], said: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "COLDFORGE_HOME": str(tmp_path)}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *words]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr[-2000:]
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{name}.py: ")
    assert said in line
