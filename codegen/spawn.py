# SPDX-License-Identifier: Apache-2.0
"""Helper processes: started so that a Ctrl-C leaves them alone, tied to the life of the one that starts them,
stopped and continued with all that they started.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from .errors import ColdforgeError

_PR_SET_PDEATHSIG = 1
GUARD_NAME = b"coldforge-guard"
"""The last word of a guard's command line: see `compile/process.py`."""


def start_shielded(process: BaseProcess) -> None:
    """Starts a spawned process with SIGINT blocked, in place of ``process.start()``.

    A terminal's Ctrl-C reaches the whole process group. Code of the child can ignore it only once it runs;
    one that came while its interpreter starts was seen to print a traceback of the interpreter's own. The
    mask survives the exec; in this process it is put back, and an interrupt that came meanwhile arrives then.

    Raises:
        ColdforgeError: The system gives no process.
    """
    resource_tracker.ensure_running()  # its own start would unblock the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    except OSError as error:
        raise ColdforgeError(f"cannot start a process: {error.strerror or error}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """Called in a helper process: asks the kernel for SIGKILL when the process that started it dies, however
    that comes; a stopped one is killed too. Where the system has no such thing the end of the pipe must do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        parent = multiprocessing.parent_process()
        if parent is not None and os.getppid() != parent.pid:
            os._exit(1)  # it died before this was asked for


def stop_tree(pid: int) -> list[int]:
    """Stops a process and all that it started, guards excepted: those must act when the others die.

    The parent goes first: a process with a pending stop cannot finish a fork, so none escapes.

    Returns:
        The processes that were stopped, for `continue_all`.
    """
    try:
        os.kill(pid, signal.SIGSTOP)
    except (ProcessLookupError, PermissionError):
        return []
    stopped = [pid]
    for child in children(pid):
        if not _is_guard(child):
            stopped += stop_tree(child)
    return stopped


def continue_all(pids: list[int]) -> None:
    """Lets stopped processes run on, those that others wait for first."""
    for pid in reversed(pids):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def children(pid: int) -> list[int]:
    """The processes that a process started and that are there; none where the system does not tell."""
    found: list[int] = []
    tasks = Path(f"/proc/{pid}/task")
    try:
        for task in os.listdir(tasks):
            found += map(int, (tasks / task / "children").read_bytes().split())
        return found
    except FileNotFoundError:
        return found if found or not tasks.exists() else _children_by_search(pid)
    except OSError:
        return found


def _children_by_search(pid: int) -> list[int]:
    """For kernels that keep no list."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = Path(f"/proc/{name}/stat").read_bytes()
                if int(stat.rpartition(b")")[2].split()[1]) == pid:
                    found.append(int(name))
    return found


def _is_guard(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").endswith(GUARD_NAME)
    except OSError:
        return False
