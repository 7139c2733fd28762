# SPDX-License-Identifier: Apache-2.0
"""The parent's side of the workers: sends a request, waits with a limit, and replaces a worker that hangs or
dies.

The parent imports no torch and makes no device context here. A variant that ends its worker gets an outcome
(`timeout` or `crash` with the signal's name); the next request finds a fresh worker, or the spare, which has
its device open already.

What is said to a worker is written as generators that yield while nothing has come: one thread can run them
beside other work (`begin`, `poll`) or to their end (`run` and the like).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any, TypeVar

from ..codegen.awake import AwakeClock
from ..codegen.errors import ColdforgeError, InputError
from ..codegen.settings import TRIAL_LIMIT_S, Settings
from ..codegen.target import Target
from .outcome import TrialOutcome, TrialResult
from .request import TrialRequest
from .worker_process import WorkerDied, WorkerProcess
from .workers import Workers

__all__ = ["WorkerClient", "WorkerDied", "time_limit_s"]

START_LIMIT_S = 180.0
PREPARE_LIMIT_S = 900.0
MOST_ENERGY_S = 75.0
"""What the energy readings of one finalist may take: see `energy`."""
_NOTED_S = 0.05
_ATTEMPTS = 2  # of what lost a worker, perhaps through no fault of its own

T = TypeVar("T")
Talk = Generator[float, None, T]
"""A conversation with a worker: yields, while nothing has come, the time at which it must be resumed, by the
client's clock."""


SLOW_FLOPS = {"cpu": 1e9, "cuda": 1e11}
"""Operations a second of the slowest machine that is waited for, by kind of target."""


def time_limit_s(
    request: TrialRequest, base_s: float = TRIAL_LIMIT_S, slow_flops: float = SLOW_FLOPS["cpu"]
) -> float:
    """Seconds after which a variant counts as hung: ``base_s`` and what its arithmetic may take.

    A trial makes some twenty calls at the workload's shape and compares a few outputs. A call may take ten
    times the best time; while no time is known, as long as ``slow_flops`` operations a second would need.
    """
    arithmetic_s = request.flops / slow_flops
    call_s = 1e-2 * request.best_ms if request.best_ms is not None else arithmetic_s
    return base_s + 20.0 * call_s + arithmetic_s


class WorkerClient:
    """Talks to one worker, started on first use. One thread may use it. `close` ends the worker.

    Args:
        target: The device that the worker opens.
        settings: Passed on to the worker.
        spare, hush, unhush: See `Workers`.
        clock: For the limits.
    """

    def __init__(
        self,
        target: Target,
        settings: Settings,
        *,
        spare: bool = False,
        hush: Callable[[], None] = lambda: None,
        unhush: Callable[[], None] = lambda: None,
        clock: AwakeClock | None = None,
    ) -> None:
        self.target = target
        self.settings = settings
        self._workers = Workers(target, settings, spare=spare, hush=hush, unhush=unhush)
        self._clock = clock or AwakeClock()
        self._busy = False
        self._talk: Talk[TrialResult] | None = None
        self._result: TrialResult | None = None
        self._resume_at = 0.0

    def __enter__(self) -> WorkerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The running worker's process id."""
        return self._workers.current.pid if self._workers.current is not None else None

    @property
    def starts(self) -> int:
        """Worker processes started so far, spares included."""
        return self._workers.starts

    # --- one trial, beside other work ---

    def begin(
        self,
        request: TrialRequest,
        timeout_s: float | None = None,
        handed_over: Callable[[], None] = lambda: None,
    ) -> None:
        """Begins what `run` does and returns; `poll` gives the result. One at a time.

        Args:
            request, timeout_s: As for `run`.
            handed_over: Called once, right before a worker gets the variant.

        Raises:
            InputError, ColdforgeError: As `run`.
        """
        limit_s = self._limit_s(request) if timeout_s is None else timeout_s
        self._talk = self._judged("trial", request, limit_s, handed_over)
        self._advance()

    def poll(self) -> TrialResult | None:
        """The result of what was begun, None when there is none yet; never waits long.

        Raises:
            InputError, ColdforgeError: As `run`.
        """
        self._advance()
        result, self._result = self._result, None
        return result

    def _advance(self) -> None:
        if self._talk is None:
            return
        try:
            self._resume_at = next(self._talk)
        except StopIteration as end:
            self._talk, self._result = None, end.value

    @property
    def waitables(self) -> list[Any]:
        """What `multiprocessing.connection.wait` can wait for; one that is ready means: call `poll`."""
        current = self._workers.current
        return current.waitables if self._talk is not None and current is not None else []

    @property
    def patience_s(self) -> float | None:
        """Seconds until `poll` must be called although nothing is ready; None when nothing was begun."""
        if self._talk is None:
            return None if self._result is None else 0.0
        return self._clock.left_s(self._resume_at)

    # --- to the end ---

    def run(self, request: TrialRequest, timeout_s: float | None = None) -> TrialResult:
        """Verifies and times one variant. Whatever the variant does comes back as a result.

        Args:
            request: The variant.
            timeout_s: For the variant alone; references, computed once a study, have a limit of their own.
                When not given it follows from the work: see `time_limit_s`.

        Raises:
            InputError: The problem cannot be verified.
            ColdforgeError: The worker does not start, or fails through no fault of the variant.
        """
        return self._finish(
            self._judged("trial", request, self._limit_s(request) if timeout_s is None else timeout_s)
        )

    def check(self, request: TrialRequest, timeout_s: float) -> TrialResult:
        """Verifies one variant and does not time it; otherwise as `run`. Half of the checks launch it for a
        device of few multiprocessors, so that a block goes through many tiles."""
        return self._finish(self._judged("check", request, timeout_s))

    def finals(
        self, requests: Sequence[TrialRequest], timeout_s: float | None = None, *, energy: bool = False
    ) -> list[TrialResult]:
        """Times variants of one study in turns; one result each, in order.

        When the worker is lost, each is run alone instead, so that only the guilty one has a bad outcome.
        `energy`: their energy is read too.

        Raises:
            InputError, ColdforgeError: As `run`.
        """
        if not requests:
            return []
        plain = [request.to_dict() for request in requests]
        message = {"kind": "finals", "requests": plain, "energy": energy}
        each_s = MOST_ENERGY_S if energy else 0.0
        limit_s = sum(self._limit_s(r) + each_s for r in requests) if timeout_s is None else timeout_s
        try:
            self._finish(self._prepared(requests[0]))
            answer = self._finish(self._exchange(message, limit_s))
        except WorkerDied:
            return [self.run(request.in_full()) for request in requests]
        return [TrialResult.from_dict(result) for result in answer["results"]]

    def facts(self) -> dict[str, Any]:
        """What the device is, with its ceilings under `ceilings`, what was measured of them under `probe`,
        and what its energy is read from under `energy_source` (None where nothing tells).

        Raises:
            InputError: This machine has no such device.
            ColdforgeError: The worker does not start.
        """
        answer = self.ask({"kind": "facts"}, START_LIMIT_S)
        more = {name: answer[name] for name in ("ceilings", "probe", "energy_source")}
        return {**answer["facts"], **more}

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Sends one message and waits for its answer.

        Raises:
            WorkerDied: It ended or ran past the limit (and was killed).
            InputError, ColdforgeError: It refused.
        """
        self._finish(self._up())
        return self._finish(self._exchange(message, timeout_s))

    def close(self) -> None:
        """Ends the workers; kills one that is serving a request. May be called again."""
        self._talk = self._result = None
        self._workers.close(kill=self._busy)
        self._busy = False

    # --- conversations ---

    def _limit_s(self, request: TrialRequest) -> float:
        return time_limit_s(request, self.settings.trial_limit_s, SLOW_FLOPS[self.target.kind])

    def _finish(self, talk: Talk[T]) -> T:
        while True:
            try:
                resume_at = next(talk)
            except StopIteration as end:
                return end.value
            assert self._workers.current is not None
            wait(self._workers.current.waitables, self._clock.left_s(resume_at))

    def _judged(
        self,
        kind: str,
        request: TrialRequest,
        limit_s: float,
        handed_over: Callable[[], None] = lambda: None,
    ) -> Talk[TrialResult]:
        """One variant's result. One that lost its worker may not be to blame: it has a second attempt."""
        began, ready_s = time.monotonic(), 0.0
        for attempt in range(1, _ATTEMPTS + 1):
            yield from self._prepared(request)
            if attempt == 1:
                handed_over()
                ready_s = time.monotonic() - began
            if self.target.kind == "cpu":  # beside a trial: it would slow the start of the worker itself
                self._workers.fill_up()
            started = time.monotonic()
            try:
                answer = yield from self._exchange({"kind": kind, "request": request.to_dict()}, limit_s)
            except WorkerDied as error:
                last = error.by_own_fault or error.outcome is TrialOutcome.TIMEOUT or attempt == _ATTEMPTS
                if last:
                    return _lost(request, error, time.monotonic() - started, attempt)
                continue
            result = TrialResult.from_dict(answer["result"])
            if ready_s < _NOTED_S:  # nothing was to be done
                return result
            phases = {"prepare": ready_s, **result.details.get("phase_s", {})}
            return replace(result, details={**result.details, "phase_s": phases})
        raise AssertionError("unreachable")

    def _prepared(self, request: TrialRequest) -> Talk[None]:
        """Has the worker build the study's references, unless this very worker did already."""
        message = {"kind": "prepare", "request": request.to_dict()}
        for attempt in range(1, _ATTEMPTS + 1):
            worker = yield from self._up()
            if worker.prepared == request.study_key:
                return
            try:
                yield from self._exchange(message, PREPARE_LIMIT_S)
                worker.prepared = request.study_key
                return
            except WorkerDied as error:
                if attempt == _ATTEMPTS:
                    text = f"the worker was lost while it computed references: {error}"
                    raise ColdforgeError(text) from error

    def _up(self) -> Talk[WorkerProcess]:
        """A worker with its device open: the one at hand, else the spare, else a new one."""
        for attempt in range(1, _ATTEMPTS + 1):
            worker = self._workers.take()
            if worker.ready:
                return worker
            if self.target.kind == "cuda":  # not beside a trial: it would disturb what is timed
                self._workers.fill_up()
            self._busy = True
            deadline = self._clock() + START_LIMIT_S
            try:
                answer = yield from self._answer(worker, deadline, "the device did not open")
            except WorkerDied as error:
                if attempt == _ATTEMPTS or error.by_own_fault:
                    text = f"the {self.target.kind} worker does not start: {error}"
                    raise ColdforgeError(text) from error
                continue
            self._busy = False
            if answer["kind"] != "ready":
                self._drop()
                _checked(answer)
            return worker
        raise AssertionError("unreachable")

    def _exchange(self, message: Mapping[str, Any], limit_s: float) -> Talk[dict[str, Any]]:
        """Sends one message to the worker at hand; its answer."""
        worker = self._workers.current
        assert worker is not None
        self._busy = True
        worker.send(message)
        answer = yield from self._answer(worker, self._clock() + limit_s, f"no answer within {limit_s:g} s")
        self._busy = False
        if answer["kind"] == "fault":
            self._drop()
            raise WorkerDied(answer["message"], TrialOutcome.CRASH, by_own_fault=True)
        return _checked(answer)

    def _drop(self) -> None:
        self._busy = False
        self._workers.drop()

    def _answer(self, worker: WorkerProcess, deadline: float, silence: str) -> Talk[dict[str, Any]]:
        """The next answer; what the worker says of itself meanwhile is acted upon."""
        while True:
            try:
                message = worker.read()
            except WorkerDied:
                self._drop()
                raise
            if message is None:
                if self._clock() >= deadline:
                    self._drop()
                    raise WorkerDied(silence, TrialOutcome.TIMEOUT, by_own_fault=True)
                yield deadline
            elif message["kind"] == "quiet":
                asked = self._clock()
                self._workers.hush()
                deadline += self._clock() - asked  # the worker waited for it
                worker.send({"kind": "go"})
            elif message["kind"] == "noise":
                self._workers.unhush()
            elif message["kind"] != "up":
                return message


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if answer["kind"] == "refused":
        raise (InputError if answer["input"] else ColdforgeError)(answer["message"])
    return answer


def _lost(request: TrialRequest, error: WorkerDied, seconds: float, attempts: int) -> TrialResult:
    artifact = request.artifact
    return replace(
        TrialResult(error.outcome, str(error)),
        config=dict(request.config),
        template=request.template,
        resources=dict(artifact["resources"]),
        code_digest=artifact["code_digest"],
        seconds=seconds,
        details={"attempts": attempts},
    )
