# SPDX-License-Identifier: Apache-2.0
"""Whether the process that left a file behind still runs.

A process id alone does not tell: ids are given again, a machine is started again, and a folder may be shared
by machines or containers that cannot see each other's processes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_UNKNOWN = "0"


@dataclass(frozen=True)
class Mark:
    """One process among all that ever wrote to a folder; its text fits a file name.

    Attributes:
        host: digest of the machine's name.
        boot: which start of the machine.
        space: which space of process ids.
        pid: the process id.
        started: the process's start, in clock ticks since the machine's; "0" where the system does not tell.
    """

    host: str
    boot: str
    space: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"{self.host}-{self.boot}-{self.space}-{self.pid}-{self.started}"

    @property
    def alive(self) -> bool | None:
        """Whether it runs; None where this process cannot know (another machine, another container)."""
        here = own_mark()
        if self.host != here.host:
            return None
        if self.boot != here.boot:
            return False  # the machine was started again since
        if self.space != here.space:
            return None
        started = _started(self.pid)
        if started is None:
            return False
        return started == self.started or _UNKNOWN in (started, self.started)


def mark_in(text: str) -> Mark | None:
    """The mark that a file name holds, if there is one."""
    found = re.search(r"([0-9a-f]{8})-([0-9a-f]+)-(\d+)-(\d+)-(\d+)", text)
    if found is None:
        return None
    host, boot, space, pid, started = found.groups()
    return Mark(host, boot, space, int(pid), started)


def own_mark() -> Mark:
    """This process's mark."""
    return _mark_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _mark_of(pid: int) -> Mark:
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    boot, space = _UNKNOWN, _UNKNOWN
    with contextlib.suppress(OSError):
        boot = _BOOT.read_text().strip().split("-")[0]
    with contextlib.suppress(OSError):
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    return Mark(host, boot, space, pid, _started(pid) or _UNKNOWN)


def _started(pid: int) -> str | None:
    """When a process started, in ticks; None when there is none or it has ended, "0" where unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None if Path("/proc/self/stat").exists() or not _answers(pid) else _UNKNOWN
    fields = stat.rpartition(")")[2].split()  # the name in parentheses may hold anything
    return None if fields[0] in "ZX" else fields[19]


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True
