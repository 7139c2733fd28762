# SPDX-License-Identifier: Apache-2.0
"""One compiling process: what runs in it, and the pool's end of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..errors import ColdforgeError, CompileError
from ..spawn import die_with_parent, start_shielded
from .artifact import Artifact
from .cache import Cache

if TYPE_CHECKING:
    from ..render import KernelSource
    from ..target import Target

_START_S, _GRACE_S = 10.0, 2.0


@dataclass(frozen=True)
class CompileRequest:
    """One source to compile for one target. Travels to the compiling process by pickle."""

    source: KernelSource
    target: Target


@dataclass
class Ticket:
    """A request in the pool.

    Attributes:
        number: Under which its answer is given.
        tries: Processes that it lost.
        abandoned: Nobody wants its answer any more.
    """

    number: int
    request: CompileRequest
    tries: int = 0
    abandoned: bool = False

    @property
    def name(self) -> str:
        """The variant's, for messages."""
        return self.request.source.name


def serve(connection: Connection, root: Path) -> None:
    """Runs in the process: requests in, Artifact or ColdforgeError out, until the other end closes. The first
    word out is None: from then on the process ends with its parent.
    """
    from . import compile_source

    def end(*_: object) -> NoReturn:
        raise SystemExit(0)  # unwinds, so that a running g++ is killed too

    # Ctrl-C reaches the whole terminal group; only the parent acts on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    die_with_parent()
    cache = Cache(root)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        connection.send(None)
        while True:
            request: CompileRequest = connection.recv()
            try:
                # The pool keeps the time: it alone knows how long a compiler was paused.
                answer: Artifact | ColdforgeError = compile_source(
                    request.source, request.target, cache, time_limit_s=None
                )
            except ColdforgeError as error:
                answer = error
            except Exception as error:
                answer = CompileError(f"{request.source.name}: {type(error).__name__}: {error}")
            connection.send(answer)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to unwind


class CompilingProcess:
    """The pool's end of one process.

    Attributes:
        ticket: What it is busy with.
        deadline: When that must be done, by the pool's clock.
    """

    def __init__(self, root: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self.process: BaseProcess = context.Process(target=serve, args=(child, root), daemon=True)
        self.ticket: Ticket | None = None
        self.deadline = 0.0
        self._up = False
        start_shielded(self.process)
        child.close()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process.pid is not None
        return self.process.pid

    def send(self, ticket: Ticket, deadline: float) -> None:
        """Gives it a request; never waits long. A dead process shows when its answer is awaited."""
        self.ticket, self.deadline = ticket, deadline
        with contextlib.suppress(OSError):
            self.connection.send(ticket.request)

    def receive(self) -> Artifact | ColdforgeError | None:
        """What it sent; None: it is up.

        Raises:
            EOFError, OSError: It died.
        """
        answer = self.connection.recv()
        self._up = True
        return answer

    def comes_up(self) -> bool:
        """Waits until the process dies with this one; False when it does not come that far."""
        if not self._up:
            with contextlib.suppress(EOFError, OSError):
                if self.connection.poll(_START_S):
                    self.receive()
        return self._up

    def stop(self) -> int | None:
        """Ends it, and the compiler that it runs; gives its exit status."""
        stop_all([self])
        return self.process.exitcode


def stop_all(processes: list[CompilingProcess]) -> None:
    """Ends processes, all at the same time, and removes them from the list as each is gone."""
    for one in processes:
        one.connection.close()  # an idle process sees the end of the pipe and leaves
        if one.ticket is not None:
            one.process.terminate()
    deadline = time.monotonic() + _GRACE_S
    while processes:
        process = processes[-1].process
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():  # inside native code, deaf to SIGTERM: its compiler's guard sees its end
            process.kill()
            process.join()
        processes.pop()
