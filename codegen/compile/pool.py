# SPDX-License-Identifier: Apache-2.0
"""Compiles many sources at once, in spawned processes.

A process takes one request at a time through a pipe, so a compiler that crashes or hangs costs its own
request and one respawn, never the batch. The processes live as long as the pool: a search sends all its
batches to the same ones.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from ..errors import ColdforgeError, CompileError
from ..spawn import start_shielded
from .artifact import Artifact
from .cache import Cache

if TYPE_CHECKING:
    from ..render import KernelSource
    from ..target import Target

# Above the compilers' own limits: a process that is still silent then is itself stuck.
REQUEST_LIMIT_S = 180.0


@dataclass(frozen=True)
class CompileRequest:
    """One source to compile for one target. Travels to the compiling process by pickle."""

    source: KernelSource
    target: Target


def _serve(connection: Connection, root: Path) -> None:
    """The compiling process: requests in, Artifact or ColdforgeError out, until the other end closes."""
    from . import compile_source

    def end(*_: object) -> NoReturn:
        raise SystemExit(0)  # unwinds, so that a running g++ is killed too

    # Ctrl-C reaches the whole terminal group; only the parent acts on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    cache = Cache(root)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            request: CompileRequest = connection.recv()
            try:
                answer: Artifact | ColdforgeError = compile_source(request.source, request.target, cache)
            except ColdforgeError as error:
                answer = error
            except Exception as error:
                answer = CompileError(f"{request.source.name}: {type(error).__name__}: {error}")
            connection.send(answer)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to unwind


class _Worker:
    """One compiling process and what it is busy with."""

    def __init__(self, root: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(child, root), daemon=True)
        start_shielded(self.process)
        child.close()
        self.index: int | None = None
        self.name = ""
        self.deadline = 0.0

    def send(self, index: int, request: CompileRequest, limit_s: float) -> None:
        self.index, self.name = index, request.source.name
        self.deadline = time.monotonic() + limit_s
        with contextlib.suppress(OSError):  # a dead process shows when its answer is awaited
            self.connection.send(request)

    def stop(self) -> None:
        self.connection.close()
        if self.index is None:
            self.process.join(2.0)  # an idle process sees the end of the pipe and leaves
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(2.0)
        if self.process.is_alive():  # inside native code, deaf to SIGTERM
            self.process.kill()
            self.process.join()


class CompilePool:
    """Compiling processes that stay for many batches. Use it in a `with`, or call `close`.

    One batch at a time: not for several threads.
    """

    def __init__(self, cache: Cache, jobs: int, request_limit_s: float = REQUEST_LIMIT_S) -> None:
        """Starts nothing yet.

        Args:
            cache: Shared by all the processes.
            jobs: How many sources to compile at once, at least 1.
            request_limit_s: Seconds after which a silent process is killed and its request failed.
        """
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}; it must be at least 1")
        self._cache, self._jobs, self._limit_s = cache, jobs, request_limit_s
        self._workers: list[_Worker] = []

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process, and with each the compiler it is running. May be called again."""
        while self._workers:
            self._workers.pop().stop()

    def compile(self, requests: Iterable[CompileRequest]) -> Iterator[tuple[int, Artifact | CompileError]]:
        """Compiles `requests` and yields (position in `requests`, result) as each finishes.

        Leaving the loop early (a break, Ctrl-C) ends what is still running.

        Raises:
            ColdforgeError: What no request would survive: no compiler, a cache that cannot be written.
        """
        todo = iter(enumerate(requests))
        clean = False
        try:
            while self._feed(todo):
                for worker, answer in self._answers():
                    index = worker.index
                    worker.index = None
                    if isinstance(answer, ColdforgeError) and not isinstance(answer, CompileError):
                        raise answer
                    assert index is not None
                    yield index, answer
            clean = True
        finally:
            if not clean:
                self.close()

    def _feed(self, todo: Iterator[tuple[int, CompileRequest]]) -> bool:
        """Gives every idle process a request; False when nothing is left to wait for."""
        while sum(worker.index is not None for worker in self._workers) < self._jobs:
            item = next(todo, None)
            if item is None:
                break
            idle = next((worker for worker in self._workers if worker.index is None), None)
            if idle is None:
                idle = _Worker(self._cache.root)
                self._workers.append(idle)
            idle.send(*item, self._limit_s)
        return any(worker.index is not None for worker in self._workers)

    def _answers(self) -> list[tuple[_Worker, Artifact | ColdforgeError]]:
        """Waits for at least one answer; a process that died or ran past its limit leaves the pool."""
        busy = [worker for worker in self._workers if worker.index is not None]
        answers: list[tuple[_Worker, Artifact | ColdforgeError]] = []
        while not answers:
            next_deadline = min(worker.deadline for worker in busy)
            ready = wait([worker.connection for worker in busy], max(0.0, next_deadline - time.monotonic()))
            now = time.monotonic()
            for worker in busy:
                if worker.connection in ready:
                    answers.append((worker, self._receive(worker)))
                elif worker.deadline <= now:
                    message = f"{worker.name}: the compiler was silent for {self._limit_s:g} s and was killed"
                    answers.append((worker, CompileError(message)))
                    self._drop(worker)
        return answers

    def _receive(self, worker: _Worker) -> Artifact | ColdforgeError:
        try:
            return worker.connection.recv()
        except (EOFError, OSError):
            self._drop(worker)
            status = worker.process.exitcode
            return CompileError(f"{worker.name}: the compiler crashed (exit status {status})")

    def _drop(self, worker: _Worker) -> None:
        worker.stop()
        self._workers.remove(worker)


def compile_many(
    requests: Iterable[CompileRequest], jobs: int, cache: Cache
) -> Iterator[tuple[int, Artifact | CompileError]]:
    """`CompilePool.compile` for one batch, with processes that end after it."""
    with CompilePool(cache, jobs) as pool:
        yield from pool.compile(requests)
