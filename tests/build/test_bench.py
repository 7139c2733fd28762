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
from coldforge.tuner.cli.bench import command
from coldforge.tuner.cli.bench_table import print_bench

pytestmark = pytest.mark.build

PACKAGE, MEAN_PACKAGE = "frozen_for_bench", "frozen_mean_for_bench"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(tmp_path_factory.mktemp("home"), 1, "g++", may_build=True)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small", {"N": 2})


@pytest.fixture(scope="module")
def mean_problem() -> Problem:
    shape = {"N": 2, "C_in": 8, "C_out": 16, "H": 96, "W": 96}
    return make_problem(catalogue().operator("conv_transpose2d_mean_logsumexp"), "small", shape)


def frozen_default(problem: Problem, folder: Path, name: str) -> None:
    """Freezes the default variant into a package of its own."""
    target = cpu_target()
    space = catalogue().space(problem.operator, target)
    source = render(space, problem, space.default, target)
    artifact = compile_source(source, target, Cache(folder / "cache"))
    measurement = {"time_ms": 1.0, "floor_ms": 0.1, "error": 1e-7, "bound_ratio": 0.5}
    more = {"precision": "fp32", "measurement": measurement, "study": "by hand"}
    winner = winner_of(problem, space, space.default, target, source, artifact, **more)
    freeze([winner], folder / name, name)


@pytest.fixture(scope="module")
def package(problem: Problem, mean_problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two packages, one for each family."""
    folder = tmp_path_factory.mktemp("packages")
    frozen_default(problem, folder, PACKAGE)
    frozen_default(mean_problem, folder, MEAN_PACKAGE)
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


def test_a_family_brings_its_own_peers(
    mean_problem: Problem, package: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    found = bench(mean_problem, cpu_target(), settings, package=MEAN_PACKAGE, budget_ms=200.0)
    assert found["status"] == "ok"
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["frozen", "eager", "compile", "collapsed", "compile_collapsed", "sum_x"]
    for name, row in rows.items():
        assert not row["reason"], name
        assert row["time_ms"] > 0
        assert row["rounds"] >= 5
        assert row["answers"] is (name != "sum_x")
    assert {name for name, row in rows.items() if row["error"] is None} == {"sum_x"}
    assert all(row["bound_ratio"] < 1 for row in rows.values() if row["answers"])
    assert set(found["speedup"]) == set(found["speedup_ci95"]) == set(rows) - {"frozen"}
    print_bench(found)


def test_a_shape_that_is_not_covered_is_refused(
    problem: Problem, package: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    with pytest.raises(InputError) as refused:
        bench(problem.with_dims(C_out=48), cpu_target(), settings, package=PACKAGE)
    said = str(refused.value)
    sizes = "(fp32, N=2 H=64 W=64 C_out=48)"
    assert said.startswith(
        f"{problem.operator.name} {sizes}: no frozen kernel covers this shape, dtype, prec"
    )
    advice = "; tune one: coldforge tune conv2d_divide_leaky_relu --target cpu --shape "
    assert advice in said
    assert "C_out=48" in said.partition(advice)[2]
    assert f"coldforge freeze {problem.operator.name} --package {PACKAGE}" in said


def test_a_dtype_that_no_template_computes_is_no_advice_to_tune(settings: Settings) -> None:
    half = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small", {"N": 1}, dtype="fp16")
    with pytest.raises(InputError, match=r"\(fp16, N=1 H=64 W=64\): .*; no template computes fp16 on cpu$"):
        bench(half, cpu_target(), settings)


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
    # A slow one has few rounds, and is compared over these.
    few = _speedups(["frozen", "eager"], {0: frozen, 1: {1: 30.0, 4: 60.0}})
    assert few == {"speedup": {"eager": 30.0}, "speedup_ci95": {"eager": [30.0, 30.0]}}


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
        {"name": "sum_x", "time_ms": 0.8, "ci95_ms": [0.7, 0.9], "error": None, "reason": ""},
    ],
    "speedup": {"eager": 2.5, "sum_x": 0.8},
    "speedup_ci95": {"eager": [2.45, 2.55], "sum_x": [0.79, 0.81]},
}


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_bench(FOUND)
    shown = capsys.readouterr().out
    assert "2.50x" in shown
    assert "no compiler" in shown
    assert "The device's speed allows 0.5 ms at best; the frozen kernel reaches 50% of" in shown
    assert "2.45-2.55" in shown
    assert "busy" not in shown
    assert "yardstick" in shown
    print_bench({**FOUND, "speedup_ci95": {"eager": [1.4, 3.1], "sum_x": [0.8, 0.8]}})
    assert "machine was busy" in capsys.readouterr().out


def test_the_table_is_whole_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room beside the times stands below them; nothing is cut off or broken within a figure."""
    monkeypatch.setenv("COLUMNS", "80")
    beside = {"warm_ms": 0.75, "graph_ms": 0.625, "energy_j": 0.4375}
    ends = {"ci95_ms": [123.4567, 134.5678], "error": 1.25e-7, "reason": ""}
    rows = [
        {"name": "frozen", "time_ms": 129.1234, **ends, **beside},
        {"name": "compile, TF32 allowed", "time_ms": 129.5678, **ends, **beside},
        {"name": "compile", "time_ms": None, "ci95_ms": None, "error": None, "reason": "no compiler " * 20},
    ]
    times = {"speedup": {"compile, TF32 allowed": 12.5}}
    found = {**FOUND, "rows": rows, **times, "speedup_ci95": {"compile, TF32 allowed": [12.25, 12.75]}}
    print_bench(found)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    one = next(line for line in lines if line.startswith("compile, TF32 allowed"))
    assert one.split()[3:] == ["129.6", "(123.5-134.6)", "12.50x", "(12.25-12.75)", "1.2e-07"]
    other = [line for line in lines if line.startswith("compile, TF32 allowed")][1]
    assert other.split()[3:] == ["0.75", "0.625", "437.5"]
    assert "compile was not timed: no compiler no compiler" in "\n".join(lines)
    monkeypatch.setenv("COLUMNS", "160")
    print_bench(found)
    wide = [line for line in capsys.readouterr().out.splitlines() if line.startswith("compile, TF32")]
    assert len(wide) == 1
    assert wide[0].split()[-3:] == ["0.75", "0.625", "437.5"]


def test_a_kernel_that_beats_the_probe(capsys: pytest.CaptureFixture[str]) -> None:
    print_bench({**FOUND, "floor_ms": 1.5, "floor": {"limit": "arithmetic"}})
    shown = " ".join(capsys.readouterr().out.split())
    assert "arithmetic speed allows 1.5 ms at best, as far as it was probed; the frozen kernel is as" in shown
    assert "%" not in shown.split("allows")[1]
    print_bench({**FOUND, "floor_ms": 0.0})
    assert "its memory sets no least time" in " ".join(capsys.readouterr().out.split())


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
