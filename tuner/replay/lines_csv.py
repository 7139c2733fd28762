# SPDX-License-Identifier: Apache-2.0
"""Records in CSV: the compact form, and `coldforge export --format csv`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path

from ...codegen.errors import InputError
from ..search.feasible import TEMPLATE
from .lines import ILLEGAL, Line, time_of

TIME = "time_ms"
_CONFIG = "config."
_LONGEST_NUMBER = 30


def lines_of_csv(path: Path, text: str) -> Iterator[Line]:
    """The lines of a compact CSV, or of a study's.

    Raises:
        InputError: it is none.
    """
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None
    names = rows[0] if rows else []
    if TIME not in names or len(set(names)) < len(names):
        raise InputError(f"{path}: no recorded space; the first line names parameters, each once, and {TIME}")
    own = any(name.startswith(_CONFIG) for name in names)
    parameters = _own_columns(names) if own else dict(enumerate(names[: names.index(TIME)]))
    if not parameters:
        raise InputError(f"{path}: the parameters stand before {TIME}, and none does")
    for number, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        if len(row) != len(names):
            raise InputError(f"{path}, line {number}: {len(row)} cells, not {len(names)}")
        outcome = dict(zip(names, row, strict=True)).get("outcome") if own else None
        if outcome == ILLEGAL:  # refused by the space: no config of it
            continue
        # An empty cell of a study's parameter is one that the config's template lacks.
        config = {name: _value(row[at]) for at, name in parameters.items() if row[at] or not own}
        yield config, time_of(row[names.index(TIME)], f"{path}, line {number}")


def _own_columns(names: list[str]) -> dict[int, str]:
    found = {at: name[len(_CONFIG) :] for at, name in enumerate(names) if name.startswith(_CONFIG)}
    return {names.index(TEMPLATE): TEMPLATE, **found} if TEMPLATE in names else found


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) and len(text) <= _LONGEST_NUMBER else text
    return text
