# SPDX-License-Identifier: Apache-2.0
"""What a plan hands to the study's name: every text that variants are made of, and what a space means."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from coldforge.codegen import render as rendering
from coldforge.codegen.catalogue import BUILTIN_ROOT, catalogue
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import source_files
from coldforge.codegen.space import Space
from coldforge.codegen.space_file import load_space
from coldforge.codegen.target import Target
from coldforge.tuner.plan import Plan, Toolchain, plan_study, space_digest

TARGET = Target("cpu", "x86-64-v3", "a CPU", {"threads": 2, "llc_bytes": 1 << 25, "vector_bytes": 32})
TOOLCHAIN = Toolchain("g++ 12.2.0", ("-O3",), "", "1")
OPERATOR = catalogue().operator("conv2d_divide_leaky_relu")
SPACE_FILE = "space.direct.cpu.yaml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the family and of the headers that may be changed."""
    family = tmp_path / OPERATOR.family.name
    shutil.copytree(OPERATOR.family.folder, family)
    shutil.copytree(BUILTIN_ROOT / "include", tmp_path / "include")
    monkeypatch.setattr(rendering, "INCLUDE_FOLDER", tmp_path / "include")
    return family


def _space(folder: Path) -> Space:
    return load_space(folder / SPACE_FILE, OPERATOR.family.name)


def _name(folder: Path, **changes: Any) -> str:
    plan = Plan(make_problem(OPERATOR, "small"), "fp32", TARGET, {"direct": _space(folder)}, TOOLCHAIN)
    return dataclasses.replace(plan, **changes).inputs().name


def _rewrite(folder: Path, change: Any) -> None:
    path = folder / SPACE_FILE
    document = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(change(document), sort_keys=False))


def test_a_changed_header_template_or_macro_changes_the_name(folder: Path) -> None:
    space = _space(folder)
    paths = list(source_files(space).values())
    assert space.file in paths
    assert any(path.suffix == ".hpp" for path in paths)
    assert any(path.name == "kernel.jinja" for path in paths)
    names = {_name(folder)}
    for count, path in enumerate(paths, start=2):
        path.write_text(path.read_text() + "\n")
        names.add(_name(folder))
        assert len(names) == count, f"{path} does not matter to the name"


def test_a_header_of_another_target_does_not_matter(folder: Path) -> None:
    before = _name(folder)
    for path in (folder.parent / "include" / "coldforge").glob("*.cuh"):
        path.write_text(path.read_text() + "\n")
    assert _name(folder) == before


def test_reordered_mappings_and_help_texts_do_not_matter(folder: Path) -> None:
    before = _name(folder)

    def turn(document: dict[str, Any]) -> dict[str, Any]:
        for key in ("parameters", "default", "launch"):
            document[key] = dict(reversed(document[key].items()))
        for parameter in document["parameters"].values():
            parameter["help"] = "another text"
            parameter["values"].reverse()
        for key in ("archs", "constraints"):
            document[key].reverse()
        # Which config comes first makes no time stale.
        document["default"] = {name: p["values"][0] for name, p in document["parameters"].items()}
        return dict(reversed(document.items()))

    _rewrite(folder, turn)
    assert _name(folder) == before


def _fewer_values(document: dict[str, Any]) -> dict[str, Any]:
    """Drops one value that is not the default from the first parameter that has one to spare."""
    for name, parameter in document["parameters"].items():
        spare = [value for value in parameter["values"] if value != document["default"][name]]
        if spare:
            parameter["values"].remove(spare[0])
            return document
    raise AssertionError("every parameter has one value")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: {**d, "constraints": d["constraints"][1:]},
        lambda d: {**d, "launch": {**d["launch"], "grain": "2"}},
        lambda d: {**d, "archs": [arch for arch in d["archs"] if arch != "aarch64"]},
        _fewer_values,
    ],
    ids=["constraint", "launch", "archs", "values"],
)
def test_a_changed_space_changes_the_name(folder: Path, change: Any) -> None:
    before, digest = _name(folder), space_digest(_space(folder))
    _rewrite(folder, change)
    assert space_digest(_space(folder)) != digest
    assert _name(folder) != before


def test_problem_precision_target_and_toolchain_change_the_name(folder: Path) -> None:
    other_cpu = dataclasses.replace(TARGET, device="another CPU")
    more_threads = dataclasses.replace(TARGET, attributes={**TARGET.attributes, "threads": 4})
    names = {
        _name(folder),
        _name(folder, problem=make_problem(OPERATOR, "small", {"N": 5})),
        _name(folder, problem=make_problem(OPERATOR, "unbiased")),
        _name(folder, precision="tf32"),
        _name(folder, target=other_cpu),
        _name(folder, target=more_threads),
        _name(folder, toolchain=dataclasses.replace(TOOLCHAIN, compiler="g++ 13.1.0")),
        _name(folder, toolchain=dataclasses.replace(TOOLCHAIN, flags=("-O2",))),
        _name(folder, toolchain=dataclasses.replace(TOOLCHAIN, driver="590.1")),
        _name(folder, toolchain=dataclasses.replace(TOOLCHAIN, verification="2")),
    }
    assert len(names) == 10


def test_a_plan_spans_the_templates_of_the_target() -> None:
    problem = make_problem(OPERATOR, "small")
    plan = plan_study(catalogue(), problem, "fp32", TARGET, TOOLCHAIN)
    declared = {s.template for s in catalogue().spaces(OPERATOR, "cpu") if TARGET.arch in s.archs}
    assert set(plan.spaces) == declared
    only = plan_study(catalogue(), problem, "fp32", TARGET, TOOLCHAIN, "direct")
    assert set(only.spaces) == {"direct"}
    assert plan.defaults["direct"] == plan.spaces["direct"].default
