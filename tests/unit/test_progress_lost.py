# SPDX-License-Identifier: Apache-2.0
"""Progress that nobody reads any more."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from coldforge.tuner.progress import PlainProgress, Snapshot, open_progress
from rich.console import Console

_LINES = """
from coldforge.tuner.progress import PlainProgress, Snapshot, open_progress
progress = open_progress("op")
assert isinstance(progress, PlainProgress)
progress.update(Snapshot("timing", 1, 9))
progress.update(Snapshot("finals", 9, 9))
progress.close()
"""


def test_a_closed_pipe_silences_the_lines() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        status = subprocess.run([sys.executable, "-c", _LINES], stderr=write, check=False).returncode
    finally:
        os.close(write)
    assert status == 0


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "full"), ValueError("closed file")])
def test_after_one_failure_no_line_is_written(error: Exception) -> None:
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        raise error

    progress = PlainProgress("op", write)
    progress.update(Snapshot("timing", 1, 9))
    progress.update(Snapshot("finals", 9, 9))
    assert len(lines) == 1


def test_a_terminal_that_is_gone_ends_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    progress = open_progress("op", Console(file=Gone(), force_terminal=True, width=100))
    progress.update(Snapshot("timing", 1, 9))
    progress.update(Snapshot("timing", 2, 9))
    progress.close()
