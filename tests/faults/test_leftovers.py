# SPDX-License-Identifier: Apache-2.0
"""What a killed process leaves half built: no reader takes it for whole, and the next run removes it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from coldforge.codegen.atomic import folder_aside, sweep, write_text
from coldforge.codegen.compile import Artifact, Cache, Resources
from coldforge.codegen.liveness import own_mark

KEY = "ab" + 62 * "0"
NOBODY = replace(own_mark(), pid=2**22 + 7)
ELSEWHERE = replace(own_mark(), host="00000000")

KILLED = """
import os, signal, sys
from pathlib import Path
from coldforge.codegen import atomic
from coldforge.codegen.compile import Cache

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
if sys.argv[2] == "write":
    atomic.os.replace = die
    atomic.write_text(folder / "file.txt", "new")
if sys.argv[2] == "build":
    Cache(folder).get_or_build(sys.argv[3], lambda work: (work / "kernel.so").write_text("half") and die())
"""


def _killed(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr


def test_a_killed_write_leaves_the_old_file_and_is_swept(tmp_path: Path) -> None:
    write_text(tmp_path / "file.txt", "old")
    _killed(str(tmp_path), "write")
    assert (tmp_path / "file.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    assert sweep(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_a_killed_build_is_no_entry_and_is_swept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    _killed(str(tmp_path), "build", KEY)
    assert cache.load(KEY) is None
    assert len(list((tmp_path / "ab").iterdir())) == 1

    def build(work: Path) -> Artifact:
        assert cache.sweep() == 1, "the dead one's folder, not this one"
        (work / "kernel.so").write_text("whole")
        return Artifact(work / "kernel.so", "digest", "name", Resources(), "code", "g++", (), 0.1)

    assert cache.get_or_build(KEY, build).path.read_text() == "whole"
    assert [path.name for path in (tmp_path / "ab").iterdir()] == [KEY]
    assert cache.sweep() == 0


def _old(path: Path) -> None:
    yesterday = time.time() - 25 * 3600
    os.utime(path, (yesterday, yesterday))


@pytest.mark.parametrize(
    ("name", "old", "goes"),
    [
        (f".x.{NOBODY}.abc.partial", False, True),
        (f".x.{own_mark()}.abc.partial", True, False),
        (f".x.{ELSEWHERE}.abc.partial", False, False),
        (f".x.{ELSEWHERE}.abc.partial", True, True),
        (".x.abc.partial", False, False),
        (".x.abc.partial", True, True),
        (f"x.{NOBODY}.abc.partial", True, False),
        (f".x.{NOBODY}.abc", True, False),
    ],
    # The names hold this process's id: they are others in each of pytest's workers.
    ids=["dead", "own", "elsewhere", "elsewhere, old", "unmarked", "unmarked, old", "shown", "whole"],
)
def test_what_goes(tmp_path: Path, name: str, old: bool, goes: bool) -> None:
    file, folder = tmp_path / name, tmp_path / "folders" / name
    file.write_text("")
    folder.mkdir(parents=True)
    (folder / "inside").write_text("")
    for path in (file, folder):
        if old:
            _old(path)
        assert sweep(path.parent) == goes
        assert path.exists() is not goes


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("")
    (tmp_path / f".x.{NOBODY}.abc.partial").symlink_to(tmp_path / "kept")
    assert sweep(tmp_path) == 1
    assert (tmp_path / "kept" / "file").exists()


def test_where_nothing_is(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none") == 0
    assert Cache(tmp_path / "none").sweep() == 0
    assert not (tmp_path / "none").exists()


def test_what_is_built_now_stays(tmp_path: Path) -> None:
    aside = folder_aside(tmp_path / "deep" / "name")
    assert sweep(aside.parent) == 0
    assert aside.is_dir()
