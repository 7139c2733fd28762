# SPDX-License-Identifier: Apache-2.0
"""A finished trial that is added in bulk is stored as Optuna stores it."""

from __future__ import annotations

import math
import sqlite3
from datetime import datetime
from pathlib import Path

import optuna
import pytest
import sqlalchemy.event
from coldforge.tuner.bulk_storage import BulkStorage
from coldforge.tuner.storage import open_storage
from optuna.distributions import CategoricalDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

CHOICES = {"TILE": CategoricalDistribution([8, 16]), "ORDER": CategoricalDistribution(["rows", "columns"])}


def _trial(state: TrialState, value: float | None) -> FrozenTrial:
    trial = create_trial(
        state=state,
        value=value,
        params={"ORDER": "columns", "TILE": 16},
        distributions=CHOICES,
        user_attrs={"reason": "a \u00fc", "more": {"samples_ms": [1.5, 2.0], "none": None}},
        system_attrs={"system": 1},
        intermediate_values={0: 1.0, 3: math.nan},
    )
    trial.datetime_start = datetime(2026, 1, 2, 3, 4, 5)
    trial.datetime_complete = datetime(2026, 1, 2, 3, 4, 6)
    return trial


TRIALS = [
    _trial(TrialState.COMPLETE, 1.25),
    _trial(TrialState.COMPLETE, math.inf),
    _trial(TrialState.PRUNED, None),
    create_trial(state=TrialState.WAITING),
    create_trial(state=TrialState.PRUNED),
]


def _rows(path: Path, storage: type[RDBStorage]) -> dict[str, list[tuple[object, ...]]]:
    """Table -> its rows, after the trials were added to two studies."""
    opened = storage(f"sqlite:///{path}")
    for name in ("first", "second"):
        study = optuna.create_study(storage=opened, study_name=name)
        for trial in TRIALS:
            study.add_trial(trial)
    with sqlite3.connect(path) as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        return {name: database.execute(f"select * from {name}").fetchall() for name in tables}


def test_the_database_is_the_same(tmp_path: Path) -> None:
    bulk, plain = _rows(tmp_path / "bulk.db", BulkStorage), _rows(tmp_path / "plain.db", RDBStorage)
    assert len(bulk["trials"]) == 2 * len(TRIALS)
    assert len(bulk["trial_params"]) == 2 * 3 * len(CHOICES)
    assert bulk.keys() == plain.keys()
    for table, rows in bulk.items():
        assert repr(rows) == repr(plain[table]), table


def test_what_was_added_is_read_back(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    assert isinstance(storage, BulkStorage)
    study = optuna.create_study(storage=storage, study_name="s")
    study.add_trial(TRIALS[0])
    again = optuna.load_study(storage=open_storage(None, tmp_path), study_name="s")
    for found in (study.trials[0], again.trials[0]):
        assert (found.number, found.state, found.value) == (0, TrialState.COMPLETE, 1.25)
        assert found.params == TRIALS[0].params
        assert found.distributions == CHOICES
        assert found.user_attrs == TRIALS[0].user_attrs


def test_a_trial_is_added_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(None, tmp_path)
    assert storage is not None
    study = optuna.create_study(storage=storage, study_name="s")

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("optuna.storages._rdb.models.TrialModel.count_past_trials", interrupted)
        with pytest.raises(KeyboardInterrupt):
            study.add_trial(TRIALS[0])
    with sqlite3.connect(tmp_path / "studies.db") as database:
        assert database.execute("select count(*) from trials").fetchone() == (0,)
        assert database.execute("select count(*) from trial_params").fetchone() == (0,)
    study.add_trial(TRIALS[0])
    assert [trial.number for trial in study.trials] == [0]


def _facts(trials: list[FrozenTrial]) -> list[str]:
    """All of them, whatever the order of the mappings; as text, for NaN differs from itself."""
    return [
        f"{sorted((k, sorted(v.items()) if isinstance(v, dict) else v) for k, v in vars(t).items())}"
        for t in trials
    ]


def test_finished_trials_are_read_as_optuna_reads_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    opened = BulkStorage(url)
    others = optuna.create_study(storage=opened, study_name="of another")
    study = optuna.create_study(storage=opened, study_name="this")
    for trial in TRIALS:
        others.add_trial(trial)
        study.add_trial(trial)
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    every = RDBStorage(url).get_all_trials(study._study_id, states=states)
    found = opened.finished(study._study_id, ())
    assert _facts(found) == _facts(every)
    assert len(found) == 4
    known = {found[0]._trial_id, found[2]._trial_id}
    assert _facts(opened.finished(study._study_id, known)) == _facts([every[1], every[3]])
    study.ask()
    asked: list[str] = []

    def watched(connection: object, cursor: object, statement: str, *rest: object) -> None:
        asked.append(statement)

    sqlalchemy.event.listen(opened.engine, "before_cursor_execute", watched)
    assert opened.finished(study._study_id, {trial._trial_id for trial in found}) == []
    assert len(asked) == 1, "where nothing is new the known ones are counted, not read"
    assert "count(" in asked[0]
