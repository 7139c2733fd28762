# SPDX-License-Identifier: Apache-2.0
"""Runs of ``coldforge tune`` on the family of `faulty_family`, as a user has them: processes, home, study."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coldforge.codegen.compile import Cache
from coldforge.tuner.storage import open_storage
from coldforge.tuner.study import Study, list_studies
from faulty_family import NAME, write_faulty
from optuna.trial import FrozenTrial, TrialState

_MARK = "TUNING_TEST_MARK"
# Root writes into read-only folders: an exec without these two capabilities takes that away.
_MAIN = """
import ctypes, os, sys
for override in (1, 2):
    ctypes.CDLL(None).prctl(24, override, 0, 0, 0)
code = "from coldforge.tuner.cli import main; main()"
os.execv(sys.executable, [sys.executable, "-c", code, *sys.argv[1:]])
"""


class Tuning:
    """A user with a home of their own, and the processes that they started.

    Args:
        folder: an empty folder.
        good, faults, target: see `write_faulty`.
        environment: variables over this process's own.
    """

    def __init__(
        self, folder: Path, good: int, *, faults: bool = False, target: str = "cpu", **environment: str
    ) -> None:
        self.home, self.scratch = folder / "home", folder / "scratch"
        self.family = write_faulty(folder / "work", target, good, faults=faults)
        self.scratch.mkdir()
        self._mark = uuid.uuid4().hex
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("COLDFORGE_")},
            "COLDFORGE_HOME": str(self.home),
            "COLDFORGE_JOBS": "2",
            "TMPDIR": str(self.scratch),
            _MARK: self._mark,
            **environment,
        }
        self.tune = ["tune", NAME, "--target", target, "--sampler", "exhaustive"]
        self.tune += ["--templates", str(self.family)]

    def start(self, *arguments: str, command: Sequence[str] | None = None) -> subprocess.Popen[str]:
        """Starts ``coldforge`` in a process group of its own, as a user who may not write everywhere.

        Args:
            arguments: after those of the command.
            command: the tuning one when not given.
        """
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-c", _MAIN, *(self.tune if command is None else command), *arguments, "--json"],
            env=self.environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, code: int = 0, timeout_s: float = 600.0) -> dict[str, Any]:
        """Runs the command to its end; its document."""
        return self.finish(self.start(*arguments), code, timeout_s)

    def finish(
        self, process: subprocess.Popen[str], code: int = 0, timeout_s: float = 600.0
    ) -> dict[str, Any]:
        """Waits for the end of a run; its document, or ``{"line": ...}`` where it printed none."""
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            self.kill_all()
        assert process.returncode == code, err[-3000:]
        assert "Traceback" not in err, err[-3000:]
        if out:
            return json.loads(out)
        line = err.strip().splitlines()[-1]
        assert line.startswith("coldforge: "), err[-3000:]
        return {"line": line}

    # --- what is stored ---

    def studies(self) -> list[Study]:
        """The studies, the newest last."""
        return list_studies(open_storage(None, self.home, create=False))

    def trials(self) -> dict[tuple[int, str], FrozenTrial]:
        """(STEP, FAULT) -> its trial, of the one study.

        Raises:
            AssertionError: a config has two, or one is not finished.
        """
        (study,) = self.studies()
        found = study._study.get_trials(deepcopy=False)
        assert {trial.state for trial in found} <= {TrialState.COMPLETE, TrialState.PRUNED}
        by_config = {(trial.params["STEP"], trial.params["FAULT"]): trial for trial in found}
        assert len(by_config) == len(found), "a config was tried twice"
        return by_config

    def longest_s(self) -> float:
        """The longest time between the ends of two trials, once the first was measured."""
        found = list(self.trials().values())
        began = min(t.datetime_complete for t in found if t.datetime_complete and t.value is not None)
        ends = sorted(
            t.datetime_complete for t in found if t.datetime_complete and t.datetime_complete >= began
        )
        return max((after - before).total_seconds() for before, after in itertools.pairwise(ends))

    def rows(self) -> dict[int, tuple[str, float | None]]:
        """Trial -> state and value, of all studies; read beside running tuners."""
        query = "select t.trial_id, t.state, v.value from trials t left join trial_values v using (trial_id)"
        try:
            with contextlib.closing(sqlite3.connect(self.home / "studies.db", timeout=20)) as database:
                return {trial: (state, value) for trial, state, value in database.execute(query)}
        except sqlite3.OperationalError:  # no database or no tables yet
            return {}

    def damaged(self) -> list[Path]:
        """Cache entries that are not whole, and what is left half built anywhere."""
        cache = Cache(self.home / "cache")
        entries = [path for path in cache.root.glob("??/*") if not path.name.startswith(".")]
        assert entries
        found = [path for path in entries if cache.load(path.name) is None]
        return found + [path for path in self.home.rglob(".*") if path.name.endswith(".partial")]

    # --- processes ---

    def processes(self) -> dict[int, str]:
        """Process id -> what it is: "parent", "child" (has PyTorch), "compiler", or "helper"."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = int(entry.name)
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX" and f"{_MARK}={self._mark}".encode() in (entry / "environ").read_bytes():
                    found[pid] = _kind(entry)
        return found

    def wait_for(self, *kinds: str, timeout_s: float = 60.0) -> list[int]:
        """Waits for processes of these kinds, and gives their ids."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            found = [pid for pid, kind in self.processes().items() if kind in kinds]
            if found:
                return found
            time.sleep(0.005)
        raise AssertionError(f"no {' or '.join(kinds)} process within {timeout_s:g} s")

    def left_over(self, within_s: float) -> dict[int, str]:
        """What still runs after so long; ends as soon as nothing does."""
        end = time.monotonic() + within_s
        while (found := self.processes()) and time.monotonic() < end:
            time.sleep(0.02)
        return found

    def kill_all(self) -> None:
        """Ends whatever is left, so that a test that fails leaves nothing running."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _kind(entry: Path) -> str:
    words = (entry / "cmdline").read_bytes().split(b"\0")
    name = (entry / "comm").read_text().strip()
    if b"tune" in words:
        return "parent"
    if name in ("g++", "cc1plus", "as", "ld", "collect2", "x86_64-linux-gn"):
        return "compiler"
    if b"spawn_main" not in b" ".join(words):
        return "helper"
    return "child" if b"libtorch_cpu" in (entry / "maps").read_bytes() else "helper"
