# SPDX-License-Identifier: Apache-2.0
"""Reads ``family.yaml``: strictly, with every name checked, so that a mistake is one line that names the
part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import declare
from .errors import DeclarationError
from .family import FIELD, Attribute, Family, Peer, TensorDeclaration, parse_rules
from .names import FAMILIES, FAMILY_VALUES
from .reference_file import check_functions, split_reference
from .shorthand import family_in_full
from .steps import AXES, CHANNELS, PIXELS

_REQUIRED = ("tensors", "output", "reference")
_OPTIONAL = (
    "family",
    "summary",
    "sizes",
    "run_time",
    "abi_sizes",
    "flops",
    "reduction_length",
    "attributes",
    "aliases",
    "derived",
    "requires",
    "magnitude",
    "channel_dim",
    "reduces",
    "peers",
    "workload_inputs",
    "workloads",
    "module",
)
# What says nothing of what is computed.
_NO_MEANING = ("summary", "workloads", "module")


def load_family(folder: Path) -> Family:
    """Reads ``folder/family.yaml``.

    Raises:
        DeclarationError: it is malformed, or its parts contradict each other.
    """
    where = f"{folder.name}/family.yaml"
    given = declare.check_keys(declare.load_mapping(folder / "family.yaml"), where, _REQUIRED, _OPTIONAL)
    doc = family_in_full(given, folder, where)
    tensors = {n: _tensor(n, v, where) for n, v in doc["tensors"].items()}
    output = declare.check_keys(doc["output"], f"{where}: output", ("name", "shape"))
    module, function = split_reference(doc["reference"], f"{where}: reference")
    family = Family(
        name=declare.check_identifier(doc["family"], where),
        summary=declare.check_text(doc["summary"], f"{where}: summary"),
        folder=folder,
        sizes=_names(doc["sizes"], f"{where}: sizes"),
        attributes=tuple(_attribute(n, v, where) for n, v in _named(doc, "attributes", where).items()),
        aliases={n: _names(v, f"{where}: aliases.{n}") for n, v in _named(doc, "aliases", where).items()},
        derived={
            n: declare.check_expression(v, f"{where}: derived.{n}")
            for n, v in _named(doc, "derived", where).items()
        },
        rules=parse_rules(doc.get("requires", []), f"{where}: requires"),
        tensors=tuple(tensors.values()),
        output=TensorDeclaration(
            declare.check_identifier(output["name"], f"{where}: output"),
            declare.check_shape(output["shape"], f"{where}: output: shape"),
        ),
        channel_dim=_channel_dim(doc, output["shape"], where),
        run_time=_names(doc["run_time"], f"{where}: run_time"),
        abi_sizes=_names(doc["abi_sizes"], f"{where}: abi_sizes"),
        flops=declare.check_expression(doc["flops"], f"{where}: flops"),
        reduction_length=declare.check_expression(doc["reduction_length"], f"{where}: reduction_length"),
        reference_module=module,
        reference_name=function,
        magnitude_name=declare.check_identifier(doc["magnitude"], where) if "magnitude" in doc else "",
        reduces=_reduces(doc.get("reduces", []), f"{where}: reduces"),
        peers=tuple(_peer(n, v, f"{where}: peers.{n}") for n, v in _named(doc, "peers", where).items()),
        workload_inputs=_names(doc.get("workload_inputs", []), f"{where}: workload_inputs"),
        workloads=_named(doc, "workloads", where),
        module=declare.check_identifier(doc["module"], f"{where}: module") if "module" in doc else "",
    )
    _check_names(family, where)
    _check_axes(family, where)
    _check_expressions(family, where)
    _check_reference(family, where)
    object.__setattr__(family, "digest", _digest(family, doc))
    return family


def _named(doc: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    return declare.check_named(doc.get(key, {}), f"{where}: {key}")


def _channel_dim(doc: Mapping[str, Any], shape: Any, where: str) -> int | None:
    """The second axis of the output when nothing is said, none where there is no second one."""
    rank = len(shape) if isinstance(shape, list) else 0
    if "channel_dim" not in doc:
        return 1 if rank > 1 else None
    if doc["channel_dim"] is None:
        return None
    return declare.check_int(doc["channel_dim"], f"{where}: channel_dim", 0, 8)


def _reduces(value: Any, where: str) -> tuple[str, ...]:
    names = _names(value, where)
    for name in names:
        if name not in AXES:
            raise DeclarationError(f"{where}: {name!r}; it must be of {', '.join(AXES)}")
    return names


def _peer(name: str, value: Any, where: str) -> Peer:
    entry = declare.check_keys(value, where, ("function",), ("answers",))
    if not isinstance(entry.get("answers", True), bool):
        raise DeclarationError(f"{where}: answers must be true or false")
    function = declare.check_identifier(entry["function"], f"{where}: function")
    return Peer(name, function, entry.get("answers", True))


def _attribute(name: str, value: Any, where: str) -> Attribute:
    at = f"{where}: attributes.{name}"
    entry = declare.check_keys(value, at, ("default",), ("pair", "min"))
    if not isinstance(entry.get("pair", False), bool):
        raise DeclarationError(f"{at}: pair must be true or false")
    minimum = declare.check_int(entry.get("min", 0), at, 0)
    return Attribute(
        name, entry.get("pair", False), declare.check_int(entry["default"], at, minimum), minimum
    )


def _tensor(name: str, value: Any, where: str) -> TensorDeclaration:
    at = f"{where}: tensors.{name}"
    entry = declare.check_keys(value, at, ("shape",), ("optional",))
    if not isinstance(entry.get("optional", False), bool):
        raise DeclarationError(f"{at}: optional must be true or false")
    shape = declare.check_shape(entry["shape"], f"{at}: shape")
    return TensorDeclaration(name, shape, entry.get("optional", False))


def _names(value: Any, where: str) -> tuple[str, ...]:
    items = value if value == [] else declare.check_list(value, where)
    names = tuple(declare.check_identifier(item, where) for item in items)
    if len(set(names)) != len(names):
        raise DeclarationError(f"{where}: a name stands twice in {declare.brief(list(names))}")
    return names


def _check_names(family: Family, where: str) -> None:
    """Tensors and values stand beside each other in kernels and wrappers: each name is one thing."""
    if family.name in FAMILIES:
        raise DeclarationError(f"{where}: the name {family.name!r} is already taken; name it otherwise")
    own = [*(t.name for t in family.tensors), family.output.name, *family.value_names]
    own += [a.name for a in family.attributes if a.pair]
    for index, name in enumerate(own):
        if name in own[:index] or name in FAMILY_VALUES:
            raise DeclarationError(f"{where}: the name {name!r} is already taken; name it otherwise")


def _check_axes(family: Family, where: str) -> None:
    for name in family.run_time:
        if name not in family.sizes:
            raise DeclarationError(f"{where}: run_time names {name!r}, which is no size")
    for name in family.abi_sizes:
        if name not in family.sizes and name not in family.derived:
            raise DeclarationError(f"{where}: abi_sizes names {name!r}, which is no size and not derived")
    for alias, names in family.aliases.items():
        for name in set(names) - set(family.sizes):
            raise DeclarationError(f"{where}: aliases.{alias} names {name!r}, which is no size")
    channels = family.channel_dim
    if channels is not None and channels >= len(family.output.shape):
        raise DeclarationError(f"{where}: channel_dim {channels} is no dimension of the output")
    if CHANNELS in family.reduces and channels is None:
        raise DeclarationError(f"{where}: reduces channels, but the output has none (channel_dim)")
    pixels = [e.text for i, e in enumerate(family.output.shape) if i not in (0, channels)]
    if PIXELS in family.reduces and any(text != "1" for text in pixels):
        raise DeclarationError(f"{where}: reduces pixels, but the output has [{', '.join(pixels)}], not one")


def _check_expressions(family: Family, where: str) -> None:
    values = set(family.value_names)
    for rule in family.rules:
        for name in sorted(set(FIELD.findall(rule.reason)) - values):
            raise DeclarationError(f"{where}: reason {rule.reason!r} reads unknown name {name!r}")
    used = [family.flops, family.reduction_length, *family.derived.values()]
    used += [rule.require for rule in family.rules]
    used += [e for t in (*family.tensors, family.output) for e in t.shape]
    for expression in used:
        unknown = expression.names - values
        if unknown:
            raise DeclarationError(
                f"{where}: expression {expression.text!r} reads unknown name {min(unknown)!r}"
            )


def _check_reference(family: Family, where: str) -> None:
    tensors = [t.name for t in family.tensors]
    functions = (family.reference_name, family.magnitude_name, *(p.function for p in family.peers))
    attributes = [a.name for a in family.attributes]
    check_functions(family.reference_file, list(filter(None, functions)), tensors, attributes, where)


def _digest(family: Family, doc: Mapping[str, Any]) -> str:
    """Of what decides the result: the declaration's meaning (not its comments) and the reference.

    The order inside a part counts: that of the tensors is the order of the call.
    """
    meaning = {key: doc[key] for key in sorted(doc) if key not in _NO_MEANING}
    digest = hashlib.sha256(json.dumps(meaning).encode())
    digest.update(family.reference_file.read_bytes())
    return digest.hexdigest()
