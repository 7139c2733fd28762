# SPDX-License-Identifier: Apache-2.0
"""The freeze and build commands: bundles out and in, packages, and one clear line when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import coldforge.codegen.freeze
import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.freeze import Winner, freeze, load_winners
from coldforge.tuner.cli import run
from coldforge.tuner.cli.freeze import alone
from freezing import call, store_study

WinnerFactory = Callable[..., Winner]
OPERATOR = "conv2d_divide_leaky_relu"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the repository's generated/, and gives an empty home."""
    generated = tmp_path / "generated"
    freeze([], generated, "coldforge")
    monkeypatch.setattr(coldforge.codegen.freeze, "GENERATED", generated)
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))
    return generated


def test_a_bundle_goes_from_home_to_home(
    own: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    naive_winner: WinnerFactory,
    fake_cuda_winner: WinnerFactory,
) -> None:
    store_study(tmp_path / "home", fake_cuda_winner(study="a study"))
    bundle = str(tmp_path / "h200.zip")
    report = call(capsys, "freeze", "--bundle", bundle)
    assert report["status"] == "ok"
    assert report["studies"] == ["a study"]
    assert load_winners(own) == []  # the bundle alone was written

    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "other"))
    store_study(tmp_path / "other", naive_winner(study="mine"), "mine")
    report = call(capsys, "freeze", "--from", bundle, "--no-build")
    assert [entry["what"] for entry in report["entries"]] == ["added"]  # not the study of this machine
    assert report["imported_studies"] == ["a study"]
    assert load_winners(own) == [fake_cuda_winner(study="a study")]
    report = call(capsys, "freeze", "--from", bundle, "--no-build")
    assert [entry["what"] for entry in report["entries"]] == ["kept"]
    assert not report["changed"]
    assert report["imported_studies"] == []
    # Naming the operator takes the studies too; those of both devices stand together.
    report = call(capsys, "freeze", OPERATOR, "--from", bundle, "--no-build")
    assert sorted(entry["what"] for entry in report["entries"]) == ["added", "kept"]
    assert {winner.kind for winner in load_winners(own)} == {"cpu", "cuda"}
    # The imported study is one of this machine's now.
    assert len(call(capsys, "freeze", "--bundle", bundle)["entries"]) == 2


def test_a_new_winner_replaces_an_old_one(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], naive_winner: WinnerFactory
) -> None:
    freeze([naive_winner(time_ms=2.0), naive_winner({"N": 7})], own, "coldforge")
    store_study(tmp_path / "home", naive_winner(time_ms=1.5))
    report = call(capsys, "freeze", "--no-build")
    entry = {"name": naive_winner().name, "shape": "small C_out=6", "old_ms": 2.0, "new_ms": 1.5}
    assert report["entries"] == [{**entry, "what": "replaced"}]
    assert report["total_entries"] == 2
    assert run(["freeze", "--no-build"]) == 0
    assert f"kept  {naive_winner().name}  (small C_out=6)  1.5 ms" in capsys.readouterr().out


def test_entries_of_an_old_declaration_are_dropped(
    own: Path, capsys: pytest.CaptureFixture[str], naive_winner: WinnerFactory
) -> None:
    good, old = naive_winner(), naive_winner({"N": 7})
    freeze([good, old], own, "coldforge")
    text = (own / "manifest.json").read_text()
    head, name, tail = text.partition(f'"name": "{old.name}"')
    tail = tail.replace(old.operator_digest, "0" * 64, 1)
    (own / "manifest.json").write_text(head + name + tail)
    report = call(capsys, "freeze", "--no-build")
    assert report["dropped"] == [old.name]
    assert load_winners(own) == [good]


def test_of_two_at_once_the_second_has_what_the_first_added(
    own: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    naive_winner: WinnerFactory,
    fake_cuda_winner: WinnerFactory,
) -> None:
    store_study(tmp_path / "home", naive_winner(study="a study"))
    codes: list[int] = []
    second = threading.Thread(target=lambda: codes.append(run(["freeze", "--no-build", "--json"])))
    with alone(own):  # the first, which has read what is frozen and has not written yet
        second.start()
        second.join(2.0)
        assert second.is_alive()
        freeze([fake_cuda_winner(study="another")], own, "coldforge")
    second.join(60.0)
    assert codes == [0]
    assert {winner.kind for winner in load_winners(own)} == {"cpu", "cuda"}
    assert "another freeze writes in" in capsys.readouterr().err


@pytest.mark.build
def test_a_package_of_what_is_frozen(
    own: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], naive_winner: WinnerFactory
) -> None:
    freeze([naive_winner()], own, "coldforge")
    before = sorted(own.rglob("*"))
    assert run(["freeze", "--package", "mykernels", "--out", str(tmp_path / "out"), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["package"] == "mykernels"
    assert report["build"]["enabled"] == [f"{naive_winner().name}@x86-64-v2"]
    assert sorted(own.rglob("*")) == before
    (wheel,) = (tmp_path / "out").glob("mykernels-*-py3-none-manylinux_2_*.whl")
    assert report["wheel"] == str(wheel)
    # What is frozen again is the same, and so is its wheel.
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*") if path.is_file()}
    assert run(["freeze", "--package", "mykernels", "--out", str(tmp_path / "out"), "--json"]) == 0
    capfd.readouterr()
    assert {path: path.read_bytes() for path in files} == files
    code = (
        "import torch, mykernels as m; print(m.Conv2dDivideLeakyReLU(8, 6, 3)(torch.ones(1, 8, 5, 5)).shape)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tmp_path / "out", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch.Size([1, 6, 3, 3])"


@pytest.mark.build
def test_what_is_built_is_what_was_written(
    own: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    naive_winner: WinnerFactory,
) -> None:
    """Whatever is in the folder that the command is given in, and beside the package; a link is followed."""
    here, out = tmp_path / "here", tmp_path / "out"
    freeze([naive_winner({"N": 7})], here / "mykernels", "mykernels")
    freeze([naive_winner({"N": 7})], tmp_path / "store" / "v1", "mykernels")
    out.mkdir()
    (out / "mykernels").symlink_to("../store/v1")
    for folder in (here, out):
        for name in ("json.py", "torch.py"):
            (folder / name).write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nraise SystemExit(7)\n")
    older = sorted(here.rglob("*"))
    monkeypatch.chdir(here)
    freeze([naive_winner()], own, "coldforge")
    assert run(["freeze", "--package", "mykernels", "--out", str(out), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert not (tmp_path / "executed").exists()
    library = Path(report["build"]["extension"])
    assert library.is_relative_to(tmp_path / "store" / "v1")
    inside = library.relative_to(tmp_path / "store" / "v1")
    with zipfile.ZipFile(report["wheel"]) as wheel:
        assert wheel.read(f"mykernels/{inside}") == library.read_bytes()
    assert sorted(here.rglob("*")) == older
    assert (out / "mykernels").is_symlink()


def test_a_file_of_ones_own_is_bad_input(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], naive_winner: WinnerFactory
) -> None:
    store_study(tmp_path / "home", naive_winner())
    into = ("freeze", OPERATOR, "--package", "mykernels", "--out", str(tmp_path), "--no-build")
    call(capsys, *into)
    notes = tmp_path / "mykernels" / "NOTES.md"
    notes.write_text("mine")
    assert f"{notes} is not coldforge's, and freezing would delete it" in call(capsys, *into, code=2)
    assert notes.read_text() == "mine"


def test_a_package_keeps_what_it_holds(
    own: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    naive_winner: WinnerFactory,
) -> None:
    into = ("freeze", "--package", "mykernels", "--out", str(tmp_path), "--no-build")
    mish = naive_winner(declared=catalogue().operator("conv2d_mish"), epilogue="")
    home = tmp_path / "home"
    store_study(home, naive_winner(), "first")
    assert call(capsys, *into, OPERATOR)["operators"] == [OPERATOR]
    store_study(home, mish, "second")
    report = call(capsys, *into, "conv2d_mish")
    assert report["operators"] == [OPERATOR, "conv2d_mish"]
    assert [entry["what"] for entry in report["entries"]] == ["added"]
    assert {w.name for w in load_winners(tmp_path / "mykernels")} == {naive_winner().name, mish.name}


def test_a_package_whose_operators_are_unknown_is_left_alone(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], naive_winner: WinnerFactory
) -> None:
    folder = tmp_path / "mykernels"
    freeze([naive_winner()], folder, "mykernels")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"operator": "{OPERATOR}"', '"operator": "their_own"'))
    before = manifest.read_text()
    store_study(tmp_path / "home", naive_winner(), "first")
    line = call(
        capsys, "freeze", OPERATOR, "--package", "mykernels", "--out", str(tmp_path), "--no-build", code=2
    )
    assert "holds their_own, which is not declared here" in line
    assert "--templates DIR" in line
    assert manifest.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--package", "x"], "--package NAME and --out DIR go together"),
        (["--out", "x"], "--package NAME and --out DIR go together"),
        (["--package", "json", "--out", "x"], "package name 'json' is taken"),
        (["--package", "coldforge", "--out", "x"], "package name 'coldforge' is taken"),
        (["--bundle", "x", "--no-build"], "--bundle writes one file"),
        ([], "nothing to freeze"),
        ([OPERATOR], f"run coldforge tune {OPERATOR} first"),
        (["--bundle", "x.zip"], "nothing to freeze"),
        (["no_such_operator"], "unknown operator 'no_such_operator'"),
        (["--from", "no-such-file.zip"], "cannot read no-such-file.zip"),
    ],
)
def test_bad_usage(own: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str) -> None:
    assert line in call(capsys, "freeze", *arguments, code=2)


def test_build_with_nothing_frozen(capfd: pytest.CaptureFixture[str]) -> None:
    from coldforge.codegen.freeze import GENERATED

    if load_winners(GENERATED):
        pytest.skip("the repository has frozen kernels")
    assert run(["build", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["status"] == "ok"
    assert run(["build"]) == 0
    assert "run coldforge tune OP, then coldforge freeze OP" in capfd.readouterr().out


def test_an_operator_without_a_study_is_said(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], naive_winner: WinnerFactory
) -> None:
    store_study(tmp_path / "home", naive_winner())
    line = call(capsys, "freeze", OPERATOR, "conv2d_mish", "--no-build", code=2)
    assert "nothing to freeze" in line
    assert "coldforge tune conv2d_mish first" in line
    assert load_winners(own) == []
    call(capsys, "freeze", OPERATOR, "--no-build")
    assert [winner.operator for winner in load_winners(own)] == [OPERATOR]
