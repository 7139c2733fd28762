# SPDX-License-Identifier: Apache-2.0
"""`bench` for real on this machine's CPU: a frozen package against PyTorch eager and torch.compile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.errors import InputError
from coldforge.codegen.freeze import freeze
from coldforge.codegen.freeze.winner import winner_of
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import cpu_target
from coldforge.tuner import bench as bench_module
from coldforge.tuner.bench import _speedups, bench
from coldforge.tuner.cli.bench import _show, command

pytestmark = pytest.mark.build

PACKAGE = "frozen_for_bench"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(tmp_path_factory.mktemp("home"), 1, "g++", may_build=True)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small", {"N": 2})


@pytest.fixture(scope="module")
def package(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default variant, frozen into a package of its own."""
    folder, target = tmp_path_factory.mktemp("packages"), cpu_target()
    space = catalogue().space(problem.operator, target)
    source = render(space, problem, space.default, target)
    artifact = compile_source(source, target, Cache(folder / "cache"))
    measurement = {"time_ms": 1.0, "floor_ms": 0.1, "error": 1e-7, "bound_ratio": 0.5}
    more = {"precision": "fp32", "measurement": measurement, "study": "by hand"}
    winner = winner_of(problem, space, space.default, target, source, artifact, **more)
    freeze([winner], folder / PACKAGE, PACKAGE)
    return folder


def test_rows_times_errors_and_speedups(
    problem: Problem, package: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    found = bench(problem, cpu_target(), settings, package=PACKAGE, budget_ms=200.0)
    assert json.loads(json.dumps(found)) == found
    assert found["operator"] == "conv2d_divide_leaky_relu"
    assert found["target"] == "cpu"
    assert found["device"] == cpu_target().device
    assert found["workload"] == "small+"
    assert found["status"] == "ok"
    assert found["variant"].startswith("conv2d_divide_leaky_relu_small_fp32_")
    assert found["config"] == dict(catalogue().space(problem.operator, cpu_target()).default)
    assert found["compiler"].startswith("g++")
    assert found["device_record"]["threads"] == cpu_target().attributes["threads"]
    assert [row["name"] for row in found["rows"]] == ["frozen", "eager", "compile"]
    for row in found["rows"]:
        assert not row["reason"]
        assert row["ci95_ms"][0] <= row["time_ms"] <= row["ci95_ms"][1]
        assert 1e-9 < row["error"] < 1e-6
        assert 0 < row["bound_ratio"] < 1
        assert row["rounds"] >= 11
    for peer in ("eager", "compile"):
        low, high = found["speedup_ci95"][peer]
        assert low <= found["speedup"][peer] <= high


def test_a_shape_that_is_not_covered_is_refused(
    problem: Problem, package: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    with pytest.raises(InputError, match=r"no frozen kernel covers this"):
        bench(problem.with_dims(C_out=48), cpu_target(), settings, package=PACKAGE)


def test_an_operator_that_is_not_frozen_is_refused(
    package: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    other = make_problem(catalogue().operator("conv2d_mish"), "small")
    with pytest.raises(InputError, match="conv2d_mish"):
        bench(other, cpu_target(), settings, package=PACKAGE)


def test_speedups_are_taken_within_rounds() -> None:
    # Load doubles in the second half: the ratio of the medians would say 2, 1.5 or 3, by chance.
    frozen, eager = (dict(enumerate(v)) for v in ([1.0, 1.0, 2.0, 2.0, 2.0], [3.0, 3.0, 6.0, 6.0, 6.0]))
    found = _speedups(["frozen", "eager"], {0: frozen, 1: eager})
    assert found == {"speedup": {"eager": 3.0}, "speedup_ci95": {"eager": [3.0, 3.0]}}


FOUND = {
    "operator": "op",
    "target": "cpu",
    "device": "a CPU",
    "workload": "small",
    "status": "ok",
    "variant": "op_direct",
    "floor_ms": 0.5,
    "cold": False,
    "rows": [
        {
            "name": "frozen",
            "time_ms": 1.0,
            "ci95_ms": [0.9, 1.1],
            "error": 1e-7,
            "bound_ratio": 0.5,
            "reason": "",
        },
        {
            "name": "eager",
            "time_ms": 2.5,
            "ci95_ms": [2.4, 2.6],
            "error": 1e-7,
            "bound_ratio": 0.5,
            "reason": "",
        },
        {"name": "compile", "time_ms": None, "ci95_ms": None, "error": None, "reason": "no compiler"},
    ],
    "speedup": {"eager": 2.5},
    "speedup_ci95": {"eager": [2.45, 2.55]},
}


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    _show(FOUND)
    shown = capsys.readouterr().out
    assert "2.50x" in shown
    assert "no compiler" in shown
    assert "floor 0.5 ms" in shown
    assert "2.45-2.55" in shown
    assert "busy" not in shown
    _show({**FOUND, "speedup_ci95": {"eager": [1.4, 3.1]}})
    assert "machine was busy" in capsys.readouterr().out


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(problem: Problem, target: object, settings: object, **more: str) -> dict[str, object]:
        asked.append((problem.workload, dict(problem.dims), problem.dtype.name, more))
        return FOUND

    monkeypatch.setattr(bench_module, "bench", answer)
    arguments = ["conv2d_divide_leaky_relu", "--target", "cpu", "--shape", "N=8,H=128", "--json"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0
    assert json.loads(done.stdout) == FOUND
    workload, dims, dtype, more = asked[0]
    assert (workload, dims["N"], dims["H"], dims["W"]) == ("small+", 8, 128, 64)
    assert (dtype, more) == ("fp32", {"precision": "fp32", "package": "coldforge.generated", "roots": ()})
