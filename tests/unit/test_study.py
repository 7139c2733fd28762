# SPDX-License-Identifier: Apache-2.0
"""Studies in storage: what a name depends on, what a trial holds, and what survives a kill."""

from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from coldforge.codegen.errors import ColdforgeError, InputError, UnknownName
from coldforge.tuner.identity import StudyInputs
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.roots import remembered
from coldforge.tuner.search import FeasibleSet, Point
from coldforge.tuner.storage import open_storage, storage_faults
from coldforge.tuner.study import Study, find_study, finished_count, list_studies, open_study, tally, thinned
from optuna.trial import TrialState

INPUTS = StudyInputs(
    operator="conv2d_divide_leaky_relu",
    workload="small",
    operator_digest="d1",
    problem={"operator": "conv2d_divide_leaky_relu", "dims": {"N": 4, "H": 64}, "dtype": "fp32"},
    precision="fp32",
    target={
        "kind": "cpu",
        "arch": "x86-64-v3",
        "device": "a CPU",
        "attributes": {"threads": 2, "llc_bytes": 9},
    },
    spaces={"direct": "s1"},
    sources={"direct.cpp.jinja": "t1", "kernel.hpp": "t2"},
    compiler="g++ 12.2.0",
    flags=("-O3",),
    driver="580.1",
    verification="1",
)
FEASIBLE = FeasibleSet({"direct": [{"TILE": t, "KIND": k} for t in (8, 16, 32) for k in ("a", "b")]})


def _record(study: Study, index: int, result: TrialResult) -> None:
    study.record(FEASIBLE.points[index], result, FEASIBLE.distributions_of(index), seconds=0.5)


def _ok(time_ms: float, **more: Any) -> TrialResult:
    return TrialResult(TrialOutcome.OK, time_ms=time_ms, samples_ms=(time_ms,) * 3, error=1e-7, **more)


@pytest.mark.parametrize(
    "change",
    [
        {"operator": "other"},
        {"operator_digest": "d2"},
        {"problem": {**INPUTS.problem, "dims": {"N": 4, "H": 65}}},
        {"problem": {**INPUTS.problem, "dtype": "fp16"}},
        {"precision": "tf32"},
        {"target": {**INPUTS.target, "device": "another CPU"}},
        {"target": {**INPUTS.target, "arch": "x86-64-v4"}},
        {"target": {**INPUTS.target, "attributes": {"threads": 4, "llc_bytes": 9}}},
        {"spaces": {"direct": "s2"}},
        {"spaces": {"direct": "s1", "tiled": "s3"}},
        {"sources": {**INPUTS.sources, "kernel.hpp": "t3"}},
        {"compiler": "g++ 13.1.0"},
        {"flags": ("-O2",)},
        {"driver": "590.1"},
        {"verification": "2"},
    ],
)
def test_the_name_changes_with_every_input(change: dict[str, Any]) -> None:
    assert dataclasses.replace(INPUTS, **change).name != INPUTS.name


def test_the_name_does_not_change_with_the_order_of_mappings() -> None:
    turned = dataclasses.replace(
        INPUTS,
        problem=dict(reversed(INPUTS.problem.items())),
        target={**dict(reversed(INPUTS.target.items())), "attributes": {"llc_bytes": 9, "threads": 2}},
        sources=dict(reversed(INPUTS.sources.items())),
    )
    assert turned.name == INPUTS.name
    assert INPUTS.name.startswith("conv2d_divide_leaky_relu-small-fp32-x86-64-v3-")


def test_the_digest_leaves_out_the_workloads_name() -> None:
    renamed = dataclasses.replace(INPUTS, workload="tiny", problem={**INPUTS.problem, "workload": "tiny"})
    assert renamed.digest == INPUTS.digest
    assert renamed.name != INPUTS.name


def test_embedded_storage_is_sqlite_in_wal_mode(tmp_path: Path) -> None:
    open_study(_storage(tmp_path), INPUTS)
    with sqlite3.connect(tmp_path / "studies.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_storage_by_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sub' / 'mine.db'}"
    assert open_storage(url, tmp_path, create=False) is None
    storage = open_storage(url, tmp_path)
    assert storage is not None
    open_study(storage, INPUTS)
    assert [study.name for study in list_studies(open_storage(url, tmp_path, create=False))] == [INPUTS.name]
    assert not (tmp_path / "studies.db").exists()


@pytest.mark.parametrize("url", ["nonsense", "nodb://host/x", "postgresql+nodriver://host/x"])
def test_bad_storage_url_is_bad_input(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="storage"):
        open_storage(url, tmp_path)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "studies.db").write_text("this is a text file, long enough to be read as a header\n" * 40)
    with pytest.raises(ColdforgeError, match=r"studies\.db"):
        open_storage(None, tmp_path)


def test_a_database_that_fails_later_is_one_line(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    assert storage is not None
    with sqlite3.connect(tmp_path / "studies.db") as connection:
        connection.execute("DROP TABLE studies")
    match = r"cannot be read or written: .*no such table"
    with pytest.raises(ColdforgeError, match=match), storage_faults():
        list_studies(storage)


def test_a_config_that_two_runs_tried_counts_once() -> None:
    results = [
        TrialResult(TrialOutcome.OK, time_ms=t, template="direct", config={"T": 1}) for t in (1.0, 2.0)
    ]
    assert finished_count(results) == 1
    assert finished_count([*results, dataclasses.replace(results[0], config={"T": 2})]) == 2


def test_trials_are_finished_and_hold_everything(tmp_path: Path) -> None:
    study = open_study(_storage(tmp_path), INPUTS)
    _record(study, 0, _ok(1.5, resources={"registers": 32}, code_digest="c0", details={"floor_ms": 0.5}))
    _record(study, 1, TrialResult(TrialOutcome.WRONG_RESULT, "normal inputs: off by 3 bounds", error=0.1))
    stored = optuna.load_study(study_name=study.name, storage=_storage(tmp_path)).trials
    assert [trial.state for trial in stored] == [TrialState.COMPLETE, TrialState.PRUNED]
    assert [trial.value for trial in stored] == [1.5, None]
    assert stored[0].params == {"template": "direct", "TILE": 8, "KIND": "a"}
    assert all(trial.system_attrs == {} for trial in stored)
    assert stored[0].duration is not None
    assert stored[0].duration.total_seconds() == pytest.approx(0.5)
    good, bad = open_study(_storage(tmp_path), INPUTS).results()
    assert (good.ok, good.time_ms, good.template, good.config) == (
        True,
        1.5,
        "direct",
        {"TILE": 8, "KIND": "a"},
    )
    assert (good.resources, good.code_digest, good.details) == ({"registers": 32}, "c0", {"floor_ms": 0.5})
    assert (bad.outcome, bad.reason, bad.error) == (
        TrialOutcome.WRONG_RESULT,
        "normal inputs: off by 3 bounds",
        0.1,
    )


@pytest.mark.parametrize("outcome", [o for o in TrialOutcome if o is not TrialOutcome.OK])
def test_no_outcome_is_told_as_fail(outcome: TrialOutcome, tmp_path: Path) -> None:
    study = open_study(_storage(tmp_path), INPUTS)
    _record(study, 2, TrialResult(outcome, "why"))
    assert [trial.state for trial in study.trials()] == [TrialState.PRUNED]
    assert finished_count(study.results()) == (0 if outcome is TrialOutcome.ILLEGAL else 1)
    assert tally(study.results()) == {outcome.value: 1}


@pytest.mark.parametrize("figure", [float("inf"), float("nan")])
def test_a_variant_that_left_no_number_leaves_a_study_that_can_be_read(figure: float, tmp_path: Path) -> None:
    """What a kernel does not write stays NaN: its error is none, and no bound holds it."""
    storage = open_storage(None, tmp_path)
    assert storage is not None
    study = open_study(storage, INPUTS)
    _record(study, 0, TrialResult(TrialOutcome.WRONG_RESULT, "wrong", error=figure, bound_ratio=figure))
    _record(study, 1, _ok(1.0))
    wrong, right = study.results()
    assert (wrong.outcome, wrong.error, wrong.bound_ratio) == (TrialOutcome.WRONG_RESULT, None, None)
    assert right.error == 1e-7
    # One that an older version wrote.
    place = tmp_path / "studies.db"
    with sqlite3.connect(place) as database:
        old = "INSERT INTO trial_user_attributes (trial_id, key, value_json) VALUES (1, 'error', 'Infinity')"
        database.execute(old)
    assert study.results()[0].error is None


def test_samples_are_thinned() -> None:
    assert thinned([]) == []
    assert thinned([1.0, 2.0]) == [1.0, 2.0]
    many = thinned([float(i) for i in range(1234)])
    assert len(many) <= 100
    assert many[0] == 0.0
    assert many[-1] > 1200


def test_study_argument(tmp_path: Path) -> None:
    storage = _storage(tmp_path)
    first = open_study(storage, INPUTS)
    first.touch()
    second = open_study(storage, dataclasses.replace(INPUTS, workload="seed"))
    second.touch()
    third = open_study(storage, dataclasses.replace(INPUTS, operator="conv2d_mish"))
    third.touch()
    assert find_study(storage, INPUTS.operator).name == second.name
    first.touch()
    assert find_study(storage, INPUTS.operator).name == first.name
    assert find_study(storage, second.name).name == second.name
    assert find_study(storage, "conv2d_divide_leaky_relu-se").name == second.name
    with pytest.raises(InputError, match="'conv2d_d' is not unique: conv2d_divide_leaky_relu-s"):
        find_study(storage, "conv2d_d")
    with pytest.raises(UnknownName, match="unknown study 'nope'; known: conv2d"):
        find_study(storage, "nope")
    with pytest.raises(UnknownName, match="known: none"):
        find_study(None, "nope")


def test_reopening_keeps_the_description(tmp_path: Path) -> None:
    about = open_study(_storage(tmp_path), INPUTS).about
    assert open_study(_storage(tmp_path), INPUTS).about == about
    assert about["created"]
    assert (
        StudyInputs(**{k: v for k, v in about.items() if k not in ("created", "coldforge")}).digest
        == INPUTS.digest
    )


_WRITER = """
import sys
from pathlib import Path
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.search import FeasibleSet
from coldforge.tuner.storage import open_storage, storage_faults
from coldforge.tuner.study import open_study
from coldforge.tuner.identity import StudyInputs
inputs = StudyInputs("op", "w", "d", {"dims": {}}, "fp32", {"kind": "cpu", "arch": "a"}, {"t": ""}, {}, "c")
study = open_study(open_storage(None, Path(sys.argv[1])), inputs)
feasible = FeasibleSet({"t": [{"X": x} for x in range(2000)]})
for index in range(len(feasible)):
    result = TrialResult(TrialOutcome.OK, time_ms=1.0)
    study.record(feasible.points[index], result, feasible.distributions_of(index))
    print(index, flush=True)
"""


def test_kill_9_leaves_a_readable_study(tmp_path: Path) -> None:
    """What was reported as recorded before the kill is there, nothing is half done, and writing goes on at
    once.
    """
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [int(process.stdout.readline()) for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
        seen += [int(line) for line in process.stdout.read().split()]
    study = list_studies(open_storage(None, tmp_path, create=False))[0]
    trials = study.trials()
    assert len(trials) - len(seen) in (0, 1)
    assert [trial.params["X"] for trial in trials] == list(range(len(trials)))
    everything = optuna.load_study(study_name=study.name, storage=_storage(tmp_path)).get_trials()
    assert len(everything) == len(trials)
    began = time.monotonic()
    point = Point("t", {"X": 99})
    feasible = FeasibleSet({"t": [{"X": x} for x in range(2000)]})
    study.record(point, _ok(1.0), feasible.distributions_of(99))
    assert time.monotonic() - began < 5.0


def _storage(home: Path) -> optuna.storages.BaseStorage:
    storage = open_storage(None, home)
    assert storage is not None
    return storage


def test_an_empty_study_answers_for_no_operator_that_has_another(tmp_path: Path) -> None:
    storage = _storage(tmp_path)
    tried = open_study(storage, INPUTS)
    tried.remember_roots(["good"])
    empty = open_study(storage, dataclasses.replace(INPUTS, operator_digest="d2"))
    empty.remember_roots(["bad"])
    tried.touch()
    empty.touch()
    name = INPUTS.operator
    assert find_study(storage, name).name == empty.name  # nothing better is there
    assert remembered(storage, [name]) == {name: (Path("bad"),)}
    _record(tried, 0, _ok(1.0))
    assert find_study(storage, name).name == tried.name
    assert remembered(storage, [name]) == {name: (Path("good"),)}
    assert find_study(storage, name, empty=True).name == empty.name
    assert find_study(storage, empty.name).name == empty.name
    _record(empty, 0, TrialResult(TrialOutcome.WRONG_RESULT))  # which is not empty any more
    assert find_study(storage, name).name == empty.name
    assert remembered(storage, [name]) == {name: (Path("bad"),)}
