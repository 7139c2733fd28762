# SPDX-License-Identifier: Apache-2.0
"""Starting helper processes that a Ctrl-C leaves alone from their first moment."""

from __future__ import annotations

import signal
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess


def start_shielded(process: BaseProcess) -> None:
    """Starts a spawned process with SIGINT blocked, in place of ``process.start()``.

    A terminal's Ctrl-C reaches the whole process group. Code of the child can ignore it only once it runs;
    one that came while its interpreter starts was seen to print a traceback of the interpreter's own. The
    mask survives the exec; in this process it is put back, and an interrupt that came meanwhile arrives then.
    """
    resource_tracker.ensure_running()  # its own start would unblock the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
