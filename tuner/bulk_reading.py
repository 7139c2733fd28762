# SPDX-License-Identifier: Apache-2.0
"""Whole trials of Optuna's tables in few statements, for a tuner that reads others' trials all the time.

Optuna makes an object of each row first, and parses a parameter's choices twice for each trial: together some
5 ms for each time that one is read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.orm import Session

_AT_ONCE = 500  # ids: a database takes so many variables for certain
_Value, _Step, _Parameter = models.TrialValueModel, models.TrialIntermediateValueModel, models.TrialParamModel
_User, _System = models.TrialUserAttributeModel, models.TrialSystemAttributeModel


def ids_in(
    session: Session, study_id: int, states: Sequence[TrialState], known: Collection[int] = ()
) -> list[int]:
    """The ids of a study's trials in these states, in order. Where there are as many as are known none is
    read: that is the answer nearly always, and thousands of ids take longer than the rest of a look.

    Args:
        known: ids that are left out, each of a trial of the study that stays in these states.
    """
    trial = models.TrialModel
    those = (trial.study_id == study_id, trial.state.in_(states))
    count = sqlalchemy.select(sqlalchemy.func.count()).select_from(trial).where(*those)
    if session.execute(count).scalar_one() == len(known):
        return []
    ids = sqlalchemy.select(trial.trial_id).where(*those).order_by(trial.trial_id)
    return [number for number in session.execute(ids).scalars() if number not in known]


def whole_trials(session: Session, ids: Sequence[int]) -> list[FrozenTrial]:
    """These trials as Optuna reads them.

    Raises:
        ValueError, LookupError, TypeError: a cell does not hold what Optuna put there.
    """
    found: list[FrozenTrial] = []
    for first in range(0, len(ids), _AT_ONCE):
        found += _read(session, ids[first : first + _AT_ONCE])
    return found


def _read(session: Session, ids: Sequence[int]) -> list[FrozenTrial]:
    def rows_of(model: Any, *columns: Any) -> Iterator[Any]:
        rows = sqlalchemy.select(model.trial_id, *columns).where(model.trial_id.in_(ids))
        yield from session.execute(rows.order_by(*model.__table__.primary_key))

    trial = models.TrialModel
    found: dict[int, FrozenTrial] = {}
    row: Any
    for row in session.scalars(
        sqlalchemy.select(trial).where(trial.trial_id.in_(ids)).order_by(trial.trial_id)
    ):
        times = (row.datetime_start, row.datetime_complete)  # versions of Optuna store them differently
        found[row.trial_id] = FrozenTrial(
            row.number, row.state, None, *times, {}, {}, {}, {}, {}, row.trial_id
        )
    values: dict[int, dict[int, float]] = {}
    for trial_id, objective, value, kind in rows_of(
        _Value, _Value.objective, _Value.value, _Value.value_type
    ):
        values.setdefault(trial_id, {})[objective] = _Value.stored_repr_to_value(value, kind)
    for trial_id, of_trial in values.items():
        found[trial_id].values = [of_trial[objective] for objective in range(len(of_trial))]
    columns = (_Parameter.param_name, _Parameter.param_value, _Parameter.distribution_json)
    for trial_id, name, value, text in rows_of(_Parameter, *columns):
        distribution = _distribution(text)
        found[trial_id].params[name] = distribution.to_external_repr(value)
        found[trial_id].distributions[name] = distribution
    for trial_id, key, text in rows_of(_User, _User.key, _User.value_json):
        found[trial_id].user_attrs[key] = json.loads(text)
    for trial_id, key, text in rows_of(_System, _System.key, _System.value_json):
        found[trial_id].system_attrs[key] = json.loads(text)
    columns = (_Step.step, _Step.intermediate_value, _Step.intermediate_value_type)
    for trial_id, step, value, kind in rows_of(_Step, *columns):
        found[trial_id].intermediate_values[step] = _Step.stored_repr_to_intermediate_value(value, kind)
    return [*found.values()]


@lru_cache(maxsize=1024)
def _distribution(text: str) -> BaseDistribution:
    return json_to_distribution(text)
