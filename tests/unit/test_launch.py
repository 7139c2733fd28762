# SPDX-License-Identifier: Apache-2.0
"""Launch declarations: workspaces that are zeroed, and second kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Resources
from coldforge.codegen.errors import DeclarationError
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import KernelSource
from coldforge.codegen.space import Launch, Space
from coldforge.codegen.space_file import load_space
from coldforge.codegen.target import cpu_target_for, cuda_target
from coldforge.tuner.check.device_code import instantiation_digest
from coldforge.tuner.plan import space_digest
from coldforge.tuner.request import trial_request

BASE = {
    "cuda": {"grid": "N", "block": "TILE * 32", "shared_bytes": "0"},
    "cpu": {"units": "N", "grain": "1"},
}
TARGETS = {"cuda": cuda_target("sm_90"), "cpu": cpu_target_for("x86-64-v3")}
PROBLEM = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small")


def declared(folder: Path, kind: str, **launch: str) -> Space:
    document = {
        "template": "toy",
        "target": kind,
        "archs": [TARGETS[kind].arch],
        "file": "toy.jinja",
        "parameters": {"TILE": {"values": [1, 2], "help": "of anything"}},
        "default": {"TILE": 2},
        "launch": {**BASE[kind], **launch},
    }
    (folder / "toy.jinja").write_text("")
    path = folder / f"space.toy.{kind}.yaml"
    path.write_text(yaml.safe_dump(document))
    return load_space(path, "conv2d")


@pytest.mark.parametrize(
    ("kind", "launch", "message"),
    [
        ("cuda", {"zeroed_bytes": "4"}, "launch: zeroed_bytes needs workspace_bytes beside it"),
        ("cpu", {"zeroed_bytes": "4"}, "launch: zeroed_bytes needs workspace_bytes beside it"),
        ("cuda", {"finish_grid": "1"}, "launch: finish_grid needs finish_block beside it"),
        ("cuda", {"finish_block": "32"}, "launch: finish_block needs finish_grid beside it"),
        ("cuda", {"finish_shared_bytes": "4"}, "launch: finish_shared_bytes needs finish_grid beside it"),
        ("cpu", {"finish_grain": "1"}, "launch: finish_grain needs finish_units beside it"),
        ("cpu", {"finish_grid": "1", "finish_block": "32"}, "unknown key 'finish_block'"),
        ("cuda", {"finish_units": "1"}, "unknown key 'finish_units'"),
    ],
)
def test_a_key_that_means_nothing(tmp_path: Path, kind: str, launch: dict[str, str], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        declared(tmp_path, kind, **launch)


def test_every_key_is_an_expression_of_run_time_sizes(tmp_path: Path) -> None:
    workspace = {"workspace_bytes": "N * TILE * 64", "zeroed_bytes": "N * 4"}
    second = {"finish_grid": "ceil_div(N, TILE)", "finish_block": "TILE * 64", "finish_shared_bytes": "N"}
    space = declared(tmp_path, "cuda", **workspace, **second)
    launch = space.launch(PROBLEM.with_dims(N=5), space.default, TARGETS["cuda"])
    assert launch == Launch(
        grid=5,
        block=64,
        workspace_bytes=640,
        zeroed_bytes=20,
        finish_grid=3,
        finish_block=128,
        finish_shared_bytes=5,
    )
    space = declared(tmp_path, "cpu", **workspace, finish_units="N - 1")
    launch = space.launch(PROBLEM.with_dims(N=1), space.default, TARGETS["cpu"])
    assert (launch.finish_units, launch.finish_grain, launch.workspace_bytes) == (0, 1, 128)


@pytest.mark.parametrize("zeroed", ["N * 8 - 7", "-1"])
def test_no_more_is_zeroed_than_there_is(tmp_path: Path, zeroed: str) -> None:
    space = declared(tmp_path, "cpu", workspace_bytes="N * 4", zeroed_bytes=zeroed)
    artifact = Artifact(Path("x.so"), "0", "x", Resources(), "0", "g++", (), 0.0)
    request = trial_request(space, PROBLEM, space.default, artifact)
    for problem in (PROBLEM.with_dims(N=2), PROBLEM.with_dims(N=3)):
        with pytest.raises(DeclarationError, match="it must be from 0 to workspace_bytes, which is"):
            space.launch(problem, space.default, TARGETS["cpu"])
        with pytest.raises(DeclarationError, match="zeroed_bytes is"):
            request.launch_at(problem, TARGETS["cpu"])
    fits = replace(request, launch={**request.launch, "zeroed_bytes": "N * 4"})
    assert fits.launch_at(PROBLEM.with_dims(N=3), TARGETS["cpu"]).zeroed_bytes == 12


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_work_is_no_part_of_a_launch(tmp_path: Path, kind: str) -> None:
    """It chooses among frozen kernels: a variant is run, and known, without it."""
    plain = declared(tmp_path, kind)
    spaces = [declared(tmp_path, kind, work=text) for text in ("N", "N * H")]
    artifact = Artifact(Path("x"), "0", "x", Resources(), "0", "compiler", (), 0.0)
    source = KernelSource("int f();", "f", "0", "f", "cuda")
    for space in spaces:
        assert "work" in space.launch_exprs
        request = trial_request(space, PROBLEM, space.default, artifact)
        assert request.launch_at(PROBLEM, TARGETS[kind]) == space.launch(
            PROBLEM, space.default, TARGETS[kind]
        )
        assert space_digest(space) == space_digest(plain)
        assert instantiation_digest(space, source) == instantiation_digest(plain, source)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_every_launch_of_ours_can_be_asked_for(kind: str) -> None:
    artifact = Artifact(Path("x"), "0", "x", Resources(), "0", "compiler", (), 0.0)
    for operator in catalogue().operators.values():
        problem = make_problem(operator, next(iter(operator.workloads)))
        for space in catalogue().spaces(operator, kind):
            if (config := space.default_for(problem, TARGETS[kind])) is not None:
                request = trial_request(space, problem, config, artifact)
                launch = request.launch_at(problem, TARGETS[kind])
                assert launch == space.launch(problem, config, TARGETS[kind])


def test_a_launch_has_no_workspace_unless_it_says_so() -> None:
    assert Launch(grid=1, block=32).to_dict() == {
        "grid": 1,
        "block": 32,
        "shared_bytes": 0,
        "units": 0,
        "grain": 1,
        "workspace_bytes": 0,
        "zeroed_bytes": 0,
        "finish_grid": 0,
        "finish_block": 0,
        "finish_shared_bytes": 0,
        "finish_units": 0,
        "finish_grain": 1,
    }
