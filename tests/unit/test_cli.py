# SPDX-License-Identifier: Apache-2.0
"""The command line: JSON on stdout, and one clear line with exit code 2 for every kind of bad input."""

from __future__ import annotations

import json

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import make_problem
from coldforge.tuner.check.instantiations import MOST_CONFIGS, founders
from coldforge.tuner.cli import COMMANDS, run

OP = "conv2d_divide_leaky_relu"


def test_list_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["operators"]}
    assert rows[OP]["family"] == "conv2d"
    assert {"seed", "small"} <= set(rows[OP]["workloads"])
    cuda = rows[OP]["targets"]["cuda"]
    assert "direct" in cuda["templates"]
    by_template = cuda["feasible_by_template"]
    assert set(by_template) == set(cuda["templates"])
    assert sum(by_template.values()) == cuda["feasible_configs"]
    assert by_template["direct"] >= 2000
    for founder in founders(catalogue()):  # whose configs are all executed
        for template, configs in rows[founder.name]["targets"]["cuda"]["feasible_by_template"].items():
            assert configs <= MOST_CONFIGS, (founder.name, template)
    assert rows[OP]["targets"]["cpu"]["feasible_configs"] >= 100


def test_list_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "template conv_transpose2d_mean/collapsed/cpu" in lines  # whole, so that it can be searched for
    said = " ".join(" ".join(lines).split())
    assert "OC_TILE 16, 64 output channels of a work unit" in said
    assert "at workload small (direct)" in said


def test_list_of_some_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "conv_transpose2d_mean_logsumexp"]) == 0
    shown = capsys.readouterr().out
    assert "STREAMS" in shown
    assert "conv2d/" not in shown
    assert "conv2d_relu" not in shown
    assert run(["list", "conv2d_relu", "conv2d_mish", "conv2d_relu", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["operators"]
    assert [row["name"] for row in rows] == ["conv2d_relu", "conv2d_mish"]
    cpu = rows[0]["targets"]["cpu"]
    assert cpu["help"]["direct"]["OC_TILE"] == "output channels of a work unit"
    assert set(cpu["help"]["direct"]) == set(cpu["parameters"]["direct"])


def test_list_says_what_a_shape_may_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["list", OP]) == 0
    shown = capsys.readouterr().out
    assert "single    N=1, C_in=8, H=128, W=128, C_out=64, kernel_size=3" in shown
    assert "fields of --shape: N, C_in, H, W" in shown
    assert "bias=0 leaves bias out" in " ".join(shown.split())
    assert run(["list", OP, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["operators"]
    operator = catalogue().operator(OP)
    assert list(row["workload_fields"]) == row["workloads"]
    assert row["workload_fields"]["unbiased"]["bias"] == 0
    for name, fields in row["workload_fields"].items():
        assert set(fields) <= set(row["shape_fields"])
        same, problem = make_problem(operator, "seed", fields), make_problem(operator, name)
        assert (same.dims, same.absent) == (problem.dims, problem.absent)


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_list_of_one_target(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", OP, "--target", kind]) == 0
    shown = capsys.readouterr().out
    other = {"cuda": "cpu", "cpu": "cuda"}[kind]
    assert f"template conv2d/direct/{kind}" in shown
    assert f"template conv2d/direct/{other}" not in shown
    assert run(["list", OP, "--target", kind, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["targets"]) == set(document["operators"][0]["targets"]) == {kind}


def test_render_prints_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", OP, "--set", "TILE_X=32", "--set", "OC_TILE=16"]) == 0
    text = capsys.readouterr().out
    assert "TILE_X=32" in text
    assert 'extern "C" __global__' in text
    assert run(["render", OP, "--target", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"]["kind"] == "cpu"
    assert document["digest"][:8] in document["name"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["render", "nope"], "unknown operator 'nope'"),
        (["render", OP, "--set", "TILE_Q=1"], "unknown parameter"),
        (["render", OP, "--set", "TILE_X=33"], "TILE_X=33 is not a value"),
        (["render", OP, "--set", "TILE_X"], "expected NAME=VALUE"),
        (["render", OP, "--set", "TILE_X=32", "--set", "TILE_X=64"], "twice"),
        (["render", OP, "--template", "nope"], "unknown template"),
        (["render", OP, "--arch", "sm_20"], "unknown arch 'sm_20'"),
        (["render", OP, "--target", "tpu"], "'tpu'"),
        (["render", OP, "--workload", "nope"], "unknown workload"),
        (["render", OP, "--shape", "N"], "expected NAME=INTEGER"),
        (["render", OP, "--shape", "N=1,N=2"], "gives N twice"),
        (["render", OP, "--shape", "N=1e3"], "expected NAME=INTEGER"),
        (["render", OP, "--shape", "Q=1"], "unknown shape field"),
        (["render", OP, "--shape", "H=1"], "larger than the padded image"),
        (["render", OP, "--dtype", "fp8"], "unknown dtype"),
        (["render", OP, "--templates", "/nonexistent"], "not a folder"),
        (["render"], "Missing argument 'OP'. (see coldforge render --help)"),
        (["nope"], "No such command 'nope'; there are list, render,"),
        (["tun", OP], "No such command 'tun'; did you mean tune?"),
        (["list", "--bogus"], "No such option"),
        (["list", "--target", "tpu"], "'tpu'"),
        (["list", OP, "nope"], "unknown operator 'nope'"),
    ],
)
def test_bad_input(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert err.startswith("coldforge: ")
    assert err.count("\n") == 1


def test_render_names_every_value_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "TILE_X=33", "--set", "TILE_Q=1", "--set", "PX=3", "--set", "PY=2"]
    assert run(["render", OP, *settings]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "TILE_X=33 is not a value of template conv2d/direct/cuda; it has [32, 64, 128]" in err
    assert "PX=3 is not a value" in err
    assert "'TILE_Q'" in err
    assert "PY=2" not in err
    settings = ["--set", "PX=8", "--set", "PY=4", "--set", "MIN_BLOCKS=4"]
    assert run(["render", OP, *settings]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "constraints are broken: (1) " in err
    assert "(requires 8 <= PX * PY <= 24)" in err
    assert "(requires 256 <= RESIDENT_THREADS <= 512)" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "Usage: coldforge" in capsys.readouterr().out


def test_the_list_of_commands_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "..." not in shown.partition("Commands:")[2]
    assert all(f"\n  {command} " in shown for command in COMMANDS)


def test_unknown_setting_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLDFORGE_JOBS", "many")
    assert run(["show"]) == 2
    assert "COLDFORGE_JOBS" in capsys.readouterr().err
