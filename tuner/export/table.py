# SPDX-License-Identifier: Apache-2.0
"""A study as CSV: one line a trial, one column a figure, an empty cell where there is none."""

from __future__ import annotations

import csv
import io
from typing import Any

from .rows import Export, Row

_FIRST = ("trial", "completed", "template")
_OUTCOME = ("outcome", "reason", "time_ms", "warm_ms", "floor_ms", "samples", "given_up")
_ERRORS = ("error", "bound_ratio")
_LAST = ("code_digest", "same_code_as", "seconds", "compile_s", "verify_s", "time_s")
_FINALS = ("standing", "chosen", "final_ms", "final_low_ms", "final_high_ms")
_FINALS_RATIO = ("final_ratio", "final_ratio_low", "final_ratio_high")


def to_csv(export: Export) -> str:
    """The trials as CSV (RFC 4180, UTF-8, a line of names first). Parameters are `config.NAME`, what the
    compiler reported `resources.NAME`; the columns of the finals are filled for finalists alone.
    """
    config = [f"config.{name}" for name in export.parameters]
    resources = [f"resources.{name}" for name in export.resources]
    names = [*_FIRST, *config, *_OUTCOME, *_ERRORS, *resources, *_LAST, *_FINALS, *_FINALS_RATIO]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="")
    writer.writeheader()
    for row in export.rows:
        writer.writerow({name: _cell(value) for name, value in _figures(row).items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else value


def _figures(row: Row) -> dict[str, Any]:
    result = row.result
    figures: dict[str, Any] = {
        "trial": row.number,
        "completed": row.completed,
        "template": result.template,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "time_ms": result.time_ms,
        "samples": len(result.samples_ms) or None,
        "error": result.error,
        "bound_ratio": result.bound_ratio,
        "code_digest": result.code_digest,
        "seconds": row.seconds,
        "verify_s": row.phase_s("verify"),
        "time_s": row.phase_s("time"),
    }
    figures |= {n: row.detail(n) for n in ("warm_ms", "floor_ms", "given_up", "same_code_as", "compile_s")}
    figures |= {f"config.{name}": value for name, value in result.config.items()}
    figures |= {f"resources.{name}": value for name, value in result.resources.items()}
    return figures | _finals(row)


def _finals(row: Row) -> dict[str, Any]:
    if row.finals is None:
        return {}
    low, high = row.finals.get("ci95_ms") or (None, None)
    ratio = row.finals.get("ratio_ci95") or (None, None)
    figures: list[Any] = [row.finals.get("standing"), row.finals.get("chosen"), row.finals["time_ms"]]
    figures += [low, high, row.finals.get("ratio"), *ratio]
    return dict(zip((*_FINALS, *_FINALS_RATIO), figures, strict=True))
