# SPDX-License-Identifier: Apache-2.0
"""The second opinion under benchmarks/: it uses no timing code of ours, and says what differs."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.build

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "independent.py"
CONV = "conv2d_divide_leaky_relu"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("independent")


def test_it_imports_torch_and_the_frozen_kernels_alone() -> None:
    found = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    assert found - set(sys.stdlib_module_names) - {"__future__"} == {"torch"}
    words = SCRIPT.read_text().partition('"""')[2].partition('"""')[2]
    assert "coldforge." in words
    assert "coldforge." not in words.replace("coldforge.generated", "")


def test_its_operators_are_the_declared_ones(script: ModuleType) -> None:
    from coldforge.codegen.catalogue import catalogue
    from coldforge.codegen.problem import make_problem

    for name, workloads in script.SHAPES.items():
        for workload, shapes in workloads.items():
            problem = make_problem(catalogue().operator(name), workload)
            assert [spec.shape for spec in problem.tensors] == [tuple(shape) for shape in shapes]
        problem = make_problem(catalogue().operator(name), "small", {"N": 1, "H": 8, "W": 8})
        tensors = {spec.name: torch.randn(spec.shape, dtype=torch.float64) for spec in problem.tensors}
        wanted = problem.reference(tensors, problem.scalars)
        torch.testing.assert_close(script.EAGER[name](*tensors.values()).flatten(), wanted.flatten())


@pytest.mark.parametrize(("cold", "deciding"), [(True, ["frozen", "eager"]), (False, ["eager / frozen"])])
def test_what_is_compared(cold: bool, deciding: list[str], script: ModuleType) -> None:
    found = {"cold": cold, "times_ms": {"frozen": 0.51, "eager": 1.0}, "eager_over_frozen": 1.96}
    rows: list[dict[str, Any]] = [{"name": "frozen", "time_ms": 0.5}, {"name": "eager", "time_ms": 1.0}]
    bench = {"rows": rows, "speedup": {"eager": 2.0}}
    compared = script.compared(found, bench)
    assert [row["what"] for row in compared if row["decides"]] == deciding
    assert [row["percent"] for row in compared] == pytest.approx([2.0, 0.0, -2.0])
    rows[1]["time_ms"] = None  # eager could not run there
    assert [row["what"] for row in script.compared(found, {**bench, "speedup": {}})] == ["frozen"]


def test_it_measures_and_compares_on_this_cpu(tmp_path: Path) -> None:
    bench = {"operator": CONV, "workload": "small", "speedup": {"eager": 1e-3}}
    bench["rows"] = [{"name": "frozen", "time_ms": 1.0}, {"name": "eager", "time_ms": 1e-3}]
    (tmp_path / "bench.json").write_text(json.dumps({"command": "as in results/", "result": bench}))
    (tmp_path / "other.json").write_text(json.dumps({**bench, "workload": "seed"}))
    words = ["--target", "cpu", "--operator", CONV, "--seconds", "0.3", "--out", str(tmp_path / "out.json")]
    words += ["--bench", str(tmp_path / "bench.json"), "--bench", str(tmp_path / "other.json")]
    environment = {**os.environ, "COLDFORGE_HOME": str(tmp_path / "home")}
    command = [sys.executable, str(SCRIPT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1, done.stderr  # no such ratio is real
    assert "more than allowed" in done.stdout
    assert "which is not measured" in done.stderr
    (found,) = json.loads((tmp_path / "out.json").read_text())["results"]
    assert found["times_ms"]["frozen"] > 0
    assert found["relative_difference"] < 1e-5
    assert found["torch"] == torch.__version__
    assert min(found["samples"].values()) >= 1
    assert [row["decides"] for row in found["compared"]] == [False, False, True]


@pytest.mark.parametrize(
    ("difference", "workload", "rows", "ends"),
    [
        (1e-7, "small", [{"name": "eager", "time_ms": 1.0}], 0),
        (1e-3, "small", [{"name": "eager", "time_ms": 1.0}], 1),
        (float("nan"), "small", [{"name": "eager", "time_ms": 1.0}], 1),
        (1e-7, "seed", [{"name": "eager", "time_ms": 1.0}], 1),  # of another workload
        (1e-7, "small", [{"name": "eager", "time_ms": None}], 1),  # eager could not run there
    ],
)
def test_it_fails_where_results_differ_or_nothing_is_compared(
    difference: float,
    workload: str,
    rows: list[dict[str, Any]],
    ends: int,
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"times_ms": {"eager": 1.0}, "eager_over_frozen": 2.0, "relative_difference": difference}
    monkeypatch.setattr(script, "measured", lambda *_: {**found, "cold": True, "device": "a GPU"})
    bench = {"operator": CONV, "workload": workload, "rows": rows, "speedup": {}}
    (tmp_path / "bench.json").write_text(json.dumps(bench))
    words = ["--target", "cpu", "--operator", CONV, "--bench", str(tmp_path / "bench.json")]
    monkeypatch.setattr(sys, "argv", ["independent.py", *words])
    assert script.main() == ends


@pytest.mark.parametrize("text", [None, "no JSON", "[1]", "{}", '{"operator": 1, "workload": 2}'])
def test_a_bench_that_is_none_is_one_line(
    text: str | None,
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "bench.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["independent.py", "--target", "cpu", "--bench", str(file)])
    assert script.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line


def test_its_command_can_be_typed_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"times_ms": {"eager": 1.0}, "eager_over_frozen": 2.0, "relative_difference": 0.0}
    monkeypatch.setattr(script, "measured", lambda *_: {**found, "cold": True, "device": "a CPU"})
    out = tmp_path / "a result.json"
    words = ["--target", "cpu", "--operator", CONV, "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
    assert script.main() == 0
    said = json.loads(out.read_text())["command"]
    assert said == f"python benchmarks/independent.py --target cpu --operator {CONV} --out '{out}'"
