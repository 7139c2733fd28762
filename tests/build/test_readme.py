# SPDX-License-Identifier: Apache-2.0
"""The README's examples run, in a copy of the tree and in the order in which they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("codegen", "templates", "tuner", "generated")
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Fewer trials than the README names: the command is what is tested here, not the search.
SHORTER = {"--trials 40": "--trials 2"}


def _blocks(language: str) -> list[str]:
    return [text for kind, text in _BLOCK.findall((ROOT / "README.md").read_text()) if kind == language]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of the files that git does not ignore, importable as `coldforge`, with its own state folder."""
    folder = tmp_path_factory.mktemp("readme")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, names.split("\0")):
        source = ROOT / name
        if source.is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_bytes(source.read_bytes())
    (folder / "site" / "coldforge").mkdir(parents=True)
    for package in PACKAGES:
        (folder / "site" / "coldforge" / package).symlink_to(folder / "tree" / package)
    env = {**os.environ, "PYTHONPATH": str(folder / "site"), "COLDFORGE_HOME": str(folder / "home")}
    return folder / "tree", env


def _python(code: str, checkout: tuple[Path, dict[str, str]], *arguments: str) -> str:
    tree, env = checkout
    command = [sys.executable, "-W", "error::UserWarning", "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=tree, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.build
@pytest.mark.parametrize("block", _blocks("python"), ids=range(len(_blocks("python"))))
def test_python(block: str, checkout: tuple[Path, dict[str, str]]) -> None:
    _python(block, checkout)


@pytest.mark.build
def test_console(checkout: tuple[Path, dict[str, str]]) -> None:
    lines = [line for block in _blocks("console") for line in block.splitlines()]
    commands = [line.removeprefix("$ coldforge ") for line in lines if line.startswith("$ coldforge ")]
    assert len(commands) >= 8
    for command in commands:
        for long, short in SHORTER.items():
            command = command.replace(long, short)
        _python("from coldforge.tuner.cli import main; main()", checkout, *shlex.split(command))


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\$ make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
