# SPDX-License-Identifier: Apache-2.0
"""The parent's side of a worker: sends a request, waits with a limit, and replaces a worker that hangs or
dies.

The parent imports no torch and makes no device context here. A variant that ends its worker gets an outcome
(`timeout` or `crash` with the signal's name); the next request finds a fresh worker.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from ..codegen.errors import ColdforgeError, InputError
from ..codegen.settings import TRIAL_LIMIT_S, Settings
from ..codegen.spawn import start_shielded
from ..codegen.target import Target
from .outcome import TrialOutcome, TrialResult
from .request import TrialRequest
from .worker import FAULT_EXIT_CODE, receive, send, serve

START_LIMIT_S = 180.0
PREPARE_LIMIT_S = 900.0
_LAST_WORDS_BYTES = 4000


def time_limit_s(request: TrialRequest, base_s: float = TRIAL_LIMIT_S) -> float:
    """Seconds after which a variant counts as hung: ``base_s`` and what its arithmetic may take.

    A trial makes some twenty calls at the workload's shape and compares a few outputs. A call may take ten
    times the best time; while no time is known, as long as 1 GFLOP/s would need.
    """
    flops = request.flops
    call_s = 1e-2 * request.best_ms if request.best_ms is not None else flops / 1e9
    return base_s + 20.0 * call_s + flops / 1e9


class WorkerDied(ColdforgeError):
    """The worker ended while it served a request.

    Attributes:
        outcome: `timeout` when the client killed it, else `crash`.
    """

    def __init__(self, message: str, outcome: TrialOutcome) -> None:
        super().__init__(message)
        self.outcome = outcome


class WorkerClient:
    """Talks to one worker, started on first use. One thread may use it. `close` ends the worker.

    Args:
        target: The device that the worker opens.
        settings: Passed on to the worker.
    """

    def __init__(self, target: Target, settings: Settings) -> None:
        self.target = target
        self.settings = settings
        self.starts = 0
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._connection: Any = None
        self._busy = False
        self._log, self._log_name = -1, ""
        self._prepared: tuple[Any, ...] | None = None

    def __enter__(self) -> WorkerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The running worker's process id."""
        return self._process.pid if self._process is not None else None

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
        return self._judged("trial", request, self._limit_s(request) if timeout_s is None else timeout_s)

    def check(self, request: TrialRequest, timeout_s: float) -> TrialResult:
        """Verifies one variant and does not time it; otherwise as `run`. Half of the checks launch it for a
        device of few multiprocessors, so that a block goes through many tiles."""
        return self._judged("check", request, timeout_s)

    def _limit_s(self, request: TrialRequest) -> float:
        return time_limit_s(request, self.settings.trial_limit_s)

    def _judged(self, kind: str, request: TrialRequest, limit_s: float) -> TrialResult:
        self._prepare(request)
        started = time.monotonic()
        try:
            answer = self.ask({"kind": kind, "request": request.to_dict()}, limit_s)
        except WorkerDied as error:
            return _lost(request, error, time.monotonic() - started)
        return TrialResult.from_dict(answer["result"])

    def finals(self, requests: Sequence[TrialRequest], timeout_s: float | None = None) -> list[TrialResult]:
        """Times variants of one study in turns; one result each, in order.

        When the worker is lost, each is run alone instead, so that only the guilty one has a bad outcome.

        Raises:
            InputError, ColdforgeError: As `run`.
        """
        if not requests:
            return []
        self._prepare(requests[0])
        message = {"kind": "finals", "requests": [request.to_dict() for request in requests]}
        limit_s = sum(self._limit_s(request) for request in requests) if timeout_s is None else timeout_s
        try:
            answer = self.ask(message, limit_s)
        except WorkerDied:
            return [self.run(request.in_full()) for request in requests]
        return [TrialResult.from_dict(result) for result in answer["results"]]

    def facts(self) -> dict[str, Any]:
        """What the device is, with its ceilings under `ceilings`.

        Raises:
            InputError: This machine has no such device.
            ColdforgeError: The worker does not start.
        """
        answer = self.ask({"kind": "facts"}, START_LIMIT_S)
        return {**answer["facts"], "ceilings": answer["ceilings"]}

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Sends one message and waits for its answer.

        Raises:
            WorkerDied: It ended or ran past the limit (and was killed).
            InputError, ColdforgeError: It refused.
        """
        self._start()
        self._busy = True
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died idle: the wait tells how
            send(self._connection, message)
        answer = self._receive(timeout_s)
        self._busy = False
        if answer["kind"] == "fault":
            self._kill()
            raise WorkerDied(answer["message"], TrialOutcome.CRASH)
        return _checked(answer)

    def close(self) -> None:
        """Ends the worker; kills it when it is serving a request. May be called again."""
        if self._process is None:
            return
        if not self._busy:
            with contextlib.suppress(OSError):
                send(self._connection, {"kind": "stop"})
            self._process.join(5.0)
        self._kill()

    def _prepare(self, request: TrialRequest) -> None:
        """Has the worker build the study's references, unless this very worker did already."""
        self._start()
        if self._prepared == request.study_key:
            return
        try:
            self.ask({"kind": "prepare", "request": request.to_dict()}, PREPARE_LIMIT_S)
        except WorkerDied as error:
            raise ColdforgeError(f"the worker was lost while it computed references: {error}") from error
        self._prepared = request.study_key

    def _start(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        self._kill()
        # The worker opens the log by its name and removes the name, so that no kill of either leaves a file.
        self._log, self._log_name = tempfile.mkstemp(prefix="coldforge-worker-", suffix=".log")
        ours, theirs = self._context.Pipe()
        arguments = (theirs, self.target, self.settings, self._log_name)
        self._process = self._context.Process(target=serve, args=arguments, daemon=True)
        self._connection = ours
        self._busy = True
        start_shielded(self._process)
        theirs.close()  # or its end would not be noticed
        self.starts += 1
        try:
            answer = self._receive(START_LIMIT_S)
        except WorkerDied as error:
            raise ColdforgeError(f"the {self.target.kind} worker does not start: {error}") from error
        self._busy = False
        if answer["kind"] != "ready":
            self._kill()
        _checked(answer)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        ready = wait([self._connection, self._process.sentinel], timeout_s)
        if self._connection in ready:
            with contextlib.suppress(EOFError, ConnectionResetError):
                return receive(self._connection)
        if not ready:
            self._kill()
            raise WorkerDied(f"no answer within {timeout_s:g} s", TrialOutcome.TIMEOUT)
        self._process.join(5.0)
        message = f"the worker {_how_it_ended(self._process.exitcode)}{self._last_words()}"
        self._kill()
        raise WorkerDied(message, TrialOutcome.CRASH)

    def _last_words(self) -> str:
        start = max(0, os.fstat(self._log).st_size - _LAST_WORDS_BYTES)
        text = os.pread(self._log, _LAST_WORDS_BYTES, start).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f" ({lines[-1][:200]})" if lines else ""

    def _kill(self) -> None:
        """Ends the process at once, waits for it, and forgets everything about it."""
        process, self._process = self._process, None
        self._prepared, self._busy = None, False
        if process is not None:
            if process.pid is not None:  # else an interrupt came before it was started
                process.kill()
                process.join()
                process.close()
            self._connection.close()
        if self._log >= 0:
            os.close(self._log)
            with contextlib.suppress(FileNotFoundError):  # the worker removed it, if it came that far
                os.unlink(self._log_name)
            self._log = -1


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "closed its pipe"
    if exit_code < 0:
        with contextlib.suppress(ValueError):
            return f"died of {signal.Signals(-exit_code).name}"
        return f"died of signal {-exit_code}"
    return "left after a device fault" if exit_code == FAULT_EXIT_CODE else f"ended with status {exit_code}"


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if answer["kind"] == "refused":
        raise (InputError if answer["input"] else ColdforgeError)(answer["message"])
    return answer


def _lost(request: TrialRequest, error: WorkerDied, seconds: float) -> TrialResult:
    artifact = request.artifact
    return replace(
        TrialResult(error.outcome, str(error)),
        config=dict(request.config),
        template=request.template,
        resources=dict(artifact["resources"]),
        code_digest=artifact["code_digest"],
        seconds=seconds,
    )
