# SPDX-License-Identifier: Apache-2.0
"""A program run with a time limit, in a process group of its own: whatever it starts dies with it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


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


def run_group(
    command: Sequence[str],
    folder: Path,
    time_limit_s: float,
    *,
    feed: bytes | None = None,
    merged: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Runs a program to its end, or kills it and all that it started.

    Args:
        command: The program and its arguments.
        folder: Where it runs.
        time_limit_s: Seconds after which it is killed.
        feed: Its standard input; empty when not given.
        merged: Whether its errors go into its output.
        environment: Variables over this process's own.

    Raises:
        OSError: It cannot be started.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL if feed is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    finished = False
    try:
        output, errors = process.communicate(feed, timeout=time_limit_s)
        finished = True
        return Ended(process.returncode, output, errors or b"")
    except subprocess.TimeoutExpired as error:
        return Ended(None, error.stdout or b"", error.stderr or b"")
    finally:
        if not finished:  # time limit, Ctrl-C, a signal to end: leave nothing behind
            _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.communicate()
