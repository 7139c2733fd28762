# SPDX-License-Identifier: Apache-2.0
"""The versions that name a study."""

from __future__ import annotations

from pathlib import Path

import pytest
from coldforge.codegen.errors import ToolMissing
from coldforge.codegen.target import Target
from coldforge.tuner import backends

CPU = Target("cpu", "x86-64-v3", "a CPU", {"threads": 2})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n",
            "580.95.05",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n", "570.86.15"),
        ("something else\n", ""),
    ],
)
def test_cuda_driver(text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(backends, "_DRIVER_FILE", tmp_path / "version")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert backends._cuda_driver() == expected


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDFORGE_CXX", "no-such-compiler")
    with pytest.raises(ToolMissing, match="no-such-compiler"):
        backends.toolchain_of(CPU)


def test_what_judges_a_variant_is_part_of_the_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    before = backends._judging_digest()
    monkeypatch.setattr(backends, "_JUDGING_FILES", ("inputs.py",))
    assert backends._judging_digest() != before
