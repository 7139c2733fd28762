# SPDX-License-Identifier: Apache-2.0
"""Compiles many sources at once, in spawned processes: as a batch, or as a stream that is fed while other
work goes on.

A process takes one request at a time through a pipe, so a compiler that crashes or hangs costs its own
request and one respawn, never the others. The processes live as long as the pool, and no longer than the
process that made it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from types import TracebackType

from ..awake import WAKE_S, AwakeClock
from ..errors import ColdforgeError, CompileError
from ..spawn import continue_all, stop_tree
from .artifact import Artifact
from .cache import Cache
from .compiling_process import CompileRequest, CompilingProcess, Ticket, stop_all

__all__ = ["CompilePool", "CompileRequest", "compile_many"]

REQUEST_LIMIT_S = 120.0
"""How long a compilation may take."""
_TRIES = 2  # what ended the process may have come from outside


class CompilePool:
    """Compiling processes that stay for many requests. Use it in a `with`, or call `close`.

    Either `compile` a batch, or `submit` requests one by one and `collect` what came of them when one of
    `waitables` is ready or `deadline` has passed; nothing but `compile` waits. Not for several threads.
    """

    def __init__(
        self,
        cache: Cache,
        jobs: int,
        request_limit_s: float = REQUEST_LIMIT_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            cache: Shared by all the processes.
            jobs: How many sources to compile at once, at least 1.
            request_limit_s: Seconds after which a compilation is killed and its request failed; those that
                it was paused do not count.
            clock: Seconds, for the limit; those in which this process ran when not given.
        """
        if jobs < 1:
            raise ValueError(f"jobs is {jobs}; it must be at least 1")
        self._cache, self._jobs, self._limit_s = cache, jobs, request_limit_s
        self._clock = clock or AwakeClock()
        self._processes: list[CompilingProcess] = []
        self._queue: deque[Ticket] = deque()
        self._next_number = 0
        self._stopped: list[int] = []
        self._paused_at: float | None = None

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process, and with each the compiler it is running. May be called again."""
        self._queue.clear()
        self.resume()
        # In place: an interrupt of this call leaves the rest to the next.
        stop_all(self._processes)

    # --- a batch ---

    def compile(self, requests: Iterable[CompileRequest]) -> Iterator[tuple[int, Artifact | CompileError]]:
        """Compiles `requests` and yields (position in `requests`, result) as each finishes.

        Leaving the loop early (a break, Ctrl-C) ends what is still running.

        Raises:
            ColdforgeError: What no request would survive: no compiler, a cache that cannot be written.
        """
        todo = iter(enumerate(requests))
        positions: dict[int, int] = {}
        clean = False
        try:
            while True:
                # Processes may be busy with what was abandoned before: these wait for them.
                while len(positions) < self._jobs and (item := next(todo, None)) is not None:
                    positions[self.submit(item[1])] = item[0]
                if not positions:
                    break
                wait(self.waitables, self.patience_s)
                for number, answer in self.collect():
                    if number in positions:
                        yield positions.pop(number), answer
            clean = True
        finally:
            if not clean:
                self.close()

    # --- a stream ---

    @property
    def load(self) -> int:
        """Requests that were submitted and have no answer yet, those that were abandoned included."""
        return len(self._queue) + sum(process.ticket is not None for process in self._processes)

    def submit(self, request: CompileRequest) -> int:
        """Takes one request, and has it compiled as soon as a process is free.

        Returns:
            The number under which `collect` answers.
        """
        ticket = Ticket(self._next_number, request)
        self._next_number += 1
        self._queue.append(ticket)
        self._feed()
        return ticket.number

    def abandon(self, numbers: Iterable[int]) -> None:
        """Takes requests back: those that no process has yet are dropped, the others' answers too."""
        gone = set(numbers)
        self._queue = deque(ticket for ticket in self._queue if ticket.number not in gone)
        for process in self._processes:
            if process.ticket is not None and process.ticket.number in gone:
                process.ticket.abandoned = True

    @property
    def waitables(self) -> list[Connection]:
        """What `multiprocessing.connection.wait` can wait for; one that is ready means: call `collect`."""
        return [process.connection for process in self._processes]

    @property
    def patience_s(self) -> float | None:
        """Seconds until `collect` must be called although nothing is ready; None when there is no limit."""
        if self._paused_at is not None:
            return None
        deadlines = [process.deadline for process in self._processes if process.ticket is not None]
        return min(WAKE_S, max(0.0, min(deadlines) - self._clock())) if deadlines else None

    def collect(self) -> list[tuple[int, Artifact | CompileError]]:
        """The answers that are there; never waits. A process that died or ran past its limit leaves the pool.

        Raises:
            ColdforgeError: What no request would survive: no compiler, a cache that cannot be written.
        """
        answers: list[tuple[int, Artifact | CompileError]] = []
        ready = wait(self.waitables, 0.0) if self._processes else []
        for process in list(self._processes):
            if process.connection in ready:
                answers += self._answers_of(process)
            elif self._is_late(process):
                answers += self._lose(process, f"was silent for {self._limit_s:g} s and was killed", tries=1)
        self._feed()
        return answers

    def _is_late(self, process: CompilingProcess) -> bool:
        return process.ticket is not None and self._paused_at is None and process.deadline <= self._clock()

    def _answers_of(self, process: CompilingProcess) -> list[tuple[int, Artifact | CompileError]]:
        try:
            answer = process.receive()
        except (EOFError, OSError):
            return self._lose(process, None, tries=_TRIES)
        ticket = process.ticket
        if answer is None or ticket is None:  # a word that it is up
            return []
        process.ticket = None
        if isinstance(answer, ColdforgeError) and not isinstance(answer, CompileError):
            raise answer
        return [] if ticket.abandoned else [(ticket.number, answer)]

    def _lose(
        self, process: CompilingProcess, what: str | None, tries: int
    ) -> list[tuple[int, Artifact | CompileError]]:
        """Drops a process. Its request fails when it lost so many, else it is tried again.

        Args:
            what: What was wrong; None when it ended by itself.
        """
        self._processes.remove(process)
        status = process.stop()
        ticket = process.ticket
        if ticket is None or ticket.abandoned:
            return []
        ticket.tries += 1
        if ticket.tries < tries:
            self._queue.appendleft(ticket)
            return []
        what = what or f"crashed (exit status {status})"
        return [(ticket.number, CompileError(f"{ticket.name}: the compiler {what}"))]

    def _feed(self) -> None:
        """Gives the free processes what is queued. Nothing begins in a pause."""
        while self._queue and self._paused_at is None:
            free = next((process for process in self._processes if process.ticket is None), None)
            if free is None:
                if len(self._processes) >= self._jobs:
                    return
                free = CompilingProcess(self._cache.root)
                self._processes.append(free)
            free.send(self._queue.popleft(), self._clock() + self._limit_s)

    # --- silence ---

    def pause(self) -> None:
        """Stops what compiles, compilers and all, until `resume`. May be called again."""
        if self._paused_at is not None:
            return
        self._paused_at = self._clock()
        for process in self._processes:
            # Only one that would die with this process may be stopped: it would stay stopped for ever.
            if process.ticket is not None and process.comes_up():
                self._stopped += stop_tree(process.pid)

    def resume(self) -> None:
        """Lets the compilers go on; their limits are later by the length of the pause."""
        if self._paused_at is None:
            return
        continue_all(self._stopped)
        self._stopped.clear()
        pause_s, self._paused_at = self._clock() - self._paused_at, None
        for process in self._processes:
            process.deadline += pause_s
        with contextlib.suppress(ColdforgeError):  # no process to be had: `collect` will tell
            self._feed()


def compile_many(
    requests: Iterable[CompileRequest], jobs: int, cache: Cache
) -> Iterator[tuple[int, Artifact | CompileError]]:
    """`CompilePool.compile` for one batch, with processes that end after it."""
    with CompilePool(cache, jobs) as pool:
        yield from pool.compile(requests)
