# SPDX-License-Identifier: Apache-2.0
"""Optuna's database storage, quicker where a tuner waits: a trial that comes whole is stored in a few
statements, and only finished trials that are not known yet are read.

Optuna stores the parameters and attributes of an added trial one by one, each with questions to the database
of its own: some 50 statements and 20 to 40 ms for a config of ten parameters. What is stored is the same.
Optuna reads each trial that is under way again and again, with all that belongs to it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.orm import Session

from .bulk_reading import ids_in, whole_trials

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
"""The states of trials that count; FAIL is of a worker that died."""


class BulkStorage(RDBStorage):
    """`RDBStorage` with another way to add trials that come whole. A version of Optuna that adds them without
    `_get_prepared_new_trial` adds them as it does."""

    def _get_prepared_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None, session: Session
    ) -> models.TrialModel:
        if template_trial is None:
            return super()._get_prepared_new_trial(study_id, template_trial, session)
        trial = models.TrialModel(
            study_id=study_id,
            number=None,
            state=template_trial.state,
            datetime_start=template_trial.datetime_start,
            datetime_complete=template_trial.datetime_complete,
        )
        session.add(trial)
        session.flush()  # gives it an id; the transaction ends with the whole trial or none
        for model, rows in rows_of(template_trial).items():
            if rows:
                session.execute(
                    sqlalchemy.insert(model), [{"trial_id": trial.trial_id, **row} for row in rows]
                )
        trial.number = trial.count_past_trials(session)
        session.add(trial)
        return trial

    def finished(self, study_id: int, known: Collection[int]) -> list[FrozenTrial]:
        """The finished trials of a study, in order.

        Args:
            known: ids of finished trials of the study; they are left out.
        """
        with Session(self.engine) as session:
            return whole_trials(session, ids_in(session, study_id, FINISHED, known))


def rows_of(trial: FrozenTrial) -> dict[type, list[dict[str, Any]]]:
    """Table -> what the trial adds to it."""
    values = []
    for objective, value in enumerate(trial.values or ()):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        values.append({"objective": objective, "value": stored, "value_type": kind})
    steps = []
    for step, value in trial.intermediate_values.items():
        stored, kind = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)
        steps.append({"step": step, "intermediate_value": stored, "intermediate_value_type": kind})
    parameters = [
        {
            "param_name": name,
            "param_value": trial.distributions[name].to_internal_repr(value),
            "distribution_json": distribution_to_json(trial.distributions[name]),
        }
        for name, value in trial.params.items()
    ]
    return {
        models.TrialValueModel: values,
        models.TrialIntermediateValueModel: steps,
        models.TrialParamModel: parameters,
        models.TrialUserAttributeModel: _attributes(trial.user_attrs),
        models.TrialSystemAttributeModel: _attributes(trial.system_attrs),
    }


def _attributes(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in attributes.items()]
