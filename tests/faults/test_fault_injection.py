# SPDX-License-Identifier: Apache-2.0
"""Eight planted faults in a run of two hundred configs, on this CPU: none ends the run, each is told by its
name and costs no more than its time limit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from coldforge.tuner.study import result_of
from faulty_family import BEST, planted
from optuna.trial import FrozenTrial, TrialState
from tuning import Tuning

# Long on a machine that is busy with other things.
pytestmark = [pytest.mark.build, pytest.mark.timeout(900)]

GOOD = 192
# The compilers' limit holds for the start of a compiling process too.
COMPILE_LIMIT_S, TRIAL_LIMIT_S, SPARE_S = 10.0, 4.0, 5.0
# Fault -> outcome, and what the reason names.
CAUSES = {
    "template": ("compile_error", r"ladder\.cpp\.jinja: integer division or modulo by zero"),
    "compiler": ("compile_error", r"error: #error a planted fault"),
    "endless": ("compile_error", r"the compiler was silent for 10 s and was killed"),
    "resources": ("resource_limit", r"memory"),
    "wrong": ("wrong_result", r"outputs|off by|wrong"),
    "illegal": ("crash", r"the worker died of SIGSEGV"),
    "loop": ("timeout", r"no answer within 4"),
    "segfault": ("crash", r"the worker died of SIGABRT"),
}


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    limits = {
        "COLDFORGE_COMPILE_LIMIT_S": f"{COMPILE_LIMIT_S:g}",
        "COLDFORGE_TRIAL_LIMIT_S": f"{TRIAL_LIMIT_S:g}",
    }
    return Tuning(tmp_path_factory.mktemp("faults"), GOOD, faults=True, **limits)


@pytest.fixture(scope="module")
def run(tuning: Tuning) -> dict[str, Any]:
    return tuning.run(timeout_s=800)


@pytest.fixture(scope="module")
def trials(tuning: Tuning, run: dict[str, Any]) -> dict[tuple[int, str], FrozenTrial]:
    """(STEP, FAULT) -> its trial."""
    return tuning.trials()


def test_every_good_config_is_measured(
    run: dict[str, Any], trials: dict[tuple[int, str], FrozenTrial]
) -> None:
    assert run["status"] == "ok"
    assert run["outcomes"]["ok"] == GOOD
    assert run["finished"] == GOOD + len(CAUSES) == len(trials)
    assert run["best"]["config"] == {"STEP": BEST, "FAULT": "none"}
    assert all(trials[step, "none"].state is TrialState.COMPLETE for step in range(GOOD))


@pytest.mark.parametrize("fault", CAUSES)
def test_each_fault_is_told_by_its_cause(trials: dict[tuple[int, str], FrozenTrial], fault: str) -> None:
    outcome, reason = CAUSES[fault]
    result = result_of(trials[planted(GOOD)[fault], fault])
    assert (result.outcome.value, bool(re.search(reason, result.reason))) == (outcome, True), result.reason
    assert "\n" not in result.reason


def test_no_fault_costs_more_than_its_limit(tuning: Tuning, run: dict[str, Any]) -> None:
    assert tuning.longest_s() <= TRIAL_LIMIT_S + SPARE_S


def test_nothing_is_left(tuning: Tuning, run: dict[str, Any]) -> None:
    assert not tuning.damaged()
    assert not list(tuning.scratch.iterdir())
    assert not list((tuning.home / "attempts").glob("*"))
    assert Path(tuning.family).exists()
