# SPDX-License-Identifier: Apache-2.0
"""Time limits when this process is stopped and continued."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from coldforge.codegen.awake import WAKE_S, AwakeClock
from coldforge.codegen.compile import Cache, pool
from coldforge.codegen.compile.pool import CompilePool
from coldforge.codegen.errors import CompileError
from coldforge.codegen.settings import Settings, load_settings
from coldforge.tuner.client import WorkerClient
from coldforge.tuner.outcome import TrialOutcome
from coldforge.tuner.worker_process import WorkerDied, WorkerProcess
from pretend import TARGET

LIMIT_S = 20.0


class Time:
    """The machine's clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float, turn: Callable[[], object]) -> None:
        """A loop that turns as it should."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + WAKE_S)
            turn()


def test_a_standstill_is_left_out() -> None:
    time = Time()
    clock = AwakeClock(time)
    assert clock() == 0.0
    time.pass_(10.0, clock)
    assert clock() == 10.0
    time.now += 3600.0
    assert clock() == 13.0
    assert clock() == 13.0
    assert clock.left_s(14.0) == 1.0
    assert clock.left_s(99.0) == WAKE_S
    assert clock.left_s(9.0) == 0.0


class Deaf:
    """A compiling process that never answers."""

    def __init__(self, root: Path) -> None:
        self.connection, self.theirs = multiprocessing.Pipe()
        self.ticket: Any = None
        self.deadline = 0.0

    def send(self, ticket: Any, deadline: float) -> None:
        self.ticket, self.deadline = ticket, deadline

    def stop(self) -> int:
        return 0


def test_a_compilation_does_not_run_late_while_all_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "CompilingProcess", Deaf)
    monkeypatch.setattr(pool, "stop_all", list.clear)
    time = Time()
    with CompilePool(Cache(tmp_path), 1, LIMIT_S, AwakeClock(time)) as compilers:

        class Request:
            class source:
                name = "variant"

        number = compilers.submit(cast(Any, Request))
        time.pass_(10.0, compilers.collect)
        time.now += 3600.0
        assert compilers.collect() == []
        assert compilers.patience_s == WAKE_S
        time.pass_(6.0, lambda: compilers.collect() and pytest.fail("too early"))
        time.now += 2.0
        ((answered, error),) = compilers.collect()
        assert answered == number
        assert isinstance(error, CompileError)
        assert str(error) == "variant: the compiler was silent for 20 s and was killed"


class Mute:
    """A worker that says what it was given to say, then nothing."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.sent: list[Any] = []

    def read(self) -> dict[str, Any] | None:
        return self.messages.pop(0) if self.messages else None

    def send(self, message: Any) -> None:
        self.sent.append(message)


def _settings() -> Settings:
    return load_settings({"HOME": "/nowhere"})


def test_a_trial_does_not_run_late_while_all_stand_still() -> None:
    time = Time()
    client = WorkerClient(TARGET, _settings(), clock=AwakeClock(time))
    talk = client._answer(cast(WorkerProcess, Mute()), client._clock() + LIMIT_S, "silence")
    next(talk)
    time.pass_(10.0, lambda: next(talk))
    time.now += 3600.0
    next(talk)
    time.pass_(6.0, lambda: next(talk))
    time.now += 2.0
    with pytest.raises(WorkerDied, match="silence") as raised:
        next(talk)
    assert raised.value.outcome is TrialOutcome.TIMEOUT


def test_the_time_to_hush_others_is_not_the_trials() -> None:
    time = Time()

    def hush() -> None:
        time.now += 2.5

    client = WorkerClient(TARGET, _settings(), clock=AwakeClock(time), hush=hush)
    worker = Mute({"kind": "quiet"})
    talk = client._answer(cast(WorkerProcess, worker), client._clock() + LIMIT_S, "silence")
    assert next(talk) == LIMIT_S + 2.5
    assert worker.sent == [{"kind": "go"}]
