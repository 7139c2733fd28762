# SPDX-License-Identifier: Apache-2.0
"""Studies that have a winner, and the freeze command as a test calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from coldforge.codegen.freeze import Winner
from coldforge.tuner.cli import run
from coldforge.tuner.storage import open_storage
from coldforge.tuner.winners import winner_to_dict


def store_study(home: Path, winner: Winner, name: str = "a study") -> None:
    """A study in ``home`` that has this winner."""
    study = optuna.create_study(storage=open_storage(None, home), study_name=name)
    study.set_user_attr("about", {"operator": winner.operator, "created": "2026-01-01T00:00:00+00:00"})
    study.set_user_attr(
        "winner", {"trials": 1, "final": True, "time_ms": 1.0, "winner": winner_to_dict(winner)}
    )


def call(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """Runs a command with --json; its document, or the one line that it printed on stderr."""
    assert run([*arguments, "--json"]) == code
    said = capsys.readouterr()
    if code == 2:
        (line,) = said.err.splitlines()
        return line
    return json.loads(said.out)
