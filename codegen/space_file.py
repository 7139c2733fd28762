# SPDX-License-Identifier: Apache-2.0
"""Reads a space file: strictly, with every name checked, so that a mistake is one line that names the
part."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import declare
from .errors import DeclarationError
from .family import parse_rules
from .names import RESERVED
from .shorthand import space_in_full
from .space import Config, Parameter, Space
from .target import attribute_names

MAX_CARTESIAN = 5_000_000
MAX_PARAMETERS = 64
_REQUIRED = ("parameters", "launch")
_OPTIONAL = ("template", "target", "archs", "file", "default", "fallbacks", "derived", "constraints")
_ANYWHERE = ("workspace_bytes", "zeroed_bytes", "work")
_LAUNCH = {
    "cuda": (
        ("grid", "block", "shared_bytes"),
        (*_ANYWHERE, "finish_grid", "finish_block", "finish_shared_bytes"),
    ),
    "cpu": (("units", "grain"), (*_ANYWHERE, "finish_units", "finish_grain")),
}
# An optional launch key -> what it means nothing without.
_LAUNCH_NEEDS = {
    "zeroed_bytes": "workspace_bytes",
    "finish_grid": "finish_block",
    "finish_block": "finish_grid",
    "finish_shared_bytes": "finish_grid",
    "finish_grain": "finish_units",
}


def load_space(path: Path, family: str, values: Iterable[str] | None = None) -> Space:
    """Reads ``space.<template>.<target>.yaml``, or a space file of another name.

    Args:
        path: the file; templates stand beside it.
        family: the family's name.
        values: the names of the family's values, to check every expression with; None leaves that out.

    Raises:
        DeclarationError: it is malformed; the message names the part.
    """
    where = f"{family}/{path.name}"
    doc = declare.check_keys(declare.load_mapping(path), where, _REQUIRED, _OPTIONAL)
    doc = space_in_full(doc, path.parent, where)
    kind = doc["target"]
    must, may = _LAUNCH[kind]
    launch = declare.check_keys(doc["launch"], f"{where}: launch", must, may)
    for key, needed in _LAUNCH_NEEDS.items():
        if key in launch and needed not in launch:
            raise DeclarationError(f"{where}: launch: {key} needs {needed} beside it")
    file = _beside(path, declare.check_text(doc["file"], f"{where}: file"), where)
    archs = declare.check_list(doc["archs"], f"{where}: archs")
    space = Space(
        family=family,
        template=declare.check_identifier(doc["template"], f"{where}: template"),
        kind=kind,
        archs=tuple(declare.check_text(a, f"{where}: archs") for a in archs),
        file=file,
        parameters=tuple(_parameter(n, v, f"{where}: parameters.{n}") for n, v in doc["parameters"].items()),
        derived={
            n: declare.check_expression(v, f"{where}: derived.{n}")
            for n, v in declare.check_named(doc.get("derived", {}), f"{where}: derived").items()
        },
        constraints=parse_rules(doc.get("constraints", []), f"{where}: constraints"),
        launch_exprs={n: declare.check_expression(v, f"{where}: launch.{n}") for n, v in launch.items()},
    )
    _check_size(space, where)
    if values is not None:
        _check_names(space, values, where)
    default = _default(doc["default"], space, f"{where}: default")
    object.__setattr__(space, "default", default)
    if "fallbacks" in doc:
        object.__setattr__(space, "fallbacks", _fallbacks(doc["fallbacks"], space, f"{where}: fallbacks"))
    return space


def _beside(path: Path, name: str, where: str) -> Path:
    """The template file ``name`` in the folder of the space file ``path``."""
    file = path.parent / name
    try:
        there = file.parent == path.parent and file.is_file()
    except OSError:  # a name that no file can have
        there = False
    if not there:
        raise DeclarationError(f"{where}: file {declare.brief(name)} does not stand beside it")
    return file


def _check_size(space: Space, where: str) -> None:
    if len(space.parameters) > MAX_PARAMETERS:
        raise DeclarationError(f"{where}: {len(space.parameters)} parameters; at most {MAX_PARAMETERS}")
    if space.size > MAX_CARTESIAN:
        count = f"{space.size:,}" if space.size < 10**12 else f"over 10^{len(str(space.size)) - 1}"
        raise DeclarationError(f"{where}: {count} combinations; at most {MAX_CARTESIAN:,} can be enumerated")


def _check_names(space: Space, values: Iterable[str], where: str) -> None:
    """Refuses a parameter or derived value that hides another value, and a name that nothing has."""
    known = {*values, "precision", *attribute_names(space.kind)}
    for name in (*space.by_name, *space.derived):
        if name in known or name in RESERVED:
            raise DeclarationError(f"{where}: the name {name!r} is already taken; name it otherwise")
        known.add(name)
    used = {f"derived.{n}": e for n, e in space.derived.items()}
    used |= {f"constraints[{i}]": rule.require for i, rule in enumerate(space.constraints)}
    used |= {f"launch.{n}": e for n, e in space.launch_exprs.items()}
    for part, expression in used.items():
        # Whether a channel vector is given is known to its operator alone.
        unknown = [n for n in sorted(expression.names - known) if not n.startswith("has_")]
        if unknown:
            raise DeclarationError(f"{where}: {part}: {expression.text!r} reads unknown name {unknown[0]!r}")


def _parameter(name: str, value: Any, where: str) -> Parameter:
    entry = declare.check_keys(value, where, ("values", "help"))
    values = declare.check_list(entry["values"], f"{where}: values")
    for item in values:
        if isinstance(item, bool) or not isinstance(item, int | str):
            raise DeclarationError(
                f"{where}: value {declare.brief(item)} is neither a whole number nor a word"
            )
        if isinstance(item, str):
            declare.check_identifier(item, where)
        else:
            declare.check_int(item, where, -(2**31))
    if len(set(values)) != len(values):
        raise DeclarationError(f"{where}: a value stands twice in {declare.brief(values)}")
    return Parameter(name, tuple(values), declare.check_text(entry["help"], f"{where}: help"))


def _default(value: Any, space: Space, where: str) -> Config:
    given = declare.check_keys(value, where, list(space.by_name))
    for name, choice in given.items():
        values = space.by_name[name].values
        if isinstance(choice, bool | float) or choice not in values:  # True is 1, and 2.0 is 2
            raise DeclarationError(f"{where}: {name}={declare.brief(choice)} is none of {list(values)}")
    return Config({name: given[name] for name in space.by_name})


def _fallbacks(value: Any, space: Space, where: str) -> tuple[Config, ...]:
    """What stands in for the default, from what differs from it."""
    found = []
    for number, item in enumerate(declare.check_list(value, where)):
        changes = declare.check_named(item, f"{where}[{number}]")
        found.append(_default({**space.default, **changes}, space, f"{where}[{number}]"))
    return tuple(found)
