# SPDX-License-Identifier: Apache-2.0
"""Two tuners at once, on one study and on one cache."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from faulty_family import BEST
from optuna.trial import TrialState
from tuning import Tuning

# Long on a machine that is busy with other things.
pytestmark = [pytest.mark.build, pytest.mark.timeout(900)]

GOOD = 12


def test_on_one_study(tmp_path: Path) -> None:
    tuning = Tuning(tmp_path, GOOD, COLDFORGE_JOBS="1")
    runs = [tuning.start("--sampler", "exhaustive") for _ in range(2)]
    ends = [run.communicate(timeout=600) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], ends
    assert not [err for _, err in ends if "Traceback" in err]
    (study,) = tuning.studies()
    trials = study._study.get_trials(deepcopy=False)
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    times = Counter(trial.params["STEP"] for trial in trials)
    assert sorted(times) == list(range(GOOD))
    # What both began at one moment may be there twice; the rest is shared.
    assert len(trials) <= GOOD + 2, times
    assert study.winner is not None
    assert study.winner["winner"]["config"] == {"STEP": BEST, "FAULT": "none"}
    again = tuning.run()
    assert (again["finished"], again["added"], again["outcomes"]["ok"]) == (GOOD, 0, len(trials))
    assert not tuning.damaged()
    assert not list((tuning.home / "attempts").glob("*"))


def test_on_one_cache(tmp_path: Path) -> None:
    tuning = Tuning(tmp_path, GOOD)
    # The number of rows is no part of the source: both want the same binaries.
    runs = [tuning.start("--shape", f"rows={rows}") for rows in (8, 16)]
    ends = [run.communicate(timeout=600) for run in runs]
    assert [json.loads(out)["outcomes"] for out, _ in ends] == 2 * [{"ok": GOOD}], ends
    assert len(tuning.studies()) == 2
    assert len(list((tuning.home / "cache").glob("??/*"))) == GOOD
    assert not tuning.damaged()
