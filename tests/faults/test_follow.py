# SPDX-License-Identifier: Apache-2.0
"""``show --follow`` beside a run of another process: to the run's end, to its death, to Ctrl-C, on a terminal
and into a pipe."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from faulty_family import NAME
from tuning import Tuning

pytestmark = [pytest.mark.build, pytest.mark.timeout(600)]

_CODE = "from coldforge.tuner.cli import main; main()"
_FOLLOW = [sys.executable, "-c", _CODE, "show", NAME, "--follow"]


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    return Tuning(tmp_path_factory.mktemp("follow"), 240)


@contextlib.contextmanager
def _run(tuning: Tuning, trials: int) -> Iterator[subprocess.Popen[str]]:
    """A tuning run that has stored something that was not there before."""
    before = len(tuning.rows())
    run = tuning.start("--trials", str(trials))
    try:
        while len(tuning.rows()) == before:
            assert run.poll() is None, run.communicate()[1][-2000:]
            time.sleep(0.02)
        yield run
    finally:
        run.kill()
        run.communicate()
        tuning.kill_all()


def _looker(tuning: Tuning) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(_FOLLOW, env=tuning.environment, stdout=pipe, stderr=pipe, text=True)


def _terminal(tuning: Tuning) -> tuple[subprocess.Popen[bytes], int]:
    """The same on a terminal, and what reads its screen."""
    screen, terminal = pty.openpty()
    environment = {**tuning.environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
    process = subprocess.Popen(_FOLLOW, env=environment, stdout=terminal, stderr=subprocess.PIPE)
    os.close(terminal)
    return process, screen


def _finished(line: str) -> int:
    found = re.search(r": (\d+) configs", line)
    assert found, line
    return int(found[1])


def test_it_ends_with_the_run(tuning: Tuning) -> None:
    with _run(tuning, 60) as run:
        looker, (terminal, screen) = _looker(tuning), _terminal(tuning)
        drawn = b""
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while part := os.read(screen, 65536):
                drawn += part
        os.close(screen)
        assert (terminal.communicate(timeout=60)[1], terminal.returncode) == (b"", 0)
        out, err = looker.communicate(timeout=300)
        assert (looker.returncode, err) == (0, "")
        tuning.finish(run)
    lines = out.splitlines()
    counts = [_finished(line) for line in lines]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == 60
    assert lines[-1].endswith("finals held")
    assert not any("finals held" in line for line in lines[:-1])
    assert "\x1b" not in out
    assert b"\x1b[1A" in drawn  # lines are drawn over
    assert b"\x1b[?25h" in drawn  # the cursor is back
    assert b"60 ok" in drawn


def test_it_ends_soon_after_a_run_that_was_killed(tuning: Tuning) -> None:
    with _run(tuning, 150) as run:
        looker = _looker(tuning)
        assert looker.stdout is not None
        first = looker.stdout.readline()
        os.kill(run.pid, signal.SIGKILL)
        out, err = looker.communicate(timeout=120)
    assert _finished(first) > 60
    assert looker.returncode == 0
    assert "finals held" not in out
    assert err == "no run works on it any more, and its finals are not held\n"


def test_interrupts_and_closed_pipes_end_it(tuning: Tuning) -> None:
    with _run(tuning, 240):  # whatever the run before came to, some are left
        looker, closed = _looker(tuning), _looker(tuning)
        for process in (looker, closed):
            assert process.stdout is not None
            assert NAME in process.stdout.readline()
        assert closed.stdout is not None
        closed.stdout.close()
        looker.send_signal(signal.SIGINT)
        _, err = looker.communicate(timeout=60)
        assert (looker.returncode, err.strip()) == (1, "coldforge: stopped")
        assert closed.stderr is not None
        told = closed.stderr.read()
        assert closed.wait(timeout=300) == 1
        assert "Traceback" not in told
