# SPDX-License-Identifier: Apache-2.0
"""A study in T4, the results format of the auto-tuning community (schema "Open Autotuning Results Schema",
version 1.0.0).

What the schema leaves open is filled as Kernel Tuner's files have it: all times in milliseconds, which the
metadata say; one objective, `time`, and of each measured config a measurement of that name. `correctness` is
1 for what was verified against float64 before and after it was timed, and 0 for all else: what is wrong, and
what never came so far that its results could be judged. The schema has six words for what became of a
config; `outcome` and `reason` among the measurements say it in coldforge's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..outcome import TrialOutcome
from ..study import SPILLED
from .rows import Export, Row

SCHEMA_VERSION = "1.0.0"
TEMPLATE = "template"
"""The configuration's name for the template, which is a choice like any other."""

_INVALIDITY = {
    TrialOutcome.OK: "correct",
    TrialOutcome.ILLEGAL: "constraints",
    TrialOutcome.COMPILE_ERROR: "compile",
    TrialOutcome.RESOURCE_LIMIT: "runtime",  # the device refused to load or launch it
    TrialOutcome.WRONG_RESULT: "correctness",
    TrialOutcome.TIMEOUT: "timeout",
    TrialOutcome.CRASH: "runtime",
}
_UNITS = {"time": "ms", "warm_ms": "ms", "floor_ms": "ms"}


def to_t4(export: Export) -> dict[str, Any]:
    """The study as a T4 results document, plain JSON."""
    about, summary = export.about, export.summary
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": {
            "timeunit": "milliseconds",
            "tuner": f"coldforge {about.get('coldforge', '')}".strip(),
            **{name: summary[name] for name in ("study", "operator", "workload", "problem", "precision")},
            "device": summary["device"],
            "target": summary["target"],
            "arch": summary["arch"],
            "compiler": summary["compiler"],
            "driver": summary["driver"],
        },
        "results": [_result(row) for row in export.rows],
    }


def _result(row: Row) -> dict[str, Any]:
    result = row.result
    found: dict[str, Any] = {
        "timestamp": row.completed,
        "configuration": {TEMPLATE: result.template, **result.config},
        "objectives": ["time"],
        "times": _times(row),
        "invalidity": invalidity(row),
        "correctness": 1 if result.ok else 0,
        "measurements": [_measurement(name, value) for name, value in _measured(row).items()],
    }
    if not row.completed:
        del found["timestamp"]
    return found


def invalidity(row: Row) -> str:
    """The schema's word for what became of a trial."""
    # Not run, since its kernel spills more registers than the run allows.
    if row.result.outcome is TrialOutcome.RESOURCE_LIMIT and row.detail(SPILLED) is not None:
        return "constraints"
    return _INVALIDITY[row.result.outcome]


def _times(row: Row) -> dict[str, Any]:
    """Milliseconds by phase, under the schema's names and, where it has none or readers use others, those of
    Kernel Tuner's files. Phases that a config never reached took none."""
    compile_s = row.detail("compile_s")
    compiled = 1e3 * compile_s if isinstance(compile_s, int | float) else 0.0
    phases = {name: 1e3 * (row.phase_s(name) or 0.0) for name in _PHASES}
    benchmark = phases["time"] + phases["warm"]
    validation = phases["verify"] + phases["after"]
    return {
        "compilation_time": compiled,
        "compilation": compiled,
        "runtimes": list(row.result.samples_ms),
        "benchmark": benchmark,
        "validation": validation,
        "framework": sum(phases.values()) - benchmark - validation,
        "search_algorithm": 0.0,
    }


_PHASES = ("prepare", "load", "verify", "bind", "quiet", "time", "warm", "after")


def _measured(row: Row) -> dict[str, Any]:
    result = row.result
    found: dict[str, Any] = {"time": result.time_ms} if result.ok else {}
    found |= {name: row.detail(name) for name in ("warm_ms", "floor_ms")}
    found |= {"error": result.error, "bound_ratio": result.bound_ratio}
    found |= dict(result.resources)
    # The schema has numbers, words and lists, but no truth values.
    given_up = row.detail("given_up")
    found["given_up"] = int(given_up) if isinstance(given_up, bool) else None
    same: Any = row.detail("same_code_as")
    found["same_code_as"] = str(same) if same is not None else None
    finals: Mapping[str, Any] = row.finals or {}
    found |= {"final_time": finals.get("time_ms"), "standing": finals.get("standing")}
    found |= {"outcome": result.outcome.value, "reason": result.reason or None}
    return {name: value for name, value in found.items() if value is not None}


def _measurement(name: str, value: Any) -> dict[str, Any]:
    unit = "ms" if name == "final_time" else _UNITS.get(name, "bytes" if name.endswith("_bytes") else "")
    return {"name": name, "value": value, "unit": unit}
