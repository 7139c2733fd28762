# SPDX-License-Identifier: Apache-2.0
"""Two folders hold one operator: what is frozen is what was tuned from the one that is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from coldforge.codegen.freeze import load_winners
from coldforge.tuner.cli import run
from own_family import NAME, replace, write_family

pytestmark = pytest.mark.build
FREEZE = ("freeze", NAME, "--package", "own_kernels", "--out", "packages", "--no-build")


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def _call(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """Runs a command with --json; its document, or what it said on stderr."""
    assert run([*arguments, "--json"]) == code
    said = capfd.readouterr()
    return said.err if code == 2 else json.loads(said.out)


def _tune(capfd: pytest.CaptureFixture[str], folder: str, *more: str) -> str:
    how = ("--target", "cpu", "--trials", "1", "--templates", folder, *more)
    return _call(capfd, "tune", NAME, *how)["study"]


def _frozen(tmp_path: Path) -> list[str]:
    return [winner.study for winner in load_winners(tmp_path / "packages" / "own_kernels")]


def test_the_folder_that_is_named_is_what_is_frozen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("good", "bad", "untuned"):
        write_family(tmp_path / name)
    replace(tmp_path / "bad" / NAME / "mean.hpp", "sum / count", "sum / float(count)")
    replace(tmp_path / "untuned" / NAME / "row_norm.cpp.jinja", "1e-6f", "0.000001f")
    good, bad = _tune(capfd, f"good/{NAME}"), _tune(capfd, f"bad/{NAME}")
    assert good != bad
    assert _call(capfd, *FREEZE)["passed_over"] == {}  # without a folder: the newest
    assert _frozen(tmp_path) == [bad]

    report = _call(capfd, *FREEZE, "--replace", "--templates", f"good/{NAME}")
    assert report["passed_over"] == {bad: f"it was tuned from another mean.hpp than good/{NAME} holds"}
    assert _frozen(tmp_path) == [good]
    assert run([*FREEZE, "--templates", "good"]) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("passed over  ")]
    assert lines == [f"passed over  {bad}: it was tuned from another mean.hpp than good/{NAME} holds"]
    # The older study of another text is nothing to be told of.
    assert _call(capfd, *FREEZE, "--replace", "--templates", "bad")["passed_over"] == {}
    assert _frozen(tmp_path) == [bad]

    (line,) = _call(capfd, *FREEZE, "--templates", f"untuned/{NAME}", code=2).splitlines()
    assert line.startswith(f"coldforge: nothing to freeze: study {bad}: it was tuned from another row_norm.")
    assert f"than untuned/{NAME} holds; tune {NAME} from there first" in line
    assert _frozen(tmp_path) == [bad]
    everything = _call(capfd, "freeze", *FREEZE[2:], "--templates", f"untuned/{NAME}")
    assert f"study {bad}" in everything["left_out"][NAME]


def test_another_reference_is_another_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("good", "bad"):
        write_family(tmp_path / name)
    replace(tmp_path / "bad" / NAME / "reference.py", "import torch", "import torch  # the same")
    good, bad = _tune(capfd, "good"), _tune(capfd, "bad")
    report = _call(capfd, *FREEZE, "--templates", "good")
    assert _frozen(tmp_path) == [good]
    assert report["passed_over"][bad].startswith(f"it was tuned for another declaration of {NAME} than good/")


def test_a_copy_of_the_same_text_will_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_family(tmp_path / "here")
    study = _tune(capfd, "here")
    write_family(tmp_path / "there")
    replace(tmp_path / "there" / NAME / "space.yaml", "parameters:", "# the same\nparameters:")
    report = _call(capfd, *FREEZE, "--templates", "there")
    assert report["passed_over"] == {}
    assert _frozen(tmp_path) == [study]


def test_a_run_that_failed_at_once_hides_no_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("good", "bad"):
        write_family(tmp_path / name)
    replace(tmp_path / "bad" / NAME / "reference.py", "import torch\n", "import torch\nraise ValueError\n")
    good = _tune(capfd, "good")
    said = _call(capfd, "tune", NAME, "--target", "cpu", "--trials", "1", "--templates", "bad", code=2)
    assert said.splitlines()[-1] == f"coldforge: bad/{NAME}/reference.py:2: ValueError"
    assert _call(capfd, "show", NAME)["study"] == good
    assert _call(capfd, "export", NAME, "--format", "json", "-o", "all.json")["study"] == good
    (empty,) = [s["study"] for s in _call(capfd, "show")["studies"] if s["study"] != good]
    assert _call(capfd, "show", empty)["study"] == empty
    _call(capfd, *FREEZE)  # with the reference that the winner was tuned by
    assert _frozen(tmp_path) == [good]
