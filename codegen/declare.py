# SPDX-License-Identifier: Apache-2.0
"""Strict reading of YAML declarations: safe loader, no duplicate keys, no unknown keys, errors that name
file and line."""

from __future__ import annotations

import re
import reprlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from .errors import DeclarationError
from .expr import Expr, parse

# Limits that no declaration of a person meets: a hostile one ends at once, with one line.
MAX_BYTES = 100_000
MAX_ITEMS = 1000
MAX_TEXT = 1000
MAX_AXES = 8
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice (plain YAML keeps the last one silently) and aliases
    (billion laughs)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()
            raise yaml.constructor.ConstructorError(None, None, "aliases are not allowed", event.start_mark)
        return super().compose_node(parent, index)


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"key {brief(key)} is not text", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {brief(key)} given twice", key_node.start_mark
            )
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


def _plain(loader: _StrictLoader, node: yaml.Node) -> Any:
    """What SafeLoader makes of a scalar; its constructors fail in ways of their own where a tag is put on a
    text of another kind (``!!bool maybe``, ``!!int ''``)."""
    construct = yaml.SafeLoader.yaml_constructors[node.tag]
    try:
        return construct(loader, node)
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
        kind = node.tag.rpartition(":")[2]
        raise yaml.constructor.ConstructorError(
            None, None, f"{brief(node.value)} is no {kind}", node.start_mark
        ) from None


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
for _kind in ("bool", "int", "float", "timestamp"):
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _plain)


def load_mapping(path: Path) -> dict[str, Any]:
    """The mapping that the YAML file ``path`` holds.

    Raises:
        DeclarationError: the file is missing, too large, malformed, or not a mapping.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DeclarationError(f"cannot read {path}: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise DeclarationError(f"{path}: {len(raw)} bytes; a declaration has at most {MAX_BYTES}")
    try:
        document = yaml.load(raw.decode("utf-8"), Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DeclarationError(f"{path}{line}: malformed YAML: {error.problem}") from None
    except RecursionError:
        raise DeclarationError(f"{path}: malformed YAML: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise DeclarationError(f"{path}: malformed YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise DeclarationError(f"{path}: expected a mapping at the top, got {type(document).__name__}")
    return document


def check_keys(
    value: Any, where: str, required: Iterable[str] = (), optional: Iterable[str] = ()
) -> dict[str, Any]:
    """``value`` as a mapping that has every required key and no unknown one.

    Raises:
        DeclarationError: it is no mapping, or a key is missing or unknown.
    """
    required, optional = list(required), list(optional)
    if not isinstance(value, dict):
        raise DeclarationError(f"{where}: expected a mapping, got {brief(value)}")
    missing = [key for key in required if key not in value]
    if missing:
        raise DeclarationError(f"{where}: missing key {missing[0]!r}; required: {_listed(required)}")
    unknown = [key for key in value if key not in required and key not in optional]
    if unknown:
        raise DeclarationError(
            f"{where}: unknown key {brief(unknown[0])}; known: {_listed(required + optional)}"
        )
    return value


def _listed(names: list[str]) -> str:
    """Names for a message; not all of very many."""
    return ", ".join(names[:40]) + (", ..." if len(names) > 40 else "")


def _check_count(value: dict[str, Any] | list[Any], where: str) -> None:
    if len(value) > MAX_ITEMS:
        raise DeclarationError(f"{where}: {len(value)} items; at most {MAX_ITEMS} are allowed")


def check_named(value: Any, where: str) -> dict[str, Any]:
    """``value`` as a mapping whose keys are identifiers."""
    if not isinstance(value, dict):
        raise DeclarationError(f"{where}: expected a mapping of names, got {brief(value)}")
    _check_count(value, where)
    for key in value:
        check_identifier(key, where)
    return value


def check_identifier(value: Any, where: str) -> str:
    """``value`` as an identifier that is also safe as a C++ name and a file name."""
    if not isinstance(value, str) or not IDENTIFIER.match(value) or len(value) > 80:
        raise DeclarationError(
            f"{where}: {brief(value)} is not a name (a letter, then letters, digits and _)"
        )
    return value


def check_text(value: Any, where: str) -> str:
    """``value`` as one line of text."""
    if not isinstance(value, str) or not value.strip() or not value.strip().isprintable():
        raise DeclarationError(f"{where}: expected one line of text, got {brief(value)}")
    if len(value) > MAX_TEXT:
        raise DeclarationError(f"{where}: a text of {len(value)} characters; at most {MAX_TEXT} are allowed")
    return value.strip()


def check_list(value: Any, where: str) -> list[Any]:
    """``value`` as a list that is not empty."""
    if not isinstance(value, list) or not value:
        raise DeclarationError(f"{where}: expected a list that is not empty, got {brief(value)}")
    _check_count(value, where)
    return value


def check_shape(value: Any, where: str) -> tuple[Expr, ...]:
    """``value`` as the extents of a tensor: a list of expressions."""
    extents = check_list(value, where)
    if len(extents) > MAX_AXES:
        raise DeclarationError(f"{where}: {len(extents)} axes; at most {MAX_AXES} are allowed")
    return tuple(check_expression(item, where) for item in extents)


def check_number(value: Any, where: str) -> float:
    """``value`` as a finite number (a bool is none)."""
    # The bound is that of a double: YAML's whole numbers have none.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise DeclarationError(f"{where}: expected a number, got {brief(value)}")
    return float(value)


def check_int(value: Any, where: str, low: int, high: int = 2**31 - 1) -> int:
    """``value`` as a whole number in ``low..high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise DeclarationError(f"{where}: {brief(value)} is not a whole number from {low} to {high}")
    return value


def check_expression(value: Any, where: str) -> Expr:
    """``value`` as an expression; a plain number is one too."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise DeclarationError(f"{where}: expected an expression, got {brief(value)}")
    try:
        return parse(str(value))
    except DeclarationError as error:
        raise DeclarationError(f"{where}: {error}") from None


def brief(value: Any) -> str:
    """``value`` as a message shows it: at most 60 characters."""
    text = reprlib.repr(value) if isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
