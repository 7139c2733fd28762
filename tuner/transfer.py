# SPDX-License-Identifier: Apache-2.0
"""Studies as plain JSON and back, so that a bundle carries them from one machine's storage to another's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from ..codegen.errors import InputError
from .storage import storage_faults
from .stored import reading
from .study import REQUEST, ROOTS

FORMAT = 1


def study_records(storage: BaseStorage | None, names: Iterable[str]) -> dict[str, Any]:
    """The named studies that the storage has, whole: attributes and finished trials.

    Args:
        names: study names; one that is not there is left out (its winner came in a bundle).

    Raises:
        InputError: the database is damaged.
        ColdforgeError: it failed otherwise.
    """
    if storage is None:
        return {}
    with storage_faults(storage), reading("the studies"):
        present = set(optuna.get_all_study_names(storage))
        return {name: _record(storage, name) for name in sorted(set(names)) if name in present}


def import_studies(storage: BaseStorage | None, records: Mapping[str, Any]) -> list[str]:
    """Adds the studies that the storage does not have; returns their names. A study that is there stays
    as it is.

    Raises:
        InputError: a record is malformed or of another format.
    """
    if storage is None:
        return []
    added = []
    with storage_faults(storage):
        present = set(optuna.get_all_study_names(storage))
        for name in [name for name in records if name not in present]:
            trials, attributes = parsed_record(name, records[name])
            study = optuna.create_study(storage=storage, study_name=name)
            # The attributes last: a study without them is not listed, so a killed import leaves nothing half
            # true.
            study.add_trials(trials)
            for key, value in attributes.items():
                study.set_user_attr(key, value)
            added.append(name)
    return added


def parsed_record(name: str, record: Any) -> tuple[list[FrozenTrial], dict[str, Any]]:
    """The trials and attributes of a study's record.

    Raises:
        InputError: it is malformed or of another format.
    """
    try:
        if record["format"] != FORMAT:
            raise InputError(
                f"study {name[:200]} has record format {record['format']!r:.80}; "
                f"this coldforge reads {FORMAT}"
            )
        trials = [_trial(row) for row in record["trials"]]
        _try(trials)
        return trials, {str(key): value for key, value in record["attributes"].items()}
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"study {name[:200]}: malformed record ({str(error)[:200]})") from None


def _record(storage: BaseStorage, name: str) -> dict[str, Any]:
    study = optuna.load_study(study_name=name, storage=storage)
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return {
        "format": FORMAT,
        "attributes": {n: value for n, value in study.user_attrs.items() if n not in (ROOTS, REQUEST)},
        "trials": [_row(trial) for trial in finished],
    }


def _row(trial: FrozenTrial) -> dict[str, Any]:
    return {
        "state": trial.state.name,
        "value": trial.value if trial.state == TrialState.COMPLETE else None,
        "params": dict(trial.params),
        "distributions": {n: distribution_to_json(d) for n, d in trial.distributions.items()},
        "attributes": dict(trial.user_attrs),
        "started": trial.datetime_start.isoformat() if trial.datetime_start else None,
        "ended": trial.datetime_complete.isoformat() if trial.datetime_complete else None,
    }


def _trial(row: Mapping[str, Any]) -> FrozenTrial:
    trial = create_trial(
        state=TrialState[row["state"]],
        value=row["value"],
        params=dict(row["params"]),
        distributions={n: json_to_distribution(text) for n, text in row["distributions"].items()},
        user_attrs=dict(row["attributes"]),
    )
    if not trial.state.is_finished():
        raise ValueError(f"a trial is {trial.state.name}")
    if row["started"]:
        trial.datetime_start = datetime.fromisoformat(row["started"])
    if row["ended"]:
        trial.datetime_complete = datetime.fromisoformat(row["ended"])
    return trial


def _try(trials: list[FrozenTrial]) -> None:
    """Adds the trials to a study in memory: what no study takes shows there, before anything is written.

    Raises:
        ValueError: a trial contradicts itself or another one.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage(), study_name="tried")
    study.add_trials(trials)
    seen: dict[str, BaseDistribution] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            check_distribution_compatibility(seen.setdefault(name, distribution), distribution)
