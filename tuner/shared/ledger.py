# SPDX-License-Identifier: Apache-2.0
"""Who is at which config of a shared study: each step one transaction that may be done twice without harm,
as the answer to the first may have been lost with the server.

What a trial says of itself beside its parameters, as system attributes: the config's key, the worker that
claimed it, and the workers whose device had it (`begun`), of which two that died are too many.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.orm import Session, aliased

from ..attempts import DEATHS
from ..bulk_storage import rows_of
from .storage import SharedStorage

KEY, WORKER, BEGUN = "coldforge:key", "coldforge:worker", "coldforge:begun"
_FIXED = "fixed_params"  # as Optuna's `enqueue_trial` has it
_LOCKS = 0x636F6C64
"""The class of our advisory locks: one for each study, held while its finals are."""
_SWEPT = 1.5  # so many times the grace, and a silent worker's config has been given to another one
_COUNTED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
_Attribute, _Trial = models.TrialSystemAttributeModel, models.TrialModel


@dataclass(frozen=True)
class Entry:
    """One trial of a config.

    Attributes:
        worker: the mark of the worker that claimed it last; empty where nobody did.
        begun: the marks of the workers whose device had it.
    """

    trial_id: int
    state: TrialState
    key: str
    worker: str
    begun: tuple[str, ...]


@dataclass(frozen=True)
class Claimed:
    """What became of a claim.

    Attributes:
        trial_id: the trial that is the worker's now; None where it was refused.
        full: whether the limit was the reason.
    """

    trial_id: int | None = None
    full: bool = False


def deaths(entries: Collection[Entry]) -> int:
    """How many workers died while their device had the config that these trials are of."""
    return len({mark for entry in entries if entry.state is TrialState.FAIL for mark in entry.begun})


class Ledger:
    """The claims on one study, as one worker makes and sees them.

    Args:
        storage: where the study is.
        study_id: Optuna's number of the study.
        worker: a mark of this worker that no other one has.
    """

    def __init__(self, storage: SharedStorage, study_id: int, worker: str) -> None:
        self._storage, self._study_id, self._worker = storage, study_id, worker

    def at_work(self) -> list[Entry]:
        """The trials that are RUNNING or WAITING."""
        return self._storage.patience(lambda: self._read((TrialState.RUNNING, TrialState.WAITING)))

    def of(self, key: str) -> list[Entry]:
        """The trials of a config, the oldest first."""
        return self._storage.patience(lambda: self._read((), key))

    def doomed(self, least: int) -> list[str]:
        """The configs on which so many workers died."""
        found: dict[str, list[Entry]] = {}
        for entry in self._storage.patience(lambda: self._read((TrialState.FAIL,))):
            found.setdefault(entry.key, []).append(entry)
        return [key for key, entries in found.items() if deaths(entries) >= least]

    def claim(self, key: str, trial: FrozenTrial, known: int, limit: int | None) -> Claimed:
        """Makes a config this worker's: its WAITING trial, or a new one.

        Args:
            key: of the config.
            trial: its parameters and distributions.
            known: finished trials of it that are no reason not to try it.
            limit: of configs that are finished or being tried, this one included.

        Returns:
            No trial when the config is finished, another's or given up, or when the limit is reached.
        """

        def step() -> Claimed:
            with self._storage.locked(self._study_id) as session:
                entries = self._entries(session, (), key)
                running = [entry for entry in entries if entry.state is TrialState.RUNNING]
                if running:  # this worker's where the answer to the same claim got lost
                    return Claimed(next((e.trial_id for e in running if e.worker == self._worker), None))
                finished = sum(entry.state.is_finished() for entry in entries)
                finished -= sum(entry.state is TrialState.FAIL for entry in entries)
                if finished > known or deaths(entries) >= DEATHS:
                    return Claimed()
                if limit is not None and self._others(session, key) >= limit:
                    return Claimed(full=True)
                waiting = next((e.trial_id for e in entries if e.state is TrialState.WAITING), None)
                if waiting is None:
                    return Claimed(self._insert_taken(session, trial, key))
                self._take(session, waiting)
                return Claimed(waiting)

        return self._storage.patience(step)

    def release(self, trial_id: int) -> None:
        """Gives a claimed config back untried: it waits for whoever comes next, and counts against none."""

        def step() -> None:
            with self._storage.locked(self._study_id) as session:
                trial = self._mine(session, trial_id)
                if trial is None:
                    return
                trial.state, trial.datetime_start = TrialState.WAITING, None
                entry = self._entry(session, trial_id)
                left = [mark for mark in entry.begun if mark != self._worker]
                _set(session, trial_id, {WORKER: "", BEGUN: left})

        self._storage.patience(step)

    def begin(self, trial_id: int) -> None:
        """Notes that this worker's device gets a config; stored when this returns."""

        def step() -> None:
            with Session(self._storage.engine) as session, session.begin():
                entry = self._entry(session, trial_id)
                if self._worker not in entry.begun:
                    _set(session, trial_id, {BEGUN: [*entry.begun, self._worker]})

        self._storage.patience(step)

    def finish(self, key: str, trial: FrozenTrial, trial_id: int | None) -> bool:
        """Stores what became of a config: in the very trial that this worker claimed, or, where it was taken
        for dead meanwhile, in the one that waits to be tried again or is; else in a new one.

        The first result stands: one that is at the config again may yet give it back, and this worker does
        not try it a second time.

        Args:
            trial_id: of the claim; None where there was none.

        Returns:
            False when another worker has finished it, or has it and this one never claimed it: then the other
            one's result stands.
        """

        def step() -> bool:
            with self._storage.locked(self._study_id) as session:
                entries = self._entries(session, (), key)
                mine = next((entry for entry in entries if entry.trial_id == trial_id), None)
                if mine is not None and mine.state in (TrialState.COMPLETE, TrialState.PRUNED):
                    return mine.worker == self._worker  # True: the answer got lost
                place = trial_id if mine is not None and mine.state is TrialState.RUNNING else None
                if place is None:
                    later = [entry for entry in entries if trial_id is None or entry.trial_id > trial_id]
                    stands = set(_COUNTED) if trial_id is None else {TrialState.COMPLETE, TrialState.PRUNED}
                    if stands & {entry.state for entry in later}:
                        return False
                    again = (TrialState.WAITING, TrialState.RUNNING)
                    place = next((e.trial_id for e in later if e.state in again), None)
                if place is None:
                    self._insert(session, _template(trial, key, trial.state, trial))
                else:
                    _complete(session, place, trial)
                    if place != trial_id:
                        _set(session, place, {WORKER: self._worker})
                return True

        return self._storage.patience(step)

    def beat(self, trial_ids: Sequence[int]) -> None:
        """Says that this worker lives; see `SharedStorage.beat`."""
        self._storage.beat(trial_ids)

    @property
    def in_progress(self) -> bool:
        """Whether a worker that lives is at a config, or was so just now, or somebody holds the finals."""
        beats = models.TrialHeartbeatModel
        last = (
            sqlalchemy.select(sqlalchemy.func.max(beats.heartbeat), sqlalchemy.func.current_timestamp())
            .join(_Trial, _Trial.trial_id == beats.trial_id)
            .where(_Trial.study_id == self._study_id, _Trial.state == TrialState.RUNNING)
        )

        def step() -> bool:
            with self._storage.engine.connect() as connection:
                heard, now = connection.execute(last).one()
            if heard is None:
                return False
            now = datetime.fromisoformat(now) if isinstance(now, str) else now
            return (now.replace(tzinfo=None) - heard).total_seconds() <= _SWEPT * self._storage.grace_s

        return self._storage.patience(step) or self.finals_held_now

    # --- finals ---

    @contextlib.contextmanager
    def finals_lock(self, wait: Any) -> Iterator[None]:
        """Held by one at a time, on any host; released by an end of any kind.

        Args:
            wait: called with seconds while another one has it.
        """
        if self._storage.engine.dialect.name != "postgresql":
            yield
            return
        connection = self._storage.patience(self._storage.engine.connect)
        mine = sqlalchemy.select(sqlalchemy.func.pg_try_advisory_lock(_LOCKS, self._study_id))
        try:
            while not connection.execute(mine).scalar_one():
                connection.rollback()
                wait(0.5)
            connection.rollback()  # ends the transaction; the lock is the session's
            yield
        finally:
            connection.invalidate()  # ends the session
            connection.close()

    @property
    def finals_held_now(self) -> bool:
        """Whether somebody holds the finals at this moment."""
        if self._storage.engine.dialect.name != "postgresql":
            return False
        text = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = :c AND objid = :o"
        text += " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        question = sqlalchemy.text(text).bindparams(c=_LOCKS, o=self._study_id)

        def step() -> bool:
            with self._storage.engine.connect() as connection:
                return connection.execute(question).scalar_one() > 0

        return self._storage.patience(step)

    # --- rows ---

    def _read(self, states: Collection[TrialState], key: str | None = None) -> list[Entry]:
        with Session(self._storage.engine) as session:
            return self._entries(session, states, key)

    def _entries(
        self, session: Session, states: Collection[TrialState], key: str | None = None
    ) -> list[Entry]:
        given: dict[str, Any] = {"study": self._study_id}
        given |= {"states": [*states]} if states else {}
        given |= {} if key is None else {"key": json.dumps(key)}
        rows: Any = session.execute(_entry_rows(bool(states), key is not None), given)
        found: dict[int, dict[str, Any]] = {}
        for trial_id, state, own_json, name, value_json in rows:
            facts = found.setdefault(trial_id, {"state": state, KEY: json.loads(own_json)})
            if name is not None:
                facts[name] = json.loads(value_json)
        return [
            Entry(number, f["state"], f[KEY], f.get(WORKER, ""), tuple(f.get(BEGUN, ())))
            for number, f in found.items()
        ]

    def _entry(self, session: Session, trial_id: int) -> Entry:
        rows = sqlalchemy.select(_Attribute.key, _Attribute.value_json)
        found = {k: json.loads(v) for k, v in session.execute(rows.where(_Attribute.trial_id == trial_id))}
        begun = tuple(found.get(BEGUN, ()))
        return Entry(trial_id, TrialState.RUNNING, found.get(KEY, ""), found.get(WORKER, ""), begun)

    def _others(self, session: Session, key: str) -> int:
        """How many configs but this one are finished or being tried."""
        own = aliased(_Attribute)
        name = sqlalchemy.func.coalesce(own.value_json, sqlalchemy.cast(_Trial.trial_id, sqlalchemy.String))
        count = (
            sqlalchemy.select(sqlalchemy.func.count(sqlalchemy.distinct(name)))
            .select_from(_Trial)
            .outerjoin(own, sqlalchemy.and_(own.trial_id == _Trial.trial_id, own.key == KEY))
            .where(_Trial.study_id == self._study_id, _Trial.state.in_(_COUNTED), name != json.dumps(key))
        )
        return session.execute(count).scalar_one()

    def _mine(self, session: Session, trial_id: int) -> Any:
        """The trial, its row locked; None when it is not this worker's any more."""
        trial = session.get(_Trial, trial_id, with_for_update=True)
        return trial if trial is not None and trial.state is TrialState.RUNNING else None

    def _insert(self, session: Session, template: FrozenTrial) -> int:
        trial: Any = self._storage._get_prepared_new_trial(self._study_id, template, session)
        session.flush()
        return trial.trial_id

    def _insert_taken(self, session: Session, trial: FrozenTrial, key: str) -> int:
        """A new trial of a config, this worker's from the beginning: half the statements of a new one that is
        taken."""
        made = _template(trial, key, TrialState.RUNNING)
        made.system_attrs[WORKER] = self._worker
        made.datetime_start = datetime.now()
        trial_id = self._insert(session, made)
        _beat_first(session, trial_id)
        return trial_id

    def _take(self, session: Session, trial_id: int) -> None:
        """Makes a WAITING trial this worker's."""
        trial = session.get(_Trial, trial_id, with_for_update=True)
        assert trial is not None
        trial.state, trial.datetime_start = TrialState.RUNNING, datetime.now()
        _set(session, trial_id, {WORKER: self._worker})
        beats = models.TrialHeartbeatModel
        session.execute(sqlalchemy.delete(beats).where(beats.trial_id == trial_id))
        _beat_first(session, trial_id)


@functools.cache
def _entry_rows(of_states: bool, of_key: bool) -> Any:
    """The question for a study's entries, made once: making it takes longer than its answer.

    Args:
        of_states: whether to ask for trials in some states, the parameter ``states``.
        of_key: whether to ask for those of one config, the parameter ``key`` (JSON).
    """
    own, more = aliased(_Attribute), aliased(_Attribute)
    rows = (
        sqlalchemy.select(_Trial.trial_id, _Trial.state, own.value_json, more.key, more.value_json)
        .join(own, sqlalchemy.and_(own.trial_id == _Trial.trial_id, own.key == KEY))
        .outerjoin(more, sqlalchemy.and_(more.trial_id == _Trial.trial_id, more.key.in_((WORKER, BEGUN))))
        .where(_Trial.study_id == sqlalchemy.bindparam("study"))
        .order_by(_Trial.trial_id)
    )
    if of_states:
        rows = rows.where(_Trial.state.in_(sqlalchemy.bindparam("states", expanding=True)))
    return rows.where(own.value_json == sqlalchemy.bindparam("key")) if of_key else rows


def _beat_first(session: Session, trial_id: int) -> None:
    """The first heartbeat of a trial: one that has none never counts as dead."""
    now = sqlalchemy.func.current_timestamp()
    session.execute(sqlalchemy.insert(models.TrialHeartbeatModel).values(trial_id=trial_id, heartbeat=now))


def _template(
    trial: FrozenTrial, key: str, state: TrialState, result: FrozenTrial | None = None
) -> FrozenTrial:
    """A new trial of a config.

    Args:
        trial: has its parameters and distributions.
        result: what became of it, where it comes finished.
    """
    made = create_trial(
        state=state,
        value=None if result is None else result.value,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs={} if result is None else result.user_attrs,
        system_attrs={_FIXED: trial.params, KEY: key, BEGUN: []},
    )
    if result is not None:
        made.datetime_start, made.datetime_complete = result.datetime_start, result.datetime_complete
    else:
        made.datetime_start = None
    return made


def _complete(session: Session, trial_id: int, result: FrozenTrial) -> None:
    """Makes a trial that has parameters finished."""
    trial = session.get(_Trial, trial_id, with_for_update=True)
    assert trial is not None
    trial.state = result.state
    trial.datetime_start, trial.datetime_complete = result.datetime_start, result.datetime_complete
    for model, rows in rows_of(result).items():
        if rows and model in (models.TrialValueModel, models.TrialUserAttributeModel):
            session.execute(sqlalchemy.insert(model), [{"trial_id": trial_id, **row} for row in rows])


def _set(session: Session, trial_id: int, attributes: Mapping[str, Any]) -> None:
    """Puts these in the place of what there was."""
    names = list(attributes)
    session.execute(
        sqlalchemy.delete(_Attribute).where(_Attribute.trial_id == trial_id, _Attribute.key.in_(names))
    )
    rows = [{"trial_id": trial_id, "key": k, "value_json": json.dumps(v)} for k, v in attributes.items()]
    session.execute(sqlalchemy.insert(_Attribute), rows)
