# SPDX-License-Identifier: Apache-2.0
"""The wheel holds every tracked file of the packages: an editable install hides what a wheel lacks."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("codegen/", "templates/", "tuner/", "generated/")


def _tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    for name in _tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([*command, str(folder), str(tree)], check=True)
    (found,) = folder.glob("coldforge-*.whl")
    return found


def test_wheel_matches_the_tracked_files(wheel: Path) -> None:
    tracked = _tracked()
    with zipfile.ZipFile(wheel) as archive:
        packed = {n.removeprefix("coldforge/") for n in archive.namelist() if n.startswith("coldforge/")}
    wanted = {
        name for name in tracked if name.startswith(PACKAGES) and not name.endswith((".md", ".gitignore"))
    }
    assert wanted - packed == set()
    assert packed - wanted == set()


def test_installed_where_there_is_no_compiler(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    environment = {
        "PYTHONPATH": str(place),
        "PATH": "",
        "HOME": str(tmp_path),
        "COLDFORGE_HOME": str(tmp_path),
    }

    def run(code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    done = run(
        "import torch, coldforge.generated as g\n"
        "assert 'site-packages' in g.__file__\n"
        "print(g.conv2d_divide_leaky_relu(torch.ones(1, 8, 4, 4), torch.ones(64, 8, 3, 3), None).shape)"
    )
    assert done.stdout.strip() == "torch.Size([1, 64, 2, 2])", done.stderr
    assert "it is installed without an extension, and an installed package never builds one" in done.stderr
    main = "import sys; from coldforge.tuner.cli import main; sys.argv = ['coldforge', *{!r}]; main()"
    tune = ["tune", "conv2d_divide_leaky_relu", "--target", "cpu", "--trials", "1"]
    for command in (tune, ["build"]):
        done = run(main.format(command))
        assert done.returncode != 0
        assert "g++" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
