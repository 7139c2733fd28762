# SPDX-License-Identifier: Apache-2.0
"""Checks that a value which was read from a file (plain JSON) is made as it should be, so that a damaged or
altered file is one line that names the place, and not an error somewhere behind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Schema = Any
"""``TEXT``, ``INTEGER``, ``NUMBER``, ``BOOL``, ``WORD``; a mapping of required keys to schemas; ``Each``,
``Items``, ``Maybe``."""

TEXT, INTEGER, NUMBER, BOOL, WORD = (
    "a text",
    "a whole number",
    "a number",
    "true or false",
    "a number or word",
)


@dataclass(frozen=True)
class Each:
    """A mapping, each value of it made so."""

    of: Schema


@dataclass(frozen=True)
class Items:
    """A list, each item of it made so."""

    of: Schema


@dataclass(frozen=True)
class Maybe:
    """May be null; as a key's schema: may be left out too."""

    of: Schema


def fault(value: Any, schema: Schema, place: str = "") -> str:
    """What is wrong with ``value``, with its place; empty when nothing is."""
    match schema:
        case Maybe(of=of):
            return "" if value is None else fault(value, of, place)
        case Items(of=of):
            if not isinstance(value, list | tuple):
                return f"{place or 'it'} is no list"
            found = (fault(item, of, f"{place}[{index}]") for index, item in enumerate(value))
            return next(filter(None, found), "")
        case Each(of=of):
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                return f"{place or 'it'} is no mapping"
            found = (fault(item, of, _inside(place, key)) for key, item in value.items())
            return next(filter(None, found), "")
        case str():
            return "" if _is(value, schema) else f"{place or 'it'} is not {schema}"
    if not isinstance(value, Mapping):
        return f"{place or 'it'} is no mapping"
    for key, of in schema.items():
        if key not in value and not isinstance(of, Maybe):
            return f"{_inside(place, key)} is missing"
        if found := fault(value.get(key), of, _inside(place, key)):
            return found
    return ""


def _inside(place: str, key: str) -> str:
    return f"{place}.{key[:40]}" if place else key[:40]


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == BOOL
    whole = isinstance(value, int) and abs(value) < 2**63
    if kind == TEXT:
        return isinstance(value, str)
    if kind == INTEGER:
        return whole
    if kind == WORD:
        return whole or isinstance(value, str)
    return kind == NUMBER and (whole or (isinstance(value, float) and math.isfinite(value)))


def parse_json(text: str | bytes) -> Any:
    """The JSON document ``text``.

    Raises:
        ValueError: it is none; also when it is nested too deeply to be read, or no UTF-8.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
