# SPDX-License-Identifier: Apache-2.0
"""A program run with a time limit, in a process group of its own: whatever it starts dies with it, and all of
it dies with the process that runs it, even when that one is killed.

The group has a guard: a shell that waits for the end of a pipe which only the running process holds. A kill
of that process, by whatever signal, closes the pipe, and the guard kills the group. A death signal asked for
in the program would not do: it is not inherited, so a killed g++ leaves its cc1plus to run on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ColdforgeError
from ..spawn import GUARD_NAME

# A group that loses its parent while stopped is sent SIGHUP: the guard outlives it.
_GUARD = ("/bin/sh", "-c", "trap '' HUP; read _; kill -KILL 0", GUARD_NAME.decode())


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        status: its exit status, negative for a signal; None when it ran past its limit and was killed.
        output: what it wrote.
        errors: what it wrote to its error stream; empty when that was merged into `output`.
    """

    status: int | None
    output: bytes
    errors: bytes = b""


class Leash:
    """Ends what `run_group` runs in other threads. A thread that waits for a program sees no Ctrl-C, so the
    main thread, which does, pulls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._pulled = False

    def take(self) -> None:
        """Puts the programs that the calling thread runs from now on on this leash."""
        _THREAD.leash = self

    def pull(self) -> None:
        """Kills what runs. What would still begin raises `Pulled`. May be called again."""
        with self._lock:
            self._pulled = True
            for group in self._groups:
                _kill(group)

    def check(self) -> None:
        """Raises Pulled once it was pulled."""
        if self._pulled:
            raise Pulled("stopped")

    @contextlib.contextmanager
    def holding(self, group: int) -> Iterator[None]:
        """Has a process group on the leash; its leader must not be reaped before the end of the block."""
        with self._lock:
            self._groups.add(group)
        try:
            yield
        finally:
            with self._lock:
                self._groups.remove(group)


class Pulled(ColdforgeError):
    """A program that did not run to its end, because its leash was pulled."""


_THREAD = threading.local()


def run_group(
    command: Sequence[str],
    folder: Path,
    time_limit_s: float | None,
    *,
    feed: bytes | None = None,
    merged: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Runs a program to its end, or kills it and all that it started.

    Args:
        command: The program and its arguments.
        folder: Where it runs.
        time_limit_s: Seconds after which it is killed; never when None.
        feed: Its standard input; empty when not given.
        merged: Whether its errors go into its output.
        environment: Variables over this process's own.

    Raises:
        OSError: It cannot be started.
        Pulled: The thread's leash was pulled.
    """
    leash: Leash = getattr(_THREAD, "leash", None) or Leash()
    leash.check()
    with _guarded_group() as group, leash.holding(group):
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL if feed is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            process_group=group,
        )
        finished = False
        try:
            leash.check()  # a pull just now may have come before the program
            output, errors = process.communicate(feed, timeout=time_limit_s)
            leash.check()
            finished = True
            return Ended(process.returncode, output, errors or b"")
        except subprocess.TimeoutExpired as error:
            return Ended(None, error.stdout or b"", error.stderr or b"")
        finally:
            if not finished:  # time limit, Ctrl-C, a signal to end: leave nothing behind
                _kill(group)
                process.communicate()


@contextlib.contextmanager
def _guarded_group() -> Iterator[int]:
    """A process group whose leader is its guard; at the end nothing of it is left."""
    nothing = subprocess.DEVNULL
    with subprocess.Popen(
        _GUARD, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, process_group=0
    ) as guard:
        try:
            yield guard.pid
        finally:
            _kill(guard.pid)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
