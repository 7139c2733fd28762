# SPDX-License-Identifier: Apache-2.0
"""No time outlives what it was measured with: each change starts a study that holds nothing; a change that
means nothing does not."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
import yaml
from coldforge.codegen import render as rendering
from coldforge.codegen.catalogue import BUILTIN_ROOT, catalogue
from coldforge.codegen.compile import host
from coldforge.codegen.problem import make_problem
from coldforge.codegen.target import Target, cpu_target_for, cuda_target
from coldforge.tuner import backends
from coldforge.tuner.backends import toolchain_of
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.plan import Plan, plan_study
from coldforge.tuner.storage import open_storage
from coldforge.tuner.study import Study, open_study
from optuna.storages import BaseStorage
from own_family import NAME, replace, write_family

pytestmark = pytest.mark.build

SPACE = """\
parameters:
  LANES: {values: [4, 8, 16], help: floats that are summed side by side}
  GRAIN: {values: [1, 8], help: rows}
  MODE: {values: [plain, fast], help: none}
derived: {WIDE: LANES * 2, WIDER: WIDE * 2}
constraints:
  - {require: GRAIN <= 8, reason: too much}
  - {require: LANES >= 4, reason: too few}
archs: [x86-64-v2, x86-64-v3]
launch: {units: rows, grain: GRAIN}
"""


class Place:
    """A user's family on a machine whose every part may change."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch
        self.family = write_family(folder, space_yaml=SPACE)
        shutil.copytree(BUILTIN_ROOT / "include", folder / "include")
        monkeypatch.setattr(rendering, "INCLUDE_FOLDER", folder / "include")
        shutil.copytree(
            Path(backends.__file__).parent, folder / "tuner", ignore=shutil.ignore_patterns("*.pyc")
        )
        monkeypatch.setattr(backends, "__file__", str(folder / "tuner" / "backends.py"))
        self.target: Target = replaced(cpu_target_for("x86-64-v3"), device="a CPU")
        self.compiler = folder / "cxx"
        self.says("c++ 12.2.0")
        monkeypatch.setenv("COLDFORGE_CXX", str(self.compiler))
        self.workload: dict[str, int] = {}
        self.precision = "fp32"

    def says(self, version: str) -> None:
        """What the compiler says that it is."""
        self.compiler.unlink(missing_ok=True)
        self.compiler.write_text(f"#!/bin/sh\necho {version}\n")
        self.compiler.chmod(0o755)

    def flags(self, *flags: str) -> None:
        self._patch.setattr(host, "COMPILE_FLAGS", flags)

    def append(self, path: Path, text: str) -> None:
        path.write_text(path.read_text() + text)

    def space(self, change: Callable[[dict[str, Any]], Any]) -> None:
        path = self.family / "space.yaml"
        document = yaml.safe_load(path.read_text())
        document = change(document) or document
        path.write_text(yaml.safe_dump(document, sort_keys=False))

    def plan(self) -> Plan:
        """What the same command would tune now."""
        catalogue.cache_clear()  # as in another process
        declared = catalogue(self.folder)
        problem = make_problem(declared.operator(NAME), "small", self.workload)
        return plan_study(declared, problem, self.precision, self.target, toolchain_of(self.target))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> BaseStorage:
    opened = open_storage(None, tmp_path_factory.mktemp("home"))
    assert opened is not None
    return opened


def _tuned(storage: BaseStorage, plan: Plan) -> Study:
    """The plan's study, with a trial of its first configs more."""
    study, feasible = open_study(storage, plan.inputs()), plan.feasible()
    for index, point in enumerate(feasible.points[:3]):
        result = TrialResult(TrialOutcome.OK, time_ms=1.0, template=point.template, config=point.config)
        study.record(point, result, feasible.distributions_of(index))
    return study


CHANGES: dict[str, Callable[[Place], Any]] = {
    "kernel": lambda p: replace(p.family / "row_norm.cpp.jinja", "in[i] * in[i]", "in[i] * +in[i]"),
    "comment in a template": lambda p: p.append(p.family / "row_norm.cpp.jinja", "{# faster #}\n"),
    "header": lambda p: p.append(p.family / "mean.hpp", "// the mean\n"),
    "header of coldforge": lambda p: p.append(p.folder / "include" / "coldforge" / "cpu_kernel.hpp", "\n"),
    "shared macros": lambda p: p.append(p.folder / "include" / "kernel.jinja", "{# #}\n"),
    "reference": lambda p: replace(p.family / "reference.py", "eps=1e-6", "eps=1e-5"),
    "flags": lambda p: p.flags("-O2"),
    "compiler": lambda p: p.says("c++ 13.1.0"),
    "device": lambda p: setattr(p, "target", replaced(p.target, device="another CPU")),
    "threads": lambda p: setattr(
        p, "target", replaced(p.target, attributes={**p.target.attributes, "threads": 64})
    ),
    "workload": lambda p: p.workload.update(columns=97),
    "precision": lambda p: setattr(p, "precision", "tf32"),
    "verification inputs": lambda p: p.append(p.folder / "tuner" / "inputs.py", "\n"),
    "bounds": lambda p: p.append(p.folder / "tuner" / "bound.py", "\n"),
    "a value more": lambda p: p.space(lambda d: d["parameters"]["GRAIN"]["values"].append(4)),
    "a value less": lambda p: p.space(lambda d: d["parameters"]["LANES"]["values"].remove(16)),
    "constraint": lambda p: p.space(lambda d: d["constraints"].remove(d["constraints"][0])),
    "derived value": lambda p: p.space(lambda d: d["derived"].update(WIDE="LANES * 4")),
    "launch": lambda p: p.space(lambda d: d["launch"].update(grain="GRAIN * 2")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_starts_a_study_that_holds_nothing(place: Place, storage: BaseStorage, name: str) -> None:
    before = _tuned(storage, place.plan())
    assert before.trials()
    CHANGES[name](place)
    plan = place.plan()
    after = open_study(storage, plan.inputs())
    assert after.name != before.name
    assert after.trials() == []


# What the workbench imports that decides neither a verdict nor a time.
WORDS = {"outcome.py", "request.py"}


def test_all_that_judges_is_in_the_name() -> None:
    root = Path(backends.__file__).parent
    named = {path for pattern in backends._JUDGING_FILES for path in root.glob(pattern)}
    waiting, seen = [root / "workbench.py"], set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += _imported(path, root)
    assert {path.relative_to(root) for path in seen - named} == {Path(word) for word in WORDS}


def _imported(path: Path, root: Path) -> list[Path]:
    """The files of the package that a file imports by relative imports, lazily or not."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            place = path.parents[node.level - 1]
            module = place.joinpath(*(node.module or "").split("."))
            found += [module.with_suffix(".py"), *(module / f"{alias.name}.py" for alias in node.names)]
    return [file for file in found if file.is_file() and file.is_relative_to(root)]


def test_another_driver_starts_a_study_that_holds_nothing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.family / "row_norm.cu.jinja").write_text("{% call kernel.cuda_kernel(64) %}\n{% endcall %}\n")
    space = "parameters: {A: [1]}\ntarget: cuda\nlaunch: {grid: rows, block: 64}\n"
    (place.family / "space.cuda.yaml").write_text(space)
    replace(place.family / "space.yaml", "launch:", "target: cpu\nlaunch:")
    place.target = cuda_target("sm_90", "NVIDIA H200")
    file, names = tmp_path / "version", set()
    monkeypatch.setattr(backends, "_DRIVER_FILE", file)
    for version in ("580.95.05", "590.12"):
        file.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Mon Sep 1\n")
        names.add(place.plan().inputs().name)
    assert len(names) == 2


def _turned(document: dict[str, Any]) -> dict[str, Any]:
    """Every mapping and every list the other way round."""
    for key in ("parameters", "launch"):
        document[key] = dict(reversed(document[key].items()))
    for parameter in document["parameters"].values():
        parameter["values"].reverse()
    for key in ("constraints", "archs"):
        document[key].reverse()
    return dict(reversed(document.items()))


MEANINGLESS: dict[str, Callable[[Place], Any]] = {
    "order of mappings and lists": lambda p: p.space(_turned),
    "another default": lambda p: p.space(
        lambda d: d.update(default={"LANES": 16, "GRAIN": 8, "MODE": "fast"})
    ),
    "help and reasons": lambda p: p.space(
        lambda d: (d["parameters"]["LANES"].update(help="other"), d["constraints"][0].update(reason="other"))[
            2:
        ]
    ),
    "comment in a declaration": lambda p: (
        p.append(p.family / "space.yaml", "# a note\n"),
        p.append(p.family / "family.yaml", "# a note\n"),
    ),
    "order of a family's mappings": lambda p: (p.family / "family.yaml").write_text(
        yaml.safe_dump(
            dict(reversed(yaml.safe_load((p.family / "family.yaml").read_text()).items())), sort_keys=False
        )
    ),
    "a header that nothing includes": lambda p: (p.family / "other.hpp").write_text("int other;\n"),
}


@pytest.mark.parametrize("name", MEANINGLESS)
def test_what_means_nothing_goes_on_with_the_study(place: Place, storage: BaseStorage, name: str) -> None:
    before = open_study(storage, place.plan().inputs())
    held = len(before.trials())
    MEANINGLESS[name](place)
    plan = place.plan()
    after = _tuned(storage, plan)  # and takes further trials, whatever the order of its values
    assert after.name == before.name
    assert len(after.trials()) == held + 3
    assert after.defaults == {NAME: dict(plan.spaces[NAME].default)}
    assert None not in {plan.feasible().index_of(trial.params) for trial in after.trials()}


def test_another_pytorch_and_another_reduction_are_another_study(monkeypatch: pytest.MonkeyPatch) -> None:
    before = backends._judging_digest()
    with monkeypatch.context() as patched:
        patched.setattr(backends, "version", lambda name: "1.0")
        assert backends._judging_digest() != before
    monkeypatch.setattr(backends, "_JUDGING_MODULES", backends._JUDGING_MODULES[:1])
    assert backends._judging_digest() != before
