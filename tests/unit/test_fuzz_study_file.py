# SPDX-License-Identifier: Apache-2.0
"""Damaged study files, through the command line: one line, exit code 1 or 2, and the file as it was."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.freeze import Winner
from coldforge.codegen.problem import make_problem
from coldforge.codegen.target import cpu_target
from coldforge.tuner import storage
from coldforge.tuner import study as studies
from coldforge.tuner.cli import tune
from coldforge.tuner.identity import StudyInputs
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.report import declared, page
from coldforge.tuner.search import FeasibleSet
from coldforge.tuner.winners import winner_to_dict
from fuzz import Ended, accepted_or_refused, changed, hostile_values, one_line, paths_of, profile
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage

OPERATOR = "conv2d_divide_leaky_relu"
STUDY = "conv2d_divide"  # a prefix of the one study's name
DECLARED = catalogue()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, naive_winner: Callable[..., Winner]) -> Path:
    """A home with a study that has trials, finals and a winner."""
    home = tmp_path_factory.mktemp("whole")
    problem = make_problem(catalogue().operator(OPERATOR), "small", {"C_out": 6})
    winner = naive_winner(device=cpu_target().device)
    inputs = StudyInputs(
        OPERATOR,
        "small",
        problem.operator.digest,
        problem.to_dict(),
        "fp32",
        cpu_target().to_dict(),
        {"direct": "d"},
        {"direct.cpp.jinja": "t"},
        "g++ 12.2.0",
    )
    study = studies.open_study(storage.open_storage(None, home), inputs)
    feasible = FeasibleSet({"direct": [{"GRAIN": 2, "MODE": "plain"}, {"GRAIN": 4, "MODE": "plain"}]})
    details = {"floor_ms": 0.1, "default": True}
    good = TrialResult(TrialOutcome.OK, time_ms=1.0, samples_ms=(1.0,), error=1e-7, details=details)
    bad = TrialResult(TrialOutcome.WRONG_RESULT, "wrong", resources={"registers": 3})
    for index, result in enumerate((good, bad)):
        study.record(feasible.points[index], result, feasible.distributions_of(index))
    finalist = {"template": "direct", "config": {"GRAIN": 2, "MODE": "plain"}, "outcome": "ok"}
    finals = [{**finalist, "time_ms": 1.0, "error": 1e-7, "floor_ms": 0.1}]
    record = {"trials": 2, "final": True, "time_ms": 1.0, "winner": winner_to_dict(winner)}
    study.set_winner(record, finals)
    study.touch()
    copy = tmp_path_factory.mktemp("copy")
    with closing(sqlite3.connect(home / "studies.db")) as connection:
        connection.execute("VACUUM INTO ?", (str(copy / "studies.db"),))
    return copy


@pytest.fixture
def home(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the home of commands; none of them gets as far as a compiler."""
    place = tmp_path / "home"
    shutil.copytree(whole, place)
    monkeypatch.setenv("COLDFORGE_HOME", str(place))
    monkeypatch.setattr(tune, "_tune_one", lambda chosen, plan, study, *rest: _read(study))
    return place


def _read(study: studies.Study) -> dict[str, Any]:
    """What a run reads of its study."""
    study.results()
    study.winner_is_current(2)
    return {"status": "ok"}


def _all(place: Path, codes: tuple[int, ...] = (0, 1, 2)) -> list[Ended]:
    """Each command that reads studies."""
    commands = (
        ("show",),
        ("show", STUDY, "--json"),
        ("freeze", "--bundle", str(place / "out.zip")),
        ("freeze", OPERATOR, "--package", "fuzzed", "--out", str(place / "out"), "--no-build"),
        ("tune", "no_such_operator", "--target", "cpu"),
    )
    return [accepted_or_refused(*arguments, codes=codes) for arguments in commands]


def test_undamaged(home: Path, tmp_path: Path) -> None:
    assert [ended.code for ended in _all(tmp_path)] == [0, 0, 0, 0, 2]


@pytest.mark.parametrize(
    "content",
    [
        b"SQLite format 3\0",
        b"SQLite format 3\0" + bytes(4080),
        b"not a database at all" * 50,
        bytes(range(256)) * 64,
    ],
    ids=["head", "zeros", "text", "bytes"],
)
def test_no_database(home: Path, tmp_path: Path, content: bytes) -> None:
    (home / "studies.db").write_bytes(content)
    for ended in _all(tmp_path, codes=(1, 2)):
        assert "studies.db" in one_line(ended)
    assert (home / "studies.db").read_bytes() == content
    assert list(tmp_path.glob("out*")) == []


@pytest.mark.parametrize("share", [0.1, 0.7, 0.999])
def test_a_truncated_database(home: Path, tmp_path: Path, share: float) -> None:
    path = home / "studies.db"
    content = path.read_bytes()[: int(path.stat().st_size * share)]
    path.write_bytes(content)
    _all(tmp_path)
    assert path.read_bytes()[:16] == content[:16]
    assert path.stat().st_size >= len(content)


@profile(8)
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, 10**9), st.binary(min_size=1, max_size=40)), min_size=1, max_size=12
    )
)
def test_bytes_of_the_database_changed(whole: Path, cuts: list[tuple[int, bytes]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        place = whole.parent / "bytes"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        content = bytearray((whole / "studies.db").read_bytes())
        for at, data in cuts:
            at %= len(content)
            content[at : at + len(data)] = data
        (place / "studies.db").write_bytes(content)
        patch.setenv("COLDFORGE_HOME", str(place))
        for arguments in (("show",), ("show", STUDY, "--json")):
            accepted_or_refused(*arguments, codes=(0, 1, 2))


def test_an_empty_file_is_a_new_database(home: Path, tmp_path: Path) -> None:
    (home / "studies.db").write_bytes(b"")
    assert "no studies yet" in accepted_or_refused("show").out


def test_a_folder_in_its_place(home: Path, tmp_path: Path) -> None:
    (home / "studies.db").unlink()
    (home / "studies.db").mkdir()
    for ended in _all(tmp_path, codes=(1, 2)):
        assert "studies.db" in one_line(ended)


def test_a_file_in_the_place_of_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDFORGE_HOME", str(home / "studies.db"))
    content = (home / "studies.db").read_bytes()
    for ended in _all(tmp_path):
        assert ended.code in (0, 1, 2)
    assert "cannot" in one_line(accepted_or_refused("tune", OPERATOR, "--target", "cpu", codes=(2,)))
    assert (home / "studies.db").read_bytes() == content


def test_another_programs_database_is_left_alone(home: Path, tmp_path: Path) -> None:
    path = home / "studies.db"
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE contacts (name TEXT)")
        connection.execute("INSERT INTO contacts VALUES ('somebody')")
        connection.commit()
    content = path.read_bytes()
    for ended in (*_all(tmp_path, codes=(2,)), accepted_or_refused("tune", OPERATOR, "--target", "cpu")):
        assert "another program's database" in one_line(ended)
    assert path.read_bytes() == content
    assert [p.name for p in home.iterdir()] == ["studies.db"]


def test_studies_of_others_are_passed_over(home: Path, tmp_path: Path) -> None:
    opened = storage.open_storage(None, home)
    foreign: list[dict[str, Any]] = [{}, {"about": "a text"}, {"about": {"operator": 3}}, {"winner": 5}]
    for number, attributes in enumerate(foreign):
        study = optuna.create_study(storage=opened, study_name=f"foreign{number}")
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
        for name, value in attributes.items():
            study.set_user_attr(name, value)
    assert [ended.code for ended in _all(tmp_path)] == [0, 0, 0, 0, 2]
    assert "foreign" not in accepted_or_refused("show").out


def _alter(home: Path, table: str, column: str, where: str, value: Any) -> None:
    with closing(sqlite3.connect(home / "studies.db")) as connection:
        done = connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,))
        connection.commit()
        assert done.rowcount > 0


@pytest.mark.parametrize(
    ("table", "column", "where"),
    [
        ("study_user_attributes", "value_json", "key = 'about'"),
        ("study_user_attributes", "value_json", "key = 'winner'"),
        ("study_user_attributes", "value_json", "key = 'finals'"),
        ("study_user_attributes", "value_json", "key = 'touched'"),
        ("trial_user_attributes", "value_json", "key = 'outcome'"),
        ("trial_user_attributes", "value_json", "key = 'config'"),
        ("trial_user_attributes", "value_json", "key = 'more'"),
        ("trial_params", "distribution_json", "1"),
        ("trial_params", "param_value", "1"),
        ("trial_values", "value", "1"),
        ("trials", "state", "1"),
        ("trials", "datetime_start", "1"),
        ("study_directions", "direction", "1"),
        ("version_info", "schema_version", "1"),
        ("studies", "study_name", "1"),
    ],
)
@pytest.mark.parametrize("value", ["[" * 50_000, "nonsense", -7], ids=lambda v: str(v)[:9])
def test_a_cell_changed(home: Path, tmp_path: Path, table: str, column: str, where: str, value: Any) -> None:
    try:
        _alter(home, table, column, where, value)
    except sqlite3.IntegrityError:
        pytest.skip("the schema itself refuses it")
    accepted_or_refused("show", STUDY, codes=(0, 1, 2))


@pytest.fixture(scope="module")
def documents(whole: Path) -> dict[str, Any]:
    """The study's attributes, and those of its trials as one list."""
    with closing(sqlite3.connect(whole / "studies.db")) as connection:
        rows = connection.execute("SELECT key, value_json FROM study_user_attributes").fetchall()
        found = {key: json.loads(text) for key, text in rows}
        rows = connection.execute("SELECT trial_id, key, value_json FROM trial_user_attributes").fetchall()
    trials: dict[int, dict[str, Any]] = {}
    for number, key, text in rows:
        trials.setdefault(number, {})[key] = json.loads(text)
    return {**found, "trials": list(trials.values())}


@profile(80)
@given(
    key=st.sampled_from(["about", "winner", "finals", "touched", "trials", "trials"]),
    place=st.integers(0, 10**6),
    how=st.sampled_from(["replace", "replace", "drop", "rename"]),
    value=hostile_values,
)
def test_an_attribute_changed(
    documents: dict[str, Any], tmp_path: Path, key: str, place: int, how: str, value: Any
) -> None:
    paths = [path for path in paths_of(documents) if path[0] == key]
    damaged = changed(documents, paths[place % len(paths)], how, value)
    # In memory: opening a database file takes far longer than reading it.
    memory = InMemoryStorage()
    study = optuna.create_study(storage=memory, study_name=f"{STUDY}_study")
    trials = damaged.pop("trials", [])
    for attributes in trials if isinstance(trials, list) else []:
        if isinstance(attributes, dict):
            study.add_trial(_trial(attributes))
    for name, item in damaged.items():
        study.set_user_attr(name, item)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "open_storage", lambda *arguments, **named: memory)
        for arguments in (("show",), ("show", STUDY), ("show", OPERATOR, "--json")):
            accepted_or_refused(*arguments, codes=(0, 1, 2))
        # Of a report everything but the drawing, which takes a second each.
        patch.setattr(page, "_charts", lambda story: defaultdict(list))
        patch.setattr(page, "_library", str)
        patch.setattr(declared, "catalogue", lambda *roots: DECLARED)
        accepted_or_refused("report", STUDY, "-o", str(tmp_path / "out.html"), codes=(0, 1, 2))
        accepted_or_refused("freeze", "--bundle", str(tmp_path / "out.zip"), codes=(0, 1, 2))


def _trial(attributes: dict[str, Any]) -> optuna.trial.FrozenTrial:
    good = attributes.get("outcome") == "ok"
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.COMPLETE if good else optuna.trial.TrialState.PRUNED,
        value=1.0 if good else None,
        params={"template": "direct"},
        distributions={"template": optuna.distributions.CategoricalDistribution(["direct"])},
        user_attrs=attributes,
    )
