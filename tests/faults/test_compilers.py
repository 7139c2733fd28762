# SPDX-License-Identifier: Apache-2.0
"""What ends a compiler from outside is not held against the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from coldforge.codegen.compile.host import run_compiler
from coldforge.codegen.errors import ColdforgeError, CompileError

KILLED_PART = "g++: fatal error: Killed signal terminated program cc1plus"


def _compiler(folder: Path, first: str, then: str = "exit 0") -> list[str]:
    """A compiler that behaves differently at its second call."""
    path = folder / "cxx"
    path.write_text(f"#!/bin/sh\nif [ ! -e called ]; then touch called\n{first}\nfi\ntouch again\n{then}\n")
    path.chmod(0o755)
    return [str(path)]


@pytest.mark.parametrize("end", ["kill -KILL $$", f"echo '{KILLED_PART}'; exit 1"])
def test_one_that_was_killed_runs_again(tmp_path: Path, end: str) -> None:
    assert run_compiler(_compiler(tmp_path, end, "echo built"), tmp_path, 20, "v") == "built\n"


def test_one_that_is_always_killed_is_an_outcome(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"^v: the compiler ended with status -9$"):
        run_compiler(_compiler(tmp_path, "", "kill -KILL $$"), tmp_path, 20, "v")


@pytest.mark.parametrize("end", ["kill -SEGV $$", "echo 'a.cpp:1: error: no'; exit 1"])
def test_a_crash_or_a_refusal_is_not_tried_again(tmp_path: Path, end: str) -> None:
    with pytest.raises(CompileError):
        run_compiler(_compiler(tmp_path, end), tmp_path, 20, "v")
    assert not (tmp_path / "again").exists()


def test_a_full_disk_is_no_fault_of_the_source(tmp_path: Path) -> None:
    full = "echo 'as: kernel.o: error: No space left on device'; exit 1"
    with pytest.raises(
        ColdforgeError, match=rf"^cannot compile in {tmp_path.parent}: no space left"
    ) as caught:
        run_compiler(_compiler(tmp_path, full), tmp_path, 20, "v")
    assert not isinstance(caught.value, CompileError)
