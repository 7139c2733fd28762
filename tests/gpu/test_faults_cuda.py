# SPDX-License-Identifier: Apache-2.0
"""Eight real faults in a run of five hundred configs on a GPU: none ends the run, each is told by its name
and costs no more than its time limit. What needs no GPU of it runs everywhere."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.errors import CompileError, DeclarationError
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import render
from coldforge.codegen.target import cuda_target
from coldforge.tuner.study import result_of
from faulty_family import BEST, FAULTS, NAME, planted, write_faulty
from optuna.trial import FrozenTrial, TrialState
from tuning import Tuning

GOOD = 492
# The compilers' limit holds for the start of a compiling process too.
COMPILE_LIMIT_S, TRIAL_LIMIT_S, SPARE_S = 15.0, 4.0, 5.0
WALL_S = 150.0
# Fault -> outcome, and what the reason names.
CAUSES = {
    "template": ("compile_error", r"ladder\.cu\.jinja: integer division or modulo by zero"),
    "compiler": ("compile_error", r"a planted fault"),
    "endless": ("compile_error", r"the compiler was silent for 15 s and was killed"),
    "resources": ("resource_limit", r"CUDA_ERROR_|shared memory"),
    "wrong": ("wrong_result", r"outputs|off by|wrong"),
    "illegal": ("crash", r"CUDA_ERROR_ILLEGAL_ADDRESS"),
    "loop": ("timeout", r"no answer within 4"),
    "segfault": ("crash", r"the worker died of SIGSEGV"),
}


@pytest.mark.build
def test_what_is_planted(tmp_path: Path) -> None:
    declared, target = catalogue(write_faulty(tmp_path, "cuda", 20)), cuda_target("sm_90")
    operator = declared.operator(NAME)
    space, problem = declared.space(operator, target), make_problem(operator, "small")
    configs = space.feasible(problem, target)
    assert sum(config["FAULT"] == "none" for config in configs) == 20
    assert [c["FAULT"] for c in configs if c["FAULT"] != "none"] == list(FAULTS)
    cache, codes = Cache(tmp_path / "cache"), set()
    for fault in ("none", *FAULTS):
        config = {"STEP": planted(20).get(fault, 0), "FAULT": fault}
        if fault == "template":
            with pytest.raises(DeclarationError, match=CAUSES[fault][1]):
                render(space, problem, config, target)
            continue
        source = render(space, problem, config, target)
        if fault == "compiler":
            with pytest.raises(CompileError, match=CAUSES[fault][1]):
                compile_source(source, target, cache)
        elif fault != "endless":  # that one would do what its name says
            codes.add(compile_source(source, target, cache).code_digest)
    # A config with the machine code of another is not run: none with a fault has that of its good twin.
    for step in planted(20).values():
        source = render(space, problem, {"STEP": step, "FAULT": "none"}, target)
        codes.add(compile_source(source, target, cache).code_digest)
    assert len(codes) == (len(FAULTS) - 3) + 1 + len(FAULTS)
    launch = space.launch(problem, {"STEP": planted(20)["resources"], "FAULT": "resources"}, target)
    assert launch.shared_bytes <= target.attributes["max_shared_bytes"] < launch.shared_bytes + 4 * 8192


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    environment = {
        "COLDFORGE_JOBS": str(len(os.sched_getaffinity(0))),
        "COLDFORGE_COMPILE_LIMIT_S": f"{COMPILE_LIMIT_S:g}",
        "COLDFORGE_TRIAL_LIMIT_S": f"{TRIAL_LIMIT_S:g}",
    }
    return Tuning(tmp_path_factory.mktemp("faults"), GOOD, faults=True, target="cuda", **environment)


@pytest.fixture(scope="module")
def run(tuning: Tuning) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    began = time.monotonic()
    document = tuning.run("--trials", str(GOOD + len(CAUSES)), timeout_s=280)
    return {**document, "wall_s": time.monotonic() - began}


@pytest.fixture(scope="module")
def trials(tuning: Tuning, run: dict[str, Any]) -> dict[tuple[int, str], FrozenTrial]:
    """(STEP, FAULT) -> its trial."""
    return tuning.trials()


@pytest.mark.gpu
def test_every_good_config_is_measured(
    run: dict[str, Any], trials: dict[tuple[int, str], FrozenTrial]
) -> None:
    assert run["status"] == "ok"
    assert run["outcomes"]["ok"] == GOOD
    assert run["finished"] == GOOD + len(CAUSES) == len(trials)
    assert run["best"]["config"] == {"STEP": BEST, "FAULT": "none"}
    assert all(trials[step, "none"].state is TrialState.COMPLETE for step in range(GOOD))


@pytest.mark.gpu
@pytest.mark.parametrize("fault", CAUSES)
def test_each_fault_is_told_by_its_cause(trials: dict[tuple[int, str], FrozenTrial], fault: str) -> None:
    outcome, reason = CAUSES[fault]
    result = result_of(trials[planted(GOOD)[fault], fault])
    assert (result.outcome.value, bool(re.search(reason, result.reason))) == (outcome, True), result.reason
    assert "\n" not in result.reason


@pytest.mark.gpu
def test_no_fault_costs_more_than_its_limit(tuning: Tuning, run: dict[str, Any]) -> None:
    assert tuning.longest_s() <= TRIAL_LIMIT_S + SPARE_S
    assert run["wall_s"] <= WALL_S, f"{run['wall_s']:.0f} s for {run['finished']} configs"


@pytest.mark.gpu
def test_nothing_is_left(tuning: Tuning, run: dict[str, Any]) -> None:
    # The compiler that never returned was killed within its process; the next start clears up behind it.
    again = tuning.run("--trials", str(GOOD + len(CAUSES)), timeout_s=120)
    assert (again["added"], again["finished"]) == (0, run["finished"])
    assert not tuning.damaged()
    assert not list(tuning.scratch.iterdir())
    assert tuning.left_over(5.0) == {}
