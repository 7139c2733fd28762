# SPDX-License-Identifier: Apache-2.0
"""One worker's part in a shared study: its claims, its heartbeats, and what it does about workers that died.

The same interface as `attempts.Attempts`, which does it for one machine in files.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from types import TracebackType

import optuna
import sqlalchemy.exc
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import fail_stale_trials
from optuna.trial import FrozenTrial, TrialState, create_trial

from ...codegen.errors import ColdforgeError
from ...codegen.liveness import own_mark
from ..attempts import DEATHS
from ..search import FeasibleSet, point_of
from ..tools import NO_TERMS, Terms
from .ledger import Ledger
from .storage import SharedStorage

_BEATS = 6.0  # in the time after which a worker counts as dead


class SharedRecord:
    """The claims of one run. Use as a context manager around the loop, or call `close` however it ends.

    Args:
        storage: where the study is.
        study: Optuna's.
        feasible: the points that are claimed by their keys.
        wait: called with seconds where another worker is waited for.
    """

    binding, departed = True, False

    def __init__(
        self,
        storage: SharedStorage,
        study: optuna.Study,
        feasible: FeasibleSet,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._storage, self._study, self._feasible, self._wait = storage, study, feasible, wait
        self.worker = f"{own_mark()}-{secrets.token_hex(4)}"
        self._ledger = Ledger(storage, study._study_id, self.worker)
        self._held: dict[str, int] = {}  # key -> trial
        self._offered: tuple[str, ...] = ()
        self._pulse = Pulse(self._ledger, self._held, storage.grace_s)
        self._swept = -math.inf
        self._doomed: list[str] = []
        self.full = self._refused = False

    def __enter__(self) -> SharedRecord:
        self._pulse.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error that nobody foresaw may be the config's doing: then its trial is left as a death leaves it.
        foreseen = kind is None or issubclass(kind, ColdforgeError) or not issubclass(kind, Exception)
        self.close(release=foreseen)

    def close(self, *, release: bool = True) -> None:
        """Ends the heartbeats; what is still claimed is given back. May be called again."""
        self._pulse.stop()
        for key in [*self._held] if release else ():
            self.release(key)
        self._held.clear()

    # --- see tools.Record ---

    def claims(self) -> frozenset[str] | None:
        """The configs that other workers are at; None when there is no other one. Takes care of dead workers
        first: their configs wait to be tried again, once."""
        self._sweep()
        entries = self._ledger.at_work()
        running = {entry.key for entry in entries if entry.state is TrialState.RUNNING}
        self._offered = tuple(
            dict.fromkeys(e.key for e in entries if e.state is TrialState.WAITING and e.key not in running)
        )
        mine = {e.key for e in entries if e.worker == self.worker and e.state is TrialState.RUNNING}
        others = running - mine
        return frozenset(others) if others else None

    def offered(self) -> tuple[str, ...]:
        """The configs that wait for whoever comes first, as of the last `claims`."""
        return self._offered

    def claim(self, point_key: str, terms: Terms = NO_TERMS) -> bool:
        """Makes a config this worker's; False when it is another's, finished, given up, or too many."""
        claimed = self._ledger.claim(point_key, self._waiting(point_key), terms.known, terms.limit)
        self._offered = tuple(key for key in self._offered if key != point_key)
        self.full = claimed.full
        if claimed.trial_id is None:
            self._refused = True
            return False
        self._held[point_key] = claimed.trial_id
        return True

    def release(self, point_key: str) -> None:
        """Gives a config back: whoever asks next tries it."""
        trial = self._held.pop(point_key, None)
        if trial is not None:
            # Where it cannot be given back it is taken for a dead worker's in a while.
            with contextlib.suppress(ColdforgeError, sqlalchemy.exc.SQLAlchemyError):
                self._ledger.release(trial)

    def begin(self, point_key: str) -> None:
        """Notes that the device gets a config."""
        if point_key in self._held:
            self._ledger.begin(self._held[point_key])

    def beat(self) -> float | None:
        """A thread does it."""
        return None

    def suspects(self, finished: Collection[str]) -> tuple[str, ...]:
        """The configs on which too many workers died, and that nobody is to try again."""
        self._sweep()
        return tuple(key for key in self._doomed if key not in finished)

    @contextlib.contextmanager
    def finals(self) -> Iterator[None]:
        """Around the finals: one worker's at a time, and after the configs that others are at just now."""
        at_work = self.claims() or frozenset()
        while at_work & (self.claims() or frozenset()):
            self._wait(0.2)
        with self._ledger.finals_lock(self._wait):
            yield

    # --- beside it ---

    def store(self, trial: FrozenTrial) -> None:
        """Stores a finished trial of the study: see `Ledger.finish`."""
        key = point_of(trial.params).key
        self._ledger.finish(key, trial, self._held.get(key))
        self._held.pop(key, None)

    def _waiting(self, key: str) -> FrozenTrial:
        index = self._feasible.index_of_key(key)
        assert index is not None
        params, distributions = self._feasible.params(index), self._feasible.distributions_of(index)
        return create_trial(state=TrialState.WAITING, params=params, distributions=distributions)

    def _sweep(self) -> None:
        """Now and then: the trials of workers that are silent become FAIL, and wait to be tried again.

        Not while this worker's own heart was not heard for as long: when a server comes back, everybody seems
        to have been silent.
        """
        now = time.monotonic()
        if now - self._swept < self._storage.grace_s / 4:
            if self._refused:  # perhaps as given up
                self._refused, self._doomed = False, self._ledger.doomed(DEATHS)
            return
        self._swept = now
        if self._pulse.steady_s >= self._storage.grace_s:
            with warnings.catch_warnings():  # that it is experimental in Optuna
                warnings.simplefilter("ignore", ExperimentalWarning)
                fail_stale_trials(self._study)
        self._doomed = self._ledger.doomed(DEATHS)


class Pulse:
    """A thread that says that this worker lives.

    Args:
        ledger: of the study.
        held: the claims, key -> trial; another thread changes them.
        grace_s: seconds of silence after which a worker counts as dead.
    """

    def __init__(self, ledger: Ledger, held: dict[str, int], grace_s: float) -> None:
        self._ledger, self._held, self._every_s = ledger, held, grace_s / _BEATS
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._since = math.inf

    @property
    def steady_s(self) -> float:
        """For how long it has beaten without a pause; negative before it began."""
        return time.monotonic() - self._since

    def start(self) -> None:
        """Begins."""
        self._since = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="coldforge-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends. May be called again."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(self._every_s):
            try:
                self._ledger.beat([*self._held.values()])
                heard = True
            except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError):
                heard = False  # the server is away; the next beat may find it
            now = time.monotonic()
            if not heard or now - last > 3 * self._every_s:  # or this process stood still
                self._since = now
            last = now
