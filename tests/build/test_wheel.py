# SPDX-License-Identifier: Apache-2.0
"""The wheel holds every tracked file of the packages: an editable install hides what a wheel lacks."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("codegen/", "templates/", "tuner/", "generated/")


def test_wheel_matches_the_tracked_files(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    for name in tracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([*command, str(tmp_path), str(tree)], check=True)
    (wheel,) = tmp_path.glob("coldforge-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {n.removeprefix("coldforge/") for n in archive.namelist() if n.startswith("coldforge/")}
    wanted = {
        name for name in tracked if name.startswith(PACKAGES) and not name.endswith((".md", ".gitignore"))
    }
    assert wanted - packed == set()
    assert packed - wanted == set()
