# SPDX-License-Identifier: Apache-2.0
"""`coldforge check`: which configs it takes, what it says of right ones, and of a template that is wrong."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from coldforge.codegen.catalogue import BUILTIN_ROOT, catalogue
from coldforge.tuner.check.covering import covering
from coldforge.tuner.check.instantiations import subjects
from coldforge.tuner.cli import run
from emulator_kernels import shared_cache

pytestmark = pytest.mark.build

SMALL = ["--workload", "small", "--shape", "C_in=4,C_out=16"]


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = shared_cache(tmp_path_factory).root  # the command's is home/cache
    cache.mkdir(parents=True, exist_ok=True)
    home = tmp_path_factory.mktemp("home")
    (home / "cache").symlink_to(cache)
    monkeypatch.setenv("COLDFORGE_HOME", str(home))


@pytest.mark.parametrize("name", ["conv2d_divide_leaky_relu", "conv_transpose2d_mean_logsumexp"])
def test_a_covering_set_has_every_pair_that_is_legal(name: str) -> None:
    for subject in subjects(catalogue(), catalogue().operator(name)):
        space, legal = subject.space, subject.configs
        chosen = covering(legal, [space.default])
        assert space.default in chosen
        assert len(chosen) == len(set(chosen)) < 80
        for a, b in combinations([parameter.name for parameter in space.parameters], 2):
            assert {(c[a], c[b]) for c in chosen} == {(c[a], c[b]) for c in legal}, (a, b)
    assert covering([]) == []


def _own_templates(folder: Path, old: str, new: str) -> list[str]:
    """A family like conv2d with one change in its template and few configs; the command that checks it."""
    family = folder / "my_conv2d"
    shutil.copytree(BUILTIN_ROOT / "conv2d", family)
    for path in family.glob("space.*.cuda.yaml"):
        if path.name != "space.direct.cuda.yaml":
            path.unlink()
    declared = (family / "family.yaml").read_text()
    (family / "family.yaml").write_text(declared.replace("family: conv2d", "family: my_conv2d", 1))
    template = (family / "direct.cu.jinja").read_text()
    assert template.count(old) == 1
    (family / "direct.cu.jinja").write_text(template.replace(old, new))
    space = yaml.safe_load((family / "space.direct.cuda.yaml").read_text())
    for name, parameter in space["parameters"].items():
        if name not in ("STAGING", "UNROLL_R"):
            parameter["values"] = [space["default"][name]]
    (family / "space.direct.cuda.yaml").write_text(yaml.safe_dump(space, sort_keys=False))
    operator = (BUILTIN_ROOT / "operators/conv2d_mish.yaml").read_text()
    (folder / "operators").mkdir()
    own = operator.replace("conv2d_mish", "my_mish").replace("family: conv2d", "family: my_conv2d")
    (folder / "operators/my_mish.yaml").write_text(own)
    return ["check", "my_mish", "--templates", str(folder), *SMALL]


def test_a_right_template_has_no_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = _own_templates(tmp_path, "Epilogue(args)", "Epilogue(args)")
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["findings"] == []
    assert found["failed"] == 0
    assert found["configs"] == found["templates"]["my_conv2d/direct/cuda"] >= 4
    assert found["seconds"] > 0
    assert run(arguments) == 0
    assert "no findings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("int(args.W_out)}", "int(args.W_out) + 1}", "out_of_bounds"),
        ("Epilogue(args)", "Epilogue{args}, *reinterpret_cast<", "compile_error"),
        ("int(args.H_out)", "int(args.H_out) - 1", "wrong_result"),
    ],
)
def test_a_wrong_template_is_told_by_cause_and_line(
    old: str, new: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*_own_templates(tmp_path, old, new), "--json"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert cause in found["causes"], found["causes"]
    assert found["failed"] == found["configs"]
    assert f"{found['failed']} of {found['configs']} configs have faults" in captured.err
    if cause == "out_of_bounds":
        lines = {(finding["file"], finding["line"]) for finding in found["findings"] if "file" in finding}
        assert any(file.startswith("coldforge/") and line > 0 for file, line in lines), lines
    if cause == "compile_error":
        text = (tmp_path / "my_conv2d/direct.cu.jinja").read_text().splitlines()
        number = next(number for number, line in enumerate(text, 1) if new in line)
        for finding in found["findings"]:
            assert (finding["file"], finding["line"]) == ("direct.cu.jinja", number)
            assert f"direct.cu.jinja:{number} (rendered line {finding['rendered']}): error" in finding["text"]
            assert finding["case"] == "compiling"


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "conv2d_mish", "--arch", "sm_20"]) == 2
    assert run(["check", "conv2d_mish", "--template", "nope"]) == 2
    assert run(["check", "nope"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 3
