# SPDX-License-Identifier: Apache-2.0
"""The parent's end of one worker process: its pipe, its log, its end. Nothing here waits but `stop`."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from ..codegen.errors import ColdforgeError
from ..codegen.settings import Settings
from ..codegen.spawn import continue_all, start_shielded, stop_tree
from ..codegen.target import Target
from .outcome import TrialOutcome
from .worker import FAULT_EXIT_CODE, receive, send, serve

_LAST_WORDS_BYTES = 4000
_UP_S = 10.0
# Signals by which a process ends through what it does itself; others are sent.
_OWN_FAULTS = {
    -number
    for number in (
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
    )
}


class WorkerDied(ColdforgeError):
    """The worker ended while it served a request.

    Attributes:
        outcome: `timeout` when it was killed for its silence, else `crash`.
        by_own_fault: Whether what it ran evidently did it; else a kill from outside may have.
    """

    def __init__(self, message: str, outcome: TrialOutcome, *, by_own_fault: bool) -> None:
        super().__init__(message)
        self.outcome, self.by_own_fault = outcome, by_own_fault


class WorkerProcess:
    """One worker, from its start to its end.

    Attributes:
        ready: Whether it has opened its device.
        prepared: What it has references for: `TrialRequest.study_key`.
    """

    def __init__(self, target: Target, settings: Settings) -> None:
        """Touches nothing; `start` does."""
        self._target, self._settings = target, settings
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._log, self._log_name = -1, ""
        self._up = False
        self._stopped: list[int] = []
        self.ready = False
        self.prepared: tuple[Any, ...] | None = None

    def start(self) -> None:
        """Starts the process; `read` tells when it is ready. After an interrupt of this, call `kill`.

        Raises:
            ColdforgeError: The system gives no process.
        """
        context = multiprocessing.get_context("spawn")
        # The worker opens the log by its name and removes the name, so that no kill of either leaves a file.
        self._log, self._log_name = tempfile.mkstemp(prefix="coldforge-worker-", suffix=".log")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, self._target, self._settings, self._log_name)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        try:
            start_shielded(self._process)
        finally:
            theirs.close()  # or its end would not be noticed

    @property
    def pid(self) -> int | None:
        """The process id, once there is one."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.pid is not None and self._process.is_alive()

    @property
    def waitables(self) -> list[Any]:
        """What `multiprocessing.connection.wait` can wait for: a message, or the process's end."""
        if self._process is None or self._process.pid is None:
            return []
        return [self._connection, self._process.sentinel]

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message. A dead worker shows when its answer is read."""
        assert self._connection is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(self._connection, message)

    def read(self) -> dict[str, Any] | None:
        """The next message, None when there is none yet.

        Raises:
            WorkerDied: There will be none: it ended, or closed its pipe.
        """
        connection, process = self._connection, self._process
        assert connection is not None
        assert process is not None
        ended = not process.is_alive()  # asked first: it may say its last word and end in between
        try:
            if connection.poll():
                message = receive(connection)
                self._up |= message["kind"] == "up"
                self.ready |= message["kind"] == "ready"
                return message
        except (EOFError, OSError):
            ended = True
        if not ended:
            return None
        process.join(5.0)
        code = process.exitcode
        own = code is not None and (code > 0 or code in _OWN_FAULTS)
        message = f"the worker {_how_it_ended(code)}{self._last_words()}"
        raise WorkerDied(message, TrialOutcome.CRASH, by_own_fault=own)

    def pause(self) -> None:
        """Stops it, once it has come so far that it dies with this process."""
        if not self._up and self._connection is not None:
            with contextlib.suppress(WorkerDied, OSError):
                self._connection.poll(_UP_S)
                self.read()
        if self._up and not self._stopped and self.pid is not None:
            self._stopped = stop_tree(self.pid)

    def resume(self) -> None:
        """Lets it go on."""
        continue_all(self._stopped)
        self._stopped = []

    def stop(self) -> None:
        """Ends it in good order, when it is idle; kills it when it takes too long."""
        if self.alive and self._process is not None:
            self.send({"kind": "stop"})
            self._process.join(5.0)
        self.kill()

    def kill(self) -> None:
        """Ends it at once and waits for its end. May be called again."""
        self._stopped = []
        process, self._process = self._process, None
        if process is not None and process.pid is not None:  # else an interrupt came before it was started
            process.kill()
            process.join()
            process.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._log >= 0:
            os.close(self._log)
            with contextlib.suppress(FileNotFoundError):  # the worker removed it, if it came that far
                os.unlink(self._log_name)
            self._log = -1

    def _last_words(self) -> str:
        start = max(0, os.fstat(self._log).st_size - _LAST_WORDS_BYTES)
        text = os.pread(self._log, _LAST_WORDS_BYTES, start).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f" ({lines[-1][:200]})" if lines else ""


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "closed its pipe"
    if exit_code < 0:
        with contextlib.suppress(ValueError):
            return f"died of {signal.Signals(-exit_code).name}"
        return f"died of signal {-exit_code}"
    return "left after a device fault" if exit_code == FAULT_EXIT_CODE else f"ended with status {exit_code}"
