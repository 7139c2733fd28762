# SPDX-License-Identifier: Apache-2.0
"""Records in JSON: the results format T4, and `coldforge export --format json`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...codegen.errors import InputError
from ...codegen.plain import TEXT, Items, Maybe, fault, parse_json
from ..search.feasible import TEMPLATE
from .lines import ILLEGAL, Config, Line, time_of

_STUDY = {"trials": Items({"template": TEXT, "config": {}, "outcome": TEXT})}
_T4 = {
    "results": Items(
        {
            "configuration": {},
            "invalidity": Maybe(TEXT),
            "objectives": Maybe(Items(TEXT)),
            "measurements": Maybe(Items({"name": TEXT})),
        }
    )
}


def lines_of_json(path: Path, text: str) -> Iterator[Line]:
    """The lines of a T4 file, or of a study's export.

    Raises:
        InputError: it is neither.
    """
    try:
        document = parse_json(text)
    except ValueError as error:
        raise InputError(f"{path}: no JSON: {error}") from None
    if not isinstance(document, Mapping) or not ({"trials", "results"} & document.keys()):
        raise InputError(f"{path}: neither T4 (results) nor a study that coldforge exported (trials)")
    study = "trials" in document
    if wrong := fault(document, _STUDY if study else _T4):
        raise InputError(f"{path}: {wrong}")
    yield from _of_study(path, document["trials"]) if study else _of_t4(path, document["results"])


def _of_study(path: Path, trials: list[Any]) -> Iterator[Line]:
    for number, trial in enumerate(trials):
        where = f"{path}, trials[{number}]"
        if trial["outcome"] == ILLEGAL:
            continue
        time = time_of(trial.get("time_ms"), where) if trial["outcome"] == "ok" else math.nan
        yield {TEMPLATE: trial["template"], **_config(trial["config"], where)}, time


def _of_t4(path: Path, results: list[Any]) -> Iterator[Line]:
    for number, result in enumerate(results):
        where = f"{path}, results[{number}]"
        measured = {one["name"]: one.get("value") for one in result.get("measurements") or ()}
        if measured.get("outcome") == ILLEGAL:
            continue
        right = result.get("invalidity", "correct") == "correct" and result.get("correctness", 1) != 0
        time = math.nan
        if right:
            objective = (result.get("objectives") or ["time"])[0]
            time = time_of(measured.get(objective, measured.get("time")), where)
        yield _config(result["configuration"], where), time


def _config(found: Mapping[str, Any], where: str) -> Config:
    return {name: _value(value, f"{where}: {name[:40]}") for name, value in found.items()}


def _value(value: Any, where: str) -> int | float | str:
    """A parameter's value; true and false are 1 and 0, whole numbers whole.

    Raises:
        InputError: a list or mapping, or nothing.
    """
    if isinstance(value, bool | int):
        return int(value) if abs(value) < 2**63 else str(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value
    raise InputError(f"{where} is neither a number nor a word")
