# SPDX-License-Identifier: Apache-2.0
"""freeze --survey: every kernel of this device timed at the sizes of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from coldforge.codegen.freeze import GENERATED, Winner, load_winners
from coldforge.codegen.target import Target, detect
from coldforge.tuner.cli import run
from freezing import call, store_study

pytestmark = pytest.mark.build

OPERATOR = "conv2d_divide_leaky_relu"
SMALL, LARGE = {"N": 1, "H": 9, "W": 12}, {"N": 2, "H": 40, "W": 33}


@pytest.fixture
def here() -> Target:
    return detect("cpu")


@pytest.fixture
def studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naive_winner: Callable[..., Winner], here: Target
) -> Path:
    """A home with winners of two sizes on this machine, of another size on another one, and one that covers
    other channels."""
    home = tmp_path / "home"
    monkeypatch.setenv("COLDFORGE_HOME", str(home))
    for name, device, shape in (
        ("small", here.device, SMALL),
        ("large", here.device, LARGE),
        ("elsewhere", "Another CPU", {"N": 3, "H": 20, "W": 20}),
        ("other channels", here.device, {**SMALL, "C_in": 3}),
    ):
        store_study(home, naive_winner(shape, arch=here.arch, device=device, study=name), name)
    return home


def _rows(folder: Path) -> dict[tuple[int, ...], Any]:
    """Of this test's entries: sizes and channels -> what was measured at other sizes."""
    entries = json.loads((folder / "manifest.json").read_text())["entries"]
    delivered = {w.name for w in load_winners(GENERATED)}
    return {
        tuple(e["workload"][n] for n in ("N", "H", "W", "C_in")): e["measurement"].get("other_sizes")
        for e in entries
        if e["name"] not in delivered
    }


def test_each_kernel_is_timed_at_the_sizes_of_the_others(
    studies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("freeze", OPERATOR, "--package", "cf_surveyed", "--out", str(tmp_path))
    report = call(capsys, *arguments, "--survey")
    assert report["status"] == "ok"
    found = _rows(tmp_path / "cf_surveyed")
    for sizes in ((1, 9, 12, 8), (2, 40, 33, 8)):
        assert sorted((r["sizes"] for r in found[sizes]), key=lambda of: of["N"]) == [SMALL, LARGE]
        assert all(0 < row["time_ms"] < 1000 for row in found[sizes])
    table = (tmp_path / "cf_surveyed" / "kernels" / "table.cpp").read_text()
    times = [row["time_ms"] for rows in found.values() for row in rows or ()]
    assert len(times) == 4
    assert all(f", {time_ms!r}, " in table for time_ms in times)
    assert found[3, 20, 20, 8] is None  # of another device
    assert found[1, 9, 12, 3] is None  # nothing else computes the same calls
    # Frozen again without a survey, what was measured stays.
    again = call(capsys, *arguments)
    assert {entry["what"] for entry in again["entries"]} == {"kept"}
    assert not again["changed"]
    assert _rows(tmp_path / "cf_surveyed") == found


def test_a_survey_needs_a_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["freeze", OPERATOR, "--survey", "--no-build"]) == 2
    assert "--survey times what was built" in capsys.readouterr().err
