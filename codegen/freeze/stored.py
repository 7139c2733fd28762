# SPDX-License-Identifier: Apache-2.0
"""A winner's fields as they come out of a study, a manifest or a bundle, checked one by one: what is frozen
is read by many parts, and each may rely on their kinds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..plain import BOOL, INTEGER, NUMBER, TEXT, WORD, Each, Items, Maybe, fault
from .winner import OTHER_SIZES, Winner

_SCHEMA = {
    **dict.fromkeys(("operator", "family", "template", "operator_digest", "dtype", "precision"), TEXT),
    **dict.fromkeys(("workload_name", "source_text", "source_name", "source_digest", "compiler"), TEXT),
    "study": TEXT,
    "target": {"kind": TEXT, "arch": TEXT, "device": TEXT, "attributes": Each(INTEGER)},
    "specialisation": {"dtype": Maybe(TEXT)},
    "workload": Each(INTEGER),
    "config": Each(WORD),
    "launch": Each(TEXT),
    "derived": Each(TEXT),
    "flags": Items(TEXT),
    "resources": Each(INTEGER),
    "measurement": {
        "time_ms": NUMBER,
        **dict.fromkeys(("floor_ms", "error", "bound_ratio"), Maybe(NUMBER)),
        OTHER_SIZES: Maybe(Items({"sizes": Each(INTEGER), "time_ms": NUMBER})),
    },
    **dict.fromkeys(("verified", "portable_only"), BOOL),
}
_KINDS = ("cuda", "cpu")
_LARGEST = 2**31 - 1  # of a size, for a kernel
_WORKLOAD = re.compile(r"[A-Za-z0-9_]*\+?\Z")


def checked_winner(values: Mapping[str, Any], where: str) -> Winner:
    """The winner of these fields.

    Args:
        values: every field; ``verified`` may be missing.
        where: what a message calls the place they come from.

    Raises:
        InputError: a field is missing or of another kind.
    """
    values = {"verified": True, "portable_only": False, **values}
    wrong = fault(values, _SCHEMA)
    if not wrong:
        fixed = {name: value for name, value in values["specialisation"].items() if name != "dtype"}
        wrong = fault(fixed, Each(INTEGER), "specialisation")
    if not wrong and values["target"]["kind"] not in _KINDS:
        wrong = f"target.kind is not {' or '.join(_KINDS)}"
    if not wrong and not _WORKLOAD.match(values["workload_name"]):
        wrong = "workload_name is no name"
    if not wrong and not values["target"]["device"].isprintable():
        wrong = "target.device is no line of text"
    if not wrong and not isinstance(values.get("binary"), bytes | None):
        wrong = "binary is no binary"
    if not wrong and not isinstance(values.get("ptx"), str | None):
        wrong = "ptx is no text"
    if not wrong:
        wrong = _fault_of_rows(values["workload"], values["specialisation"], values["measurement"])
    if wrong:
        raise InputError(f"{where}: malformed entry: {wrong}")
    return Winner(**{**values, "binary": values.get("binary"), "flags": tuple(values["flags"])})


def _fault_of_rows(
    workload: Mapping[str, Any], specialisation: Mapping[str, Any], measurement: Mapping[str, Any]
) -> str:
    """What is wrong with the measurements at other sizes: dispatch believes them."""
    names = set(workload) - set(specialisation)
    rows: list[dict[str, Any]] = list(measurement.get(OTHER_SIZES) or [])
    for index, row in enumerate(rows):
        place = f"measurement.{OTHER_SIZES}[{index}]"
        if set(row["sizes"]) != names:
            return f"{place}.sizes are not those of {', '.join(sorted(names))}"
        if not all(1 <= size <= _LARGEST for size in row["sizes"].values()):
            return f"{place}.sizes has one that no kernel takes"
        if row["time_ms"] <= 0:
            return f"{place}.time_ms is not above zero"
    return ""
