# SPDX-License-Identifier: Apache-2.0
"""A disk that fills up and folders that may not be written: one line, and nothing measured is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_family import BEST, NAME
from tuning import Tuning

# Long on a machine that is busy with other things.
pytestmark = [pytest.mark.build, pytest.mark.timeout(900)]

SUPPORT = Path(__file__).parents[1] / "support"
GOOD = 12


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    enter = ["unshare", "-rm"]
    trial = [*enter, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(trial, capture_output=True, check=False).returncode:
        pytest.skip("this system mounts nothing for its users")
    command = [*enter, sys.executable, str(SUPPORT / "full_disk.py"), str(tmp_path), str(GOOD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen["kept"] >= 5
    assert seen["lost"] == []
    assert seen["outcomes"] == {"ok": GOOD}
    assert seen["steps"] == list(range(GOOD))
    assert seen["best"] == {"STEP": BEST, "FAULT": "none"}
    assert seen["damaged"] == []


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """Three configs measured."""
    tuning = Tuning(tmp_path_factory.mktemp("disks"), GOOD)
    assert tuning.run("--trials", "3")["outcomes"] == {"ok": 3}
    return tuning


@pytest.fixture
def locked(tuning: Tuning, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder under the home, which may not be written for the time of a test."""
    folder = tuning.home / request.param
    folder.mkdir(exist_ok=True)
    paths = [folder, *(folder.iterdir() if request.param == "." else folder.rglob("*"))]
    modes = {path: path.stat().st_mode for path in paths}
    for path in modes:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path, mode in modes.items():
        path.chmod(mode)


@pytest.mark.parametrize(
    ("locked", "expected"),
    [(".", "may not be written"), ("cache", "may not be written"), ("attempts", "may not be written")],
    indirect=["locked"],
)
def test_a_folder_that_may_not_be_written(tuning: Tuning, locked: Path, expected: str) -> None:
    before = tuning.rows()
    line = tuning.finish(tuning.start("--trials", "6"), code=2)["line"]
    assert expected in line
    assert str(tuning.home) in line
    assert tuning.rows() == before


@pytest.mark.parametrize("locked", ["."], indirect=True)
def test_a_home_that_may_only_be_read_is_read(tuning: Tuning, locked: Path) -> None:
    shown = tuning.finish(tuning.start(command=["show", NAME]))
    assert (shown["operator"], shown["outcomes"]) == (NAME, {"ok": 3})
    assert not list(tuning.scratch.iterdir())


def test_a_home_that_cannot_be_made(tuning: Tuning, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir(mode=0o555)
    tuning.environment["COLDFORGE_HOME"] = str(above / "home")
    try:
        assert str(above / "home") in tuning.finish(tuning.start(), code=2)["line"]
    finally:
        tuning.environment["COLDFORGE_HOME"] = str(tuning.home)


def test_a_package_that_may_not_be_written(tuning: Tuning, tmp_path: Path) -> None:
    freeze = ["freeze", NAME, "--package", "own", "--out", str(tmp_path), "--no-build"]
    assert tuning.finish(tuning.start(command=freeze))["operators"] == [NAME]
    with (tmp_path / "own" / "__init__.py").open("a") as stream:
        stream.write("# Something to put right.\n")
    files = {path: path.read_bytes() for path in (tmp_path / "own").rglob("*") if path.is_file()}
    folders = [tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        line = tuning.finish(tuning.start(command=freeze), code=1)["line"]
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert str(tmp_path) in line
    assert files == {path: path.read_bytes() for path in (tmp_path / "own").rglob("*") if path.is_file()}
    assert not list(tmp_path.glob(".*"))
