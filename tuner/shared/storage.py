# SPDX-License-Identifier: Apache-2.0
"""A storage that many workers share: Optuna's, with patience for a server that is away, and with the few
steps by which workers share out configs, each one transaction.

Optuna coordinates within `Study.optimize` alone: with ask and tell nobody notices a dead worker's trial, and
two may ask for the same config. So a config is one trial from the moment a worker claims it, and its states
are Optuna's own: WAITING (nobody's: handed back, or to be tried again), RUNNING (a worker's), then COMPLETE
or PRUNED; FAIL is a trial whose worker died.

Each step locks the study's row, as Optuna does to number a new trial. An advisory lock would do among our own
workers, but Optuna adds trials too (those of dead workers, to be tried again) and would not ask for it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from typing import Any, TypeVar, cast

import sqlalchemy
import sqlalchemy.event
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.storages._rdb import models
from sqlalchemy.engine import URL
from sqlalchemy.orm import Session

from ..bulk_storage import BulkStorage
from .patience import Patience
from .url import shown_url

_CONNECT = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_CONNECT["tcp_user_timeout"] = 30_000  # ms: a server that vanished without a word is noticed then
RETRIES = 1
"""So often is a config tried again whose worker died."""

Method = TypeVar("Method", bound=Callable[..., Any])


def patient(method: Method) -> Method:
    """A method of `SharedStorage` that waits for its server."""

    @functools.wraps(method)
    def waiting(self: SharedStorage, *args: Any, **kwargs: Any) -> Any:
        return self.patience(lambda: method(self, *args, **kwargs))

    return cast(Method, waiting)


class SharedStorage(BulkStorage):
    """Optuna's storage on a server. Its own methods are patient, and do no harm when they are done twice.

    Args:
        url: of the database, without a password.
        grace_s: seconds without a heartbeat after which a worker counts as dead.
        patience: with the server.

    Attributes:
        grace_s, patience: as above.
    """

    def __init__(self, url: URL, grace_s: float, patience: Patience) -> None:
        self.grace_s, self.patience = grace_s, patience
        # It warns, with the whole statement, of what this storage is patient with.
        logging.getLogger("optuna.storages._rdb").setLevel(logging.ERROR)
        arguments: dict[str, Any] = {}
        if url.get_backend_name() == "postgresql":
            arguments = {name: value for name, value in _CONNECT.items() if name not in url.query}
        with warnings.catch_warnings():  # that heartbeats are experimental in Optuna
            warnings.simplefilter("ignore", ExperimentalWarning)
            super().__init__(
                url.render_as_string(hide_password=False),
                engine_kwargs={"pool_pre_ping": True, "connect_args": arguments},
                heartbeat_interval=max(1, round(grace_s / 6)),
                grace_period=max(1, round(grace_s)),
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
            )
        if url.get_backend_name() == "postgresql":
            sqlalchemy.event.listen(self.engine, "connect", _in_utc)

    get_all_studies = patient(BulkStorage.get_all_studies)
    get_study_id_from_name = patient(BulkStorage.get_study_id_from_name)
    get_study_name_from_id = patient(BulkStorage.get_study_name_from_id)
    get_study_directions = patient(BulkStorage.get_study_directions)
    get_study_user_attrs = patient(BulkStorage.get_study_user_attrs)
    get_study_system_attrs = patient(BulkStorage.get_study_system_attrs)
    set_study_user_attr = patient(BulkStorage.set_study_user_attr)
    create_new_study = patient(BulkStorage.create_new_study)
    get_trial = patient(BulkStorage.get_trial)
    _get_trials = patient(BulkStorage._get_trials)
    finished = patient(BulkStorage.finished)
    _get_stale_trial_ids = patient(BulkStorage._get_stale_trial_ids)
    set_trial_state_values = patient(BulkStorage.set_trial_state_values)

    @patient
    def now(self) -> float:
        """Seconds since 1970 by the server's clock, which all workers have in common."""
        with self.engine.connect() as connection:
            now = connection.execute(sqlalchemy.select(sqlalchemy.func.current_timestamp())).scalar_one()
        return (now if now.tzinfo else now.replace(tzinfo=UTC)).timestamp()

    @contextlib.contextmanager
    def locked(self, study_id: int) -> Iterator[Session]:
        """A transaction in which nobody else claims, finishes or adds a trial of the study."""
        with Session(self.engine) as session, session.begin():
            models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
            yield session

    def beat(self, trial_ids: Sequence[int]) -> None:
        """Says that the worker of these trials lives. Not patient: the next beat comes soon.

        Raises:
            SQLAlchemyError: the server does not answer.
        """
        heartbeats = models.TrialHeartbeatModel
        alive = sqlalchemy.update(heartbeats).where(heartbeats.trial_id.in_(trial_ids))
        with self.engine.begin() as connection:
            connection.execute(alive.values(heartbeat=sqlalchemy.func.current_timestamp()))


def _in_utc(connection: Any, record: object) -> None:
    """Heartbeats are stored without a time zone: all workers must mean the same one."""
    connection.execute("SET TIME ZONE 'UTC'")
    connection.commit()


def open_shared(url: URL, *, create: bool, grace_s: float = 60.0) -> SharedStorage | None:
    """Opens a database on a server. The first attempt is not patient: a wrong name shows at once.

    Args:
        create: whether to make the tables where there are none; else None stands for them.

    Raises:
        ImportError: the driver is not installed.
        SQLAlchemyError, OptunaError: it cannot be opened.
    """
    if not create:
        engine = sqlalchemy.create_engine(url)
        try:
            if not sqlalchemy.inspect(engine).has_table(models.StudyModel.__tablename__):
                return None
        finally:
            engine.dispose()
    return SharedStorage(url, grace_s, Patience(shown_url(url)))
