# SPDX-License-Identifier: Apache-2.0
"""kill -9 at twenty points of runs on one study: of the tuner, of the process that verifies and times, of the
compilers. Nothing measured is lost, nothing is measured twice, nothing is left, and the best is found."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from coldforge.tuner.study import result_of
from faulty_family import BEST
from optuna.trial import TrialState
from tuning import Tuning

# Long on a machine that is busy with other things.
pytestmark = [pytest.mark.build, pytest.mark.timeout(900)]

GOOD = 60
KILLS = 20
SEED = 5
GONE_WITHIN_S = 5.0
Rows = dict[int, tuple[str, float | None]]


@dataclass
class Killer:
    """Runs the same command again and again, and kills parts of it.

    Attributes:
        kills: what was killed, in order.
        lost: trials that were stored before a kill, and that a later look did not find as they were.
        left: processes that outlived the tuner.
    """

    tuning: Tuning
    draws: random.Random
    kills: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    left: list[dict[int, str]] = field(default_factory=list)
    seen: Rows = field(default_factory=dict)

    def look(self) -> Rows:
        """The stored trials; notes those that are not what they were."""
        rows = self.tuning.rows()
        self.lost += [number for number, row in self.seen.items() if rows.get(number) != row]
        self.seen = rows
        return rows

    def kill_parent(self, run: subprocess.Popen[str]) -> None:
        self.look()
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
        self.kills.append("parent")
        if left := self.tuning.left_over(GONE_WITHIN_S):
            self.left.append(left)
            self.tuning.kill_all()
        self.look()

    def kill_one(self, kind: str) -> None:
        """Kills a process of the running tuner."""
        victims = self.tuning.wait_for(kind)
        self.look()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.draws.choice(victims), signal.SIGKILL)
        self.kills.append(kind)

    def progress(self, run: subprocess.Popen[str], trials: int) -> None:
        """Waits until the run has stored so many trials more, and a moment longer."""
        wanted, end = len(self.tuning.rows()) + trials, time.monotonic() + 200
        while len(self.tuning.rows()) < wanted:
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < end, "the run does not go on"
            time.sleep(0.02)
        time.sleep(self.draws.uniform(0.0, 0.3))


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Killer:
    """After all the kills, and a last run that was left in peace."""
    killer = Killer(Tuning(tmp_path_factory.mktemp("kills"), GOOD), random.Random(SEED))
    try:
        while len(killer.kills) < KILLS:
            run = killer.tuning.start()
            if len(killer.kills) % 4 == 0:  # while it starts
                time.sleep(killer.draws.uniform(0.2, 2.0))
            else:
                for kind in killer.draws.sample(("child", "compiler"), 2):
                    # So far from the last kill that another config is in flight.
                    killer.progress(run, killer.draws.randint(2, 3))
                    killer.kill_one(kind)
                killer.progress(run, killer.draws.randint(2, 3))
            killer.kill_parent(run)
    finally:
        killer.tuning.kill_all()
    return killer


@pytest.fixture(scope="module")
def last(killer: Killer) -> dict[str, object]:
    assert len(killer.seen) < GOOD, "the study was finished before the last kill"
    return killer.tuning.run()


def test_twenty_kills_of_every_kind(killer: Killer) -> None:
    assert len(killer.kills) >= KILLS
    assert {kind: killer.kills.count(kind) >= 4 for kind in ("parent", "child", "compiler")} == {
        "parent": True,
        "child": True,
        "compiler": True,
    }, killer.kills


def test_no_finished_measurement_is_lost(killer: Killer, last: dict[str, object]) -> None:
    killer.look()
    assert killer.lost == []


def test_none_is_measured_again_and_none_is_missing(killer: Killer, last: dict[str, object]) -> None:
    (study,) = killer.tuning.studies()
    trials = study._study.get_trials(deepcopy=False)
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}, [
        result_of(trial).reason for trial in trials if trial.state is not TrialState.COMPLETE
    ]
    assert sorted(trial.params["STEP"] for trial in trials) == list(range(GOOD))
    assert last["finished"] == GOOD
    assert last["outcomes"] == {"ok": GOOD}


def test_the_best_is_that_of_an_undisturbed_run(last: dict[str, object]) -> None:
    assert isinstance(last["best"], dict)
    assert last["best"]["config"] == {"STEP": BEST, "FAULT": "none"}
    assert last["best"]["from"] == "finals"


def test_no_process_outlives_its_tuner(killer: Killer, last: dict[str, object]) -> None:
    assert killer.left == []
    assert killer.tuning.left_over(GONE_WITHIN_S) == {}


def test_no_file_is_left_half_made(killer: Killer, last: dict[str, object]) -> None:
    again = killer.tuning.run()  # the start of a run removes what concerned those that died
    assert (again["added"], again["best"]) == (0, last["best"])
    assert not killer.tuning.damaged()
    assert not [path for path in (killer.tuning.home / "attempts").rglob("*") if path.is_file()]
    assert _names(killer.tuning.scratch) == []


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
