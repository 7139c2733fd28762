# SPDX-License-Identifier: Apache-2.0
"""Four workers in processes of their own on one study of a real PostgreSQL server: every config is tried
once, while a worker is killed and started again, and then the server."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alike_family import ALIKE, BEST, NAME, write_alike
from coldforge.tuner.storage import open_storage
from coldforge.tuner.study import Study, list_studies
from optuna.trial import FrozenTrial, TrialState
from postgres import SECRET, SECRET_USER, Server
from tuning import Tuning

# Long on a machine that is busy with other things.
pytestmark = [pytest.mark.build, pytest.mark.timeout(900)]

TRIALS = 200
_COUNT = "SELECT count(*) FROM trials WHERE state = 'COMPLETE'"
_ASKED = "SELECT count(*) FROM study_user_attributes WHERE key = 'request'"
_WORKERS = """SELECT count(DISTINCT value_json) FROM trials JOIN trial_system_attributes USING (trial_id)
WHERE key = 'coldforge:worker' AND state = 'COMPLETE'"""
_ROWS = "SELECT trial_id, state, value FROM trials JOIN trial_values USING (trial_id) ORDER BY trial_id"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.stop()


class Many(Tuning):
    """Tuners and workers on the server. One of them gives its password."""

    def __init__(self, folder: Path, server: Server) -> None:
        super().__init__(folder, 8, COLDFORGE_GRACE_S="4", COLDFORGE_JOBS="1")
        self.server = server
        self.url = server.url()
        self.tune = ["tune", NAME, "--target", "cpu", "--templates", str(write_alike(folder / "alike"))]
        self.tune += ["--sampler", "random"]

    def worker(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start(*arguments, "--storage", self.url, command=["worker"])

    def wait_until(self, question: str, count: int, runs: list[subprocess.Popen[str]]) -> None:
        """Waits until the database answers so many, while none of these fails."""
        end = time.monotonic() + 300
        while int(self.server.sql(question)) < count:
            for run in runs:
                assert run.poll() in (None, 0), run.communicate()
            assert time.monotonic() < end, "the study does not go on"
            time.sleep(0.05)

    def study(self) -> Study:
        (study,) = list_studies(open_storage(self.url, self.home, create=False))
        return study


def _ended(run: subprocess.Popen[str]) -> str:
    """What it said, once it has ended well."""
    out, err = run.communicate(timeout=600)
    assert run.returncode == 0, err[-3000:]
    assert "Traceback" not in err, err[-3000:]
    return out + err


@pytest.fixture(scope="module")
def many(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Many]:
    tuning = Many(tmp_path_factory.mktemp("many"), server)
    yield tuning
    tuning.kill_all()


@pytest.fixture(scope="module")
def end(many: Many) -> dict[str, Any]:
    """What there is after one worker and then the server were killed and started again."""
    server = many.server
    open_storage(many.url, many.home)  # the tables
    tuner = many.start("--storage", many.url, "--trials", str(TRIALS))
    many.wait_until(_ASKED, 1, [tuner])
    careful = dict(many.environment, PGPASSWORD=SECRET)
    plain, many.environment = many.environment, careful
    url, many.url = many.url, server.url(SECRET_USER)
    workers = [many.worker()]
    many.environment, many.url = plain, url
    workers += [many.worker(), many.worker()]
    many.wait_until(_WORKERS, 4, [tuner, *workers])
    victim = workers.pop(1)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    workers.append(many.worker())
    many.wait_until(_COUNT, int(server.sql(_COUNT)) + 30, [tuner, *workers])
    server.kill()
    time.sleep(1.0)
    server.start()
    before = server.sql(_ROWS).splitlines()
    said = [_ended(run) for run in (tuner, *workers)]
    return {"before": before, "said": said, "after": server.sql(_ROWS).splitlines()}


def _trials(many: Many) -> list[FrozenTrial]:
    return many.study().of_optuna.get_trials(deepcopy=False)


def test_each_of_200_configs_is_tried_once(many: Many, end: dict[str, Any]) -> None:
    trials = _trials(many)
    states = Counter(trial.state for trial in trials)
    assert states[TrialState.COMPLETE] == TRIALS, states
    assert states[TrialState.PRUNED] == states[TrialState.RUNNING] == states[TrialState.WAITING] == 0, states
    done = [trial.params["STEP"] for trial in trials if trial.state is TrialState.COMPLETE]
    assert len(set(done)) == TRIALS
    assert [trial.number for trial in trials] == list(range(len(trials)))


def test_what_the_killed_worker_was_at_was_tried_again(many: Many, end: dict[str, Any]) -> None:
    trials = _trials(many)
    failed = [trial for trial in trials if trial.state is TrialState.FAIL]
    assert failed, "the worker was at nothing when it was killed"
    done = {trial.params["STEP"]: trial for trial in trials if trial.state is TrialState.COMPLETE}
    for trial in failed:
        again = done[trial.params["STEP"]]
        assert trial.number in again.system_attrs["retry_history"]


def test_nothing_finished_is_lost(end: dict[str, Any]) -> None:
    assert len(end["before"]) >= 30
    assert set(end["before"]) <= set(end["after"])


def test_all_of_them_worked(many: Many, end: dict[str, Any]) -> None:
    marks = Counter(trial.system_attrs["coldforge:worker"] for trial in many.study().trials())
    assert len(marks) in (4, 5), marks  # the last to come may have come too late


def test_the_tuner_held_the_finals(many: Many, end: dict[str, Any]) -> None:
    study = many.study()
    assert study.winner is not None
    assert study.winner["winner"]["config"]["STEP"] // ALIKE == BEST
    assert study.winner_is_current(TRIALS)


def test_the_wait_for_the_server_was_told(end: dict[str, Any]) -> None:
    assert any("does not answer; waiting for it" in said for said in end["said"])
    assert any("answers again" in said for said in end["said"])


def test_the_password_is_nowhere(many: Many, end: dict[str, Any]) -> None:
    assert SECRET not in "".join(end["said"])
    assert SECRET not in many.server.sql("SELECT * FROM study_user_attributes")
    assert SECRET not in many.server.sql("SELECT * FROM trial_user_attributes")
    for path in (path for path in many.home.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


def test_the_same_command_again_finds_nothing_to_do(many: Many, end: dict[str, Any]) -> None:
    again = many.run("--storage", many.url, "--trials", str(TRIALS))
    assert (again["status"], again["added"], again["finished"]) == ("ok", 0, TRIALS)
    worker = many.finish(many.worker("--study", NAME))
    assert (worker["status"], worker["added"], worker["finished"]) == ("ok", 0, TRIALS)
    shown = many.finish(many.start("--storage", many.url, command=["show", NAME]))
    assert (shown["finished"], shown["finals_held"]) == (TRIALS, True)
