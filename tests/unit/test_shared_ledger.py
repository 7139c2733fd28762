# SPDX-License-Identifier: Apache-2.0
"""Who is at which config of a shared study: claims, deaths, retries, and steps whose answer got lost. On
PostgreSQL, and where no server is in play on SQLite too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
import sqlalchemy.exc
from coldforge.codegen.errors import ColdforgeError
from coldforge.tuner.attempts import DEATHS
from coldforge.tuner.identity import StudyInputs
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.search import FeasibleSet
from coldforge.tuner.shared.ledger import Ledger
from coldforge.tuner.shared.patience import Patience
from coldforge.tuner.shared.record import SharedRecord
from coldforge.tuner.shared.storage import SharedStorage
from coldforge.tuner.shared.url import storage_url
from coldforge.tuner.study import Study, open_study
from coldforge.tuner.tools import Terms
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState
from postgres import Server

FEASIBLE = FeasibleSet({"direct": [{"TILE": tile, "KIND": kind} for tile in range(8) for kind in ("a", "b")]})
KEYS = [point.key for point in FEASIBLE.points]
TARGET = {"kind": "cpu", "arch": "x86-64-v3", "device": "CPU", "attributes": {}}
INPUTS = StudyInputs(
    "op", "small", "d", {"dtype": "fp32", "dims": {"N": 1}}, "fp32", TARGET, {"direct": ""}, {}, "g"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.stop()


@pytest.fixture(params=["postgresql", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    return request.getfixturevalue("server").new_database(f"d{abs(hash(request.node.name)):x}")


class Bench:
    """A study on a database, and the records of as many workers as are wanted."""

    def __init__(self, place: str, grace_s: float = 60.0) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.place, self.grace_s = place, grace_s
        self.storage = self.opened()
        self.study = open_study(self.storage, INPUTS)

    def opened(self) -> SharedStorage:
        """The database, as another process has it."""
        return SharedStorage(storage_url(self.place), self.grace_s, Patience("there", 10.0))

    def worker(self) -> SharedRecord:
        storage = self.opened()
        study = optuna.load_study(study_name=INPUTS.name, storage=storage)
        return SharedRecord(storage, study, FEASIBLE)

    def finish(self, record: SharedRecord, key: str, time_ms: float = 1.0) -> None:
        study: Study = self.study.storing(record.store)
        index = FEASIBLE.index_of_key(key)
        assert index is not None
        result = TrialResult(TrialOutcome.OK, time_ms=time_ms)
        study.record(FEASIBLE.points[index], result, FEASIBLE.distributions_of(index))

    def states(self, key: str) -> list[TrialState]:
        found = self.study.of_optuna.get_trials(deepcopy=False)
        return [trial.state for trial in found if trial.system_attrs["coldforge:key"] == key]


@pytest.fixture
def bench(place: str) -> Bench:
    return Bench(place)


def _die(record: SharedRecord) -> None:
    """The worker is gone without a word, longer ago than the grace."""
    record._pulse.stop()
    trials = [*record._held.values()]
    with record._storage.engine.begin() as connection:
        old = sqlalchemy.text("UPDATE trial_heartbeats SET heartbeat = '2020-01-01' WHERE trial_id = :t")
        for trial in trials:
            connection.execute(old, {"t": trial})


def _swept(record: SharedRecord) -> SharedRecord:
    """A worker that has lived long enough to tell who is silent."""
    record._pulse._since, record._swept = -1e9, -1e9
    record.claims()
    return record


def test_a_config_is_one_workers(bench: Bench) -> None:
    one, two = bench.worker(), bench.worker()
    assert one.claims() is None
    assert one.claim(KEYS[0])
    assert not two.claim(KEYS[0])
    assert (one.claims(), two.claims()) == (None, frozenset({KEYS[0]}))
    bench.finish(one, KEYS[0], 2.5)
    assert not two.claim(KEYS[0])
    assert not one.claim(KEYS[0])
    assert two.claims() is None
    (trial,) = bench.study.trials()
    assert (trial.state, trial.value, trial.params) == (TrialState.COMPLETE, 2.5, FEASIBLE.params(0))
    assert trial.system_attrs["fixed_params"] == FEASIBLE.params(0)
    assert bench.study.results()[0].time_ms == 2.5
    assert bench.states(KEYS[0]) == [TrialState.COMPLETE]


def test_only_one_of_many_at_once_gets_it(server: Server) -> None:
    bench = Bench(server.new_database("at_once"))
    records = [bench.worker() for _ in range(6)]
    with ThreadPoolExecutor(len(records)) as pool:
        for key in KEYS[:8]:
            assert sum(pool.map(lambda record, key=key: record.claim(key), records)) == 1
    trials = bench.study.of_optuna.get_trials(deepcopy=False)
    assert sorted(trial.number for trial in trials) == list(range(8))


def test_there_are_never_more_than_the_limit(server: Server) -> None:
    bench = Bench(server.new_database("limit"))
    records = [bench.worker() for _ in range(4)]
    bench.finish(records[0], KEYS[15])
    with ThreadPoolExecutor(len(records)) as pool:
        got = pool.map(lambda n: records[n % 4].claim(KEYS[n], Terms(limit=5)), range(12))
        assert sum(got) == 4
    assert not records[0].claim(KEYS[14], Terms(limit=5))
    assert records[0].full
    assert records[0].claim(KEYS[14], Terms(limit=6))
    assert not records[0].full


def test_what_is_given_back_waits_and_counts_for_nothing(bench: Bench) -> None:
    one, two = bench.worker(), bench.worker()
    assert one.claim(KEYS[0], Terms(limit=1))
    one.begin(KEYS[0])
    one.release(KEYS[0])
    assert two.claims() is None
    assert two.offered() == (KEYS[0],)
    assert two.claim(KEYS[1], Terms(limit=1))
    assert two.claim(KEYS[0], Terms(limit=2))
    assert two.offered() == ()
    bench.finish(two, KEYS[0])
    assert bench.states(KEYS[0]) == [TrialState.COMPLETE]
    assert len(bench.study.trials()) == 1


def test_a_dead_workers_configs_are_tried_once_more(bench: Bench) -> None:
    one, two, three = bench.worker(), bench.worker(), bench.worker()
    assert one.claim(KEYS[0])
    assert one.claim(KEYS[1])
    assert two.claim(KEYS[2])
    one.begin(KEYS[0])
    _die(one)
    assert two.claims() == {KEYS[0], KEYS[1]}, "a worker that has just come cannot tell"
    _swept(three)
    assert (three.claims(), set(three.offered())) == (frozenset({KEYS[2]}), {KEYS[0], KEYS[1]})
    assert three.claim(KEYS[0])
    (again,) = [t for t in bench.study.of_optuna.trials if t.state is TrialState.RUNNING and t.number != 2]
    assert RetryHeartbeatStaleTrialCallback.retry_history(again) == [0]
    bench.finish(three, KEYS[0])
    assert bench.states(KEYS[0]) == [TrialState.FAIL, TrialState.COMPLETE]
    assert bench.states(KEYS[1]) == [TrialState.FAIL, TrialState.WAITING]
    assert [trial.number for trial in bench.study.trials()] == [3]


def test_a_config_whose_workers_died_twice_is_given_up(bench: Bench) -> None:
    for _ in range(DEATHS):
        record = bench.worker()
        assert _swept(record).suspects(()) == ()
        assert record.claim(KEYS[0])
        assert record.claim(KEYS[1])  # was never on the device
        record.begin(KEYS[0])
        _die(record)
    last = _swept(bench.worker())
    assert last.suspects(()) == (KEYS[0],)
    assert last.suspects([KEYS[0]]) == ()
    assert KEYS[0] not in last.offered()
    assert not last.claim(KEYS[0])
    assert last.claim(KEYS[1])
    bench.finish(last, KEYS[0])  # that it is given up is a result
    assert bench.states(KEYS[0])[-1] is TrialState.COMPLETE


def test_what_a_worker_gave_back_is_no_death(bench: Bench) -> None:
    one, two = bench.worker(), bench.worker()
    assert one.claim(KEYS[0])
    one.begin(KEYS[0])
    one.release(KEYS[0])
    assert two.claim(KEYS[0])
    two.begin(KEYS[0])
    _die(two)
    assert _swept(bench.worker()).suspects(()) == ()


def test_the_first_result_stands_when_a_worker_was_taken_for_dead(bench: Bench) -> None:
    slow, other = bench.worker(), bench.worker()
    assert slow.claim(KEYS[0])
    assert slow.claim(KEYS[1])
    held = dict(slow._held)
    _die(slow)
    _swept(other)
    assert other.claim(KEYS[0])
    slow._held.update(held)
    bench.finish(slow, KEYS[0], 7.0)  # the other one is at it
    bench.finish(slow, KEYS[1], 8.0)  # nobody is
    assert bench.states(KEYS[0]) == bench.states(KEYS[1]) == [TrialState.FAIL, TrialState.COMPLETE]
    bench.finish(other, KEYS[0], 1.0)
    assert sorted(t.value or 0.0 for t in bench.study.trials()) == [7.0, 8.0]


def test_what_was_measured_is_kept_though_another_one_gives_it_back(bench: Bench) -> None:
    slow, other = bench.worker(), bench.worker()
    assert slow.claim(KEYS[0])
    held = dict(slow._held)
    _die(slow)
    _swept(other)
    assert other.claim(KEYS[0])
    slow._held.update(held)
    bench.finish(slow, KEYS[0], 7.0)
    other.release(KEYS[0])
    assert bench.states(KEYS[0]) == [TrialState.FAIL, TrialState.COMPLETE]
    assert not other.claim(KEYS[0])
    assert other.offered() == ()


def test_what_was_never_claimed_does_not_take_the_place_of_a_config_under_way(bench: Bench) -> None:
    one, two = bench.worker(), bench.worker()
    assert one.claim(KEYS[0])
    bench.finish(two, KEYS[0], 7.0)
    assert bench.states(KEYS[0]) == [TrialState.RUNNING]
    bench.finish(one, KEYS[0], 1.0)
    assert [trial.value for trial in bench.study.trials()] == [1.0]


def test_steps_may_be_done_twice(bench: Bench) -> None:
    """Their answers may get lost with the server."""
    record = bench.worker()
    ledger: Ledger = record._ledger
    waiting = record._waiting(KEYS[0])
    claimed = ledger.claim(KEYS[0], waiting, 0, 1)
    assert ledger.claim(KEYS[0], waiting, 0, 1) == claimed
    trial = claimed.trial_id
    assert trial is not None
    ledger.begin(trial)
    ledger.begin(trial)
    assert [entry.begun for entry in ledger.of(KEYS[0])] == [(record.worker,)]
    record._held[KEYS[0]] = trial
    bench.finish(record, KEYS[0], 3.0)
    record._held[KEYS[0]] = trial
    bench.finish(record, KEYS[0], 3.0)
    (found,) = bench.study.trials()
    assert (found.value, len(found.user_attrs["more"])) == (3.0, len(found.user_attrs["more"]))
    ledger.release(trial)
    assert bench.states(KEYS[0]) == [TrialState.COMPLETE]


def test_a_config_that_a_stricter_run_left_out_is_tried_again_once(bench: Bench) -> None:
    one, two = bench.worker(), bench.worker()
    bench.finish(one, KEYS[0])
    assert one.claim(KEYS[0], Terms(known=1))
    assert not two.claim(KEYS[0], Terms(known=1))
    bench.finish(one, KEYS[0])
    assert not two.claim(KEYS[0], Terms(known=1))
    assert bench.states(KEYS[0]) == 2 * [TrialState.COMPLETE]


def test_heartbeats_keep_a_claim(place: str) -> None:
    bench = Bench(place, grace_s=2.0)
    with bench.worker() as one, bench.worker() as two:
        assert one.claim(KEYS[0])
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            assert two.claims() == {KEYS[0]}
            time.sleep(0.05)
        one._pulse.stop()
        while KEYS[0] not in two.offered():
            two.claims()
            time.sleep(0.05)
            assert time.monotonic() < end + 30


def test_the_finals_are_one_workers_at_a_time(server: Server) -> None:
    bench = Bench(server.new_database("finals"))
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            assert two._ledger.finals_held_now
            first.__exit__(None, None, None)
        time.sleep(0.05)  # the server notices that the session has ended

    one, two = bench.worker(), bench.worker()
    two._wait = wait
    first: Any = one.finals()
    first.__enter__()
    with two.finals():
        assert waited
    end = time.monotonic() + 20
    while two._ledger.finals_held_now:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_server_that_comes_back_is_waited_for(server: Server) -> None:
    bench = Bench(server.new_database("away"))
    said: list[str] = []
    record = bench.worker()
    record._storage.patience = Patience("the server", 30.0, said.append)
    with record:
        assert record.claim(KEYS[0])
        server.kill()
        with ThreadPoolExecutor(1) as pool:
            claimed = pool.submit(record.claim, KEYS[1])
            finished = pool.submit(bench.finish, record, KEYS[0])
            time.sleep(1.0)
            assert not claimed.done()
            server.start()
            assert claimed.result(30)
            finished.result(30)
        assert [line.split(" ", 2)[2] for line in said] == [
            "does not answer; waiting for it for up to 30 s",
            "answers again",
        ]
        assert record._pulse.steady_s < 30
    assert bench.states(KEYS[0]) == [TrialState.COMPLETE]
    assert bench.states(KEYS[1]) == [TrialState.WAITING], "given back at the end"


def test_after_a_while_it_is_given_up_in_one_line() -> None:
    said: list[str] = []
    patience, tries = Patience("postgresql://u@h/d", 0.5, said.append), 0

    def fails() -> None:
        nonlocal tries
        tries += 1
        raise sqlalchemy.exc.OperationalError("select", {}, Exception("refused\nsecond line"))

    with pytest.raises(
        ColdforgeError, match=r"^the studies on postgresql://u@h/d cannot be reached: .*refused$"
    ):
        patience(fails)
    assert len(said) == 1
    assert tries > 1
    tries = 0
    with pytest.raises(ColdforgeError):
        patience(fails)
    assert tries == 1, "what ends for want of the server does not wait again"


def test_an_interrupt_ends_the_patience() -> None:
    patience = Patience("there", 60.0, lambda line: None)
    patience.interrupted = lambda: True
    began = time.monotonic()
    with pytest.raises(ColdforgeError):
        patience(lambda: (_ for _ in ()).throw(sqlalchemy.exc.OperationalError("x", {}, Exception("y"))))
    assert time.monotonic() - began < 5


def test_what_the_database_refuses_is_not_tried_again() -> None:
    patience = Patience("there", 60.0, lambda line: None)
    with pytest.raises(sqlalchemy.exc.ProgrammingError):
        patience(lambda: (_ for _ in ()).throw(sqlalchemy.exc.ProgrammingError("x", {}, Exception("y"))))


def test_a_study_is_in_progress_until_a_silent_workers_config_is_given_to_others(bench: Bench) -> None:
    ledger = Ledger(bench.storage, bench.study.of_optuna._study_id, "me")
    assert not ledger.in_progress
    worker = bench.worker()
    assert worker.claim(KEYS[0])
    worker._pulse.stop()
    for silent_s, expected in ((70, True), (100, False)):  # of a grace of 60
        ago = {
            "sqlite": f"datetime('now', '-{silent_s} seconds')",
            "postgresql": f"now() - interval '{silent_s} seconds'",
        }[bench.storage.engine.dialect.name]
        with bench.storage.engine.begin() as connection:
            connection.execute(sqlalchemy.text(f"UPDATE trial_heartbeats SET heartbeat = {ago}"))
        assert ledger.in_progress is expected
