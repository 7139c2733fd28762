# SPDX-License-Identifier: Apache-2.0
"""Whether a manifest is made as the runtime reads it. A damaged one is one line, and the reference answers.

File names and flags get into a build: they are words of a safe alphabet, and nothing outside of the package.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

MAX_ELEMENTS = 2**28
"""Of a tensor that a variant is checked with."""

_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FLAG = re.compile(r"-[A-Za-z0-9_=+,.-]+\Z")
_DTYPES = ("fp32", "fp16", "bf16")
_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


def fault(data: Mapping[str, Any]) -> str:
    """What is wrong with a manifest, with its place; empty when nothing is."""
    for key, kind in (("entries", list), ("units", list), ("files", dict)):
        if not isinstance(data.get(key), kind):
            return f"{key!r} is missing or of another kind"
    for name, digest in data["files"].items():
        if not _FILE.match(name) or not _matches(_DIGEST, digest):
            return f"files: {name[:80]!r} is no file with its digest"
    for place, check in (("entries", _entry), ("units", _unit)):
        for index, item in enumerate(data[place]):
            wrong = check(item, data["files"]) if isinstance(item, dict) else "it is no mapping"
            if wrong:
                return f"{place}[{index}]: {wrong}"
    names = [entry["name"] for entry in data["entries"]]
    return "a name stands twice in 'entries'" if len(set(names)) != len(names) else ""


def _entry(entry: Mapping[str, Any], files: Mapping[str, str]) -> str:
    target = entry.get("target")
    if not isinstance(entry.get("name"), str) or not isinstance(entry.get("operator"), str):
        return "its name or operator is missing"
    if not isinstance(target, dict) or target.get("kind") not in ("cpu", "cuda"):
        return "target.kind is neither cpu nor cuda"
    if not isinstance(target.get("arch"), str) or not isinstance(entry.get("verified"), bool):
        return "target.arch or verified is missing"
    if entry.get("dtype") not in _DTYPES or entry.get("precision") not in _PRECISIONS:
        return "its dtype or precision is unknown"
    if not isinstance(entry.get("attributes"), dict) or not isinstance(entry.get("checks"), list):
        return "attributes or checks are missing"
    if not all(_is_whole(value) or _is_sizes(value) for value in entry["attributes"].values()):
        return "an attribute is no whole number"
    for shapes in entry["checks"]:
        if not isinstance(shapes, dict) or not all(s is None or _is_shape(s) for s in shapes.values()):
            return "checks: a shape is none"
    return ""


def _unit(unit: Mapping[str, Any], files: Mapping[str, str]) -> str:
    if not isinstance(unit.get("source"), str) or unit["source"] not in files:
        return "its source is none of 'files'"
    if not _matches(_SYMBOL, unit.get("symbol")) or not isinstance(unit.get("machine"), str):
        return "its symbol or machine is missing"
    flags = unit.get("flags")
    if not isinstance(flags, list) or not all(_matches(_FLAG, flag) for flag in flags):
        return "a flag is none"
    return ""


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.match(value) is not None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_whole, value))


def _is_shape(value: Any) -> bool:
    return _is_sizes(value) and min(value, default=1) > 0 and math.prod(value) <= MAX_ELEMENTS
