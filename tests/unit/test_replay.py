# SPDX-License-Identifier: Apache-2.0
"""Replaying recorded spaces: the readers, the rules, the figures."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from coldforge.codegen.errors import InputError
from coldforge.tuner.cli import run
from coldforge.tuner.replay.recorded import Recorded, read_recorded
from coldforge.tuner.replay.run import Run, replay
from coldforge.tuner.replay.table import overall, row_of
from coldforge.tuner.search import FeasibleSet, sampler_named
from coldforge.tuner.search.whole import WholePointSampler

LINE = (
    "X,KIND,time_ms,compile_ms\n" + "\n".join(f"{x},plain,{10.0 - x},5" for x in range(9)) + "\n9,plain,,5\n"
)


def _write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def _recorded(times: list[float]) -> Recorded:
    configs = [{"X": x, "Y": 0} for x in range(len(times))]
    return Recorded("made", FeasibleSet({"t": configs}), np.array(times))


# --- the readers ---


@pytest.mark.parametrize("name", ["line.csv", "line.csv.gz"])
def test_a_compact_csv(tmp_path: Path, name: str) -> None:
    found = read_recorded(_write(tmp_path, name, LINE))
    assert (found.name, len(found.feasible), found.optimum) == ("line", 10, 2.0)
    assert [dict(point.config) for point in found.feasible.points][:2] == [
        {"X": 0, "KIND": "plain"},
        {"X": 1, "KIND": "plain"},
    ]
    assert found.times[3] == 7.0
    assert math.isnan(found.times[9])


def test_a_csv_of_a_study(tmp_path: Path) -> None:
    text = (
        "trial,template,config.X,config.Y,outcome,time_ms\n"
        "0,a,1,,ok,2.0\n1,b,1,7,ok,1.0\n2,b,2,7,crash,\n3,b,3,7,illegal,\n4,a,1,,ok,1.5\n"
    )
    found = read_recorded(_write(tmp_path, "study.csv", text))
    points = [(point.template, dict(point.config)) for point in found.feasible.points]
    assert points == [("a", {"X": 1}), ("b", {"X": 1, "Y": 7}), ("b", {"X": 2, "Y": 7})]
    np.testing.assert_array_equal(found.times, [1.5, 1.0, math.nan])


def test_the_json_of_a_study(tmp_path: Path) -> None:
    trials = [
        {"template": "a", "config": {"X": 1}, "outcome": "ok", "time_ms": 2.0},
        {"template": "a", "config": {"X": 2}, "outcome": "wrong_result", "time_ms": None},
        {"template": "a", "config": {"X": 3}, "outcome": "illegal", "time_ms": None},
    ]
    document = {"format": "coldforge-study", "version": 1, "trials": trials}
    found = read_recorded(_write(tmp_path, "study.json.gz", json.dumps(document)))
    np.testing.assert_array_equal(found.times, [2.0, math.nan])


def _t4(config: dict[str, Any], time: Any, invalidity: str = "correct", **more: Any) -> dict[str, Any]:
    measured = [{"name": "power", "value": 9.0}, {"name": "time", "value": time, "unit": "ms"}]
    return {"configuration": config, "invalidity": invalidity, "measurements": measured, **more}


def test_t4(tmp_path: Path) -> None:
    results = [
        _t4({"X": 1, "F": 0.5, "B": True}, 3.0, correctness=1, objectives=["time"]),
        _t4({"X": 2.0, "F": 1.0, "B": False}, 9.0, objectives=["power"]),
        _t4({"X": 3, "F": 0.25, "B": True}, "InvalidConfig", "compile"),
        _t4({"X": 4, "F": 0.25, "B": True}, 1e-3, correctness=0),
    ]
    illegal = _t4({"X": 5, "F": 1, "B": True}, 1.0, "constraints")
    illegal["measurements"].append({"name": "outcome", "value": "illegal"})
    text = json.dumps({"schema_version": "1.0.0", "results": [*results, illegal]})
    found = read_recorded(_write(tmp_path, "hub_T4.json", text))
    assert found.name == "hub_T4"
    assert [dict(point.config) for point in found.feasible.points][1] == {"X": 2, "F": 1, "B": 0}
    np.testing.assert_array_equal(found.times, [3.0, 9.0, math.nan, math.nan])


def _study(config: Any, **more: Any) -> str:
    return json.dumps({"trials": [{"template": "a", "config": config, "outcome": "ok", **more}]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the first line names parameters"),
        ("A,B\n1,2\n", "the first line names parameters"),
        ("A,A,time_ms\n1,2,3\n", "each once"),
        ("time_ms,A\n1,2\n", "the parameters stand before"),
        ("A,time_ms\n1\n", "line 2: 1 cells, not 2"),
        ("A,time_ms\n1,soon\n", "line 2: the time 'soon' is no number"),
        ("A,time_ms\n1,0\n", "line 2: a time of 0"),
        ("A,time_ms\n1,-3\n", "line 2: a time of -3"),
        ("A,time_ms\n1,\n2,nan\n3,inf\n", "no config in it has a time"),
        ("A,time_ms\n", "no config in it has a time"),
        ('A,time_ms\n"1,2\n', "end of data"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "neither T4"),
        ("{}", "neither T4"),
        ('{"results": 3}', "results is no list"),
        ('{"results": [{"configuration": 3}]}', "results[0].configuration is no mapping"),
        (json.dumps({"results": [_t4({"A": [1]}, 1.0)]}), "results[0]: A is neither a number nor a word"),
        (json.dumps({"results": [_t4({"A": 1}, "x")]}), "results[0]: the time 'x' is no number"),
        (json.dumps({"results": [_t4({"A": 1}, [1])]}), "results[0]: the time [1] is no number"),
        (json.dumps({"results": [_t4({"A": 1}, 1.0), _t4({"B": 1}, 1.0)]}), "the same parameters"),
        (_study({}, time_ms=None), "no config in it has a time"),
        (_study(None, time_ms=1.0), "trials[0].config is no mapping"),
        (_study({"A": 1}, time_ms="x"), "trials[0]: the time 'x' is no number"),
    ],
)
def test_bad_files_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = _write(tmp_path, "bad.csv", text)
    with pytest.raises(InputError) as raised:
        read_recorded(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)
    assert run(["replay", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


# Named, since workers must collect the same names: gzip's header holds the time.
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x1f\x8b\x08", id="a header cut off"),
        pytest.param(gzip.compress(b"A,time_ms", mtime=0)[:-9], id="gzip cut off"),
        pytest.param(b"A,time_ms\n\xff,1\n", id="not UTF-8"),
    ],
)
def test_damaged_bytes_are_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.csv.gz").write_bytes(data)
    assert run(["replay", str(tmp_path / "x.csv.gz")]) == 2
    assert run(["replay", str(tmp_path)]) == 2
    assert run(["replay", str(tmp_path / "nothing")]) == 2


# --- the rules ---


class Scripted(WholePointSampler):
    """Suggests given points, seen or not."""

    def __init__(self, feasible: FeasibleSet, script: list[int]) -> None:
        super().__init__(feasible)
        self.script = list(script)
        self.known: list[list[tuple[str, float | None]]] = []

    def choose(self, study: optuna.Study) -> int:
        """The next of the script."""
        trials = study.get_trials(deepcopy=False)[:-1]
        self.known.append([(t.state.name, t.value) for t in trials])
        return self.script.pop(0)


def test_repeats_are_answered_and_counted_and_cost_no_evaluation() -> None:
    recorded = _recorded([5.0, math.nan, 3.0, 1.0])
    made: list[Scripted] = []

    def factory(feasible: FeasibleSet, seed: int) -> Scripted:
        made.append(Scripted(feasible, [0, 1, 0, 1, 2, 3]))
        return made[-1]

    done = replay(recorded, factory, 0, 3)
    np.testing.assert_array_equal(done.times, [5.0, math.nan, 3.0])
    assert (done.repeats, done.outside, done.asks) == (2, 0, 5)
    # What it saw: nothing but what was evaluated, and failures as PRUNED.
    assert made[0].known[0] == []
    assert made[0].known[4] == [("COMPLETE", 5.0), ("PRUNED", None), ("COMPLETE", 5.0), ("PRUNED", None)]


class Anything(optuna.samplers.RandomSampler):
    """Random values of each parameter, feasible together or not."""


def test_suggestions_outside_of_the_space_cost_nothing() -> None:
    configs = [{"X": x, "Y": y} for x in range(8) for y in range(8) if (x + y) % 4 == 0]
    recorded = Recorded("diagonals", FeasibleSet({"t": configs}), np.arange(1.0, 17.0))
    done = replay(recorded, lambda feasible, seed: Anything(seed=seed), 0, 12)
    assert len(done.times) == 12 == len(set(done.times))
    assert done.outside > 12
    assert done.asks == 12 + done.repeats + done.outside


def test_a_sampler_that_knows_nothing_new_is_stopped() -> None:
    recorded = _recorded([2.0, 1.0])
    done = replay(recorded, lambda feasible, seed: Scripted(feasible, [0] * 1000), 0, 2)
    assert len(done.times) == 1
    assert done.repeats == 99


@pytest.mark.parametrize("name", ["gp", "densities", "local", "tpe", "random", "exhaustive"])
def test_every_sampler_sees_the_whole_of_a_small_space(name: str) -> None:
    recorded = _recorded([3.0, math.nan, 1.0, 2.0, math.nan])
    for seed in range(2):
        done = replay(recorded, sampler_named(name), seed, 200)
        assert sorted(done.times[np.isfinite(done.times)]) == [1.0, 2.0, 3.0]
        assert len(done.times) == 5
        if name != "tpe":
            assert (done.repeats, done.outside) == (0, 0)


def test_a_run_may_end_with_a_time_that_is_good_enough() -> None:
    recorded = _recorded([5.0, math.nan, 4.0, 3.0, 1.0])
    for first in ((), (0, 1)):
        done = replay(recorded, sampler_named("exhaustive"), 0, 5, first, until=3.0)
        np.testing.assert_array_equal(done.times, [5.0, math.nan, 4.0, 3.0])
    assert len(replay(recorded, sampler_named("exhaustive"), 0, 5, until=0.5).times) == 5


def test_the_same_seed_is_the_same_run() -> None:
    recorded = _recorded([1.0 + (7 * x) % 50 for x in range(50)])
    runs = [replay(recorded, sampler_named("gp"), seed, 30).times.tolist() for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


# --- the figures ---


def test_figures_of_runs() -> None:
    recorded = _recorded([1.0, 1.04, 1.5, 2.0, math.nan])
    runs = [
        Run(np.array([2.0, 1.04, 1.5, 1.0]), 3, 1, 0.008),
        Run(np.array([math.nan, 1.5, 1.04, 2.0]), 0, 0, 0.004),
        Run(np.array([math.nan, math.nan, 2.0, 1.5]), 0, 0, 0.004),
    ]
    row = row_of(recorded, "gp", runs, 50)
    assert (row["space"], row["sampler"], row["seeds"], row["budget"]) == ("made", "gp", 3, 50)
    assert (row["configs"], row["failed_configs"]) == (5, 1)
    assert (row["configs_within_5pct"], row["configs_within_1pct"]) == (2, 1)
    assert (row["to_5pct_median"], row["to_5pct_share"]) == (3.0, pytest.approx(2 / 3))
    assert row["to_5pct_p90"] == pytest.approx(3 + 0.8 * 97)  # 2, 3, and a miss as 100
    assert (row["to_1pct_median"], row["to_1pct_share"]) == (100.0, pytest.approx(1 / 3))
    assert row["to_1pct_geomean"] == pytest.approx((4 * 100 * 100) ** (1 / 3), abs=0.01)
    assert row["ratio_at"] == {"50": 1.04, "100": None, "200": None}
    assert (row["repeats_mean"], row["outside_mean"]) == (1.0, 0.33)
    assert row["ask_ms"] == 1.0
    (total,) = overall([row, {**row, "space": "other", "to_5pct_share": 0.0, "to_5pct_geomean": 100.0}])
    assert total["to_5pct_share"] == pytest.approx(1 / 3, abs=1e-4)
    assert total["to_5pct_geomean"] == pytest.approx(math.sqrt(row["to_5pct_geomean"] * 100), abs=0.01)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(_write(tmp_path, name, LINE)) for name in ("one.csv", "two.csv.gz")]
    assert run(["replay", *paths, "--seeds", "3", "--budget", "60", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["space"] for row in found["rows"]] == ["one", "two"]
    assert {row["sampler"] for row in found["rows"]} == {found["overall"][0]["sampler"]}
    for row in found["rows"]:
        assert row["ratio_at"] == {"50": 1.0, "100": None, "200": None}
        assert row["to_1pct_median"] <= 10
    assert run(["replay", *paths, "--sampler", "random", "--sampler", "exhaustive", "--seeds", "2"]) == 0
    told = capsys.readouterr().out
    heads = next(line for line in told.splitlines() if line.startswith("space"))
    assert heads.split() == [
        "space",
        "sampler",
        "to",
        "5%",
        "to",
        "1%",
        "best",
        "/",
        "optimum",
        "repeats",
        "ask",
        "ms",
    ]  # none is cut
    assert "Best / optimum: after 50, 100, 200." in " ".join(told.split())
    assert "exhaustive: 100% of runs within 5% (geometric mean 9)" in told
    assert run(["replay", *paths, "--sampler", "all", "--seeds", "1", "--budget", "5", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 12
    assert run(["replay", *paths, "--sampler", "nope"]) == 2
    assert run(["replay"]) == 2
    assert run(["replay", paths[0], "--seeds", "0"]) == 2


def test_the_command_with_another_space_to_begin_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = (str(_write(tmp_path, name, LINE)) for name in ("here.csv", "there.csv"))
    other = str(_write(tmp_path, "other.csv", "Z,time_ms\n1,2.0\n2,1.0\n"))
    none_timed = "X,KIND,time_ms\n0,plain,\n1,plain,\n77,plain,1.0\n"
    nothing = str(_write(tmp_path, "nothing.csv", none_timed))
    arguments = ["replay", here, "--seeds", "4", "--budget", "10", "--sampler", "gp", "--sampler", "random"]
    for trials in ("5", "all"):
        assert run([*arguments, "--warm-start", there, "--warm-trials", trials, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["warm_start"], found["warm_trials"]) == ("there", "all" if trials == "all" else 5)
        kinds = [(row["sampler"], row["warm_start"]) for row in found["rows"]]
        assert kinds == [("gp", None), ("gp", "there"), ("random", None), ("random", "there")]
        assert kinds == [(total["sampler"], total["warm_start"]) for total in found["overall"]]
        for pair, cold, warm in zip(found["compared"], found["rows"][::2], found["rows"][1::2], strict=True):
            fewer = cold["to_5pct_geomean"] / warm["to_5pct_geomean"]
            assert pair["fewer_5pct_geomean"] == pytest.approx(fewer, abs=0.01)
        if trials == "all":  # the very same space: its best is the first
            assert [row["to_1pct_median"] for row in found["rows"][1::2]] == [1.0, 1.0]
    assert run([*arguments, "--warm-start", there]) == 0
    assert "here, gp: begun with there, " in capsys.readouterr().out
    for source, said in ((other, "no config that has a time there"), (nothing, "no config that has a time")):
        assert run([*arguments, "--warm-start", source]) == 2
        assert said in capsys.readouterr().err
    for trials in ("none", "0", "-1", "1000000", "²"):
        assert run([*arguments, "--warm-start", there, "--warm-trials", trials]) == 2
        assert "expected a number of configs up to 100000, or all" in capsys.readouterr().err
    assert run([*arguments, "--warm-start", str(tmp_path / "gone.csv")]) == 2
