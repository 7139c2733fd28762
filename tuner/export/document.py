# SPDX-License-Identifier: Apache-2.0
"""A study as one JSON document: everything that it holds but the winner's text and binary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .rows import Export, Row

FORMAT, VERSION = "coldforge-study", 1


def to_document(export: Export) -> dict[str, Any]:
    """The study in plain JSON: `format`, `version`, `about`, `summary` (with the finals) and `trials`."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "about": dict(export.about),
        "summary": dict(export.summary),
        "trials": [_trial(row) for row in export.rows],
    }


def _trial(row: Row) -> dict[str, Any]:
    finals: Mapping[str, Any] = row.finals or {}
    return {
        "trial": row.number,
        "completed": row.completed,
        "seconds_in_all": row.seconds,
        **row.result.to_dict(),
        "standing": finals.get("standing"),
        "chosen": finals.get("chosen", False) if finals else False,
    }
