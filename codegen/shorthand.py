# SPDX-License-Identifier: Apache-2.0
"""The short forms of ``family.yaml`` and ``space.yaml``, written out: what is left out gets its default, what
has a short form its long one. The strict readers see long forms only, and so do digests: both forms of a
declaration mean the same and are the same.

``templates/README.md`` describes every key with its default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import declare
from .errors import DeclarationError
from .expr import Expr
from .reference_file import DEFAULT_MODULE, split_reference
from .target import archs_of

SUFFIXES = {"cuda": ".cu.jinja", "cpu": ".cpp.jinja"}
"""How the template files of each kind of target end."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHORT_LAUNCH = {"cuda": {"shared_bytes": 0}, "cpu": {"grain": 1}}


def family_in_full(doc: Mapping[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """A family's declaration with every required key, tensors and output as mappings.

    Raises:
        DeclarationError: a part from which a default follows is malformed.
    """
    full = dict(doc)
    if "family" not in full:
        full["family"] = _folder_name(folder, where)
    if "summary" not in full:
        full["summary"] = str(full["family"]).replace("_", " ")
    tensors = declare.check_named(doc["tensors"], f"{where}: tensors")
    full["tensors"] = {n: {"shape": v} if isinstance(v, list) else v for n, v in tensors.items()}
    full["output"] = _output(doc["output"], f"{where}: output")
    if "derived" in doc:
        declare.check_named(doc["derived"], f"{where}: derived")
    shapes = {
        n: declare.check_shape(v.get("shape") if isinstance(v, dict) else v, f"{where}: tensors.{n}: shape")
        for n, v in full["tensors"].items()
    }
    if not shapes:
        raise DeclarationError(f"{where}: tensors: at least one is needed")
    if "sizes" not in full:
        full["sizes"] = _sizes(shapes.values(), doc)
    full.setdefault("run_time", full["sizes"][:1] if isinstance(full["sizes"], list) else [])
    if "abi_sizes" not in full:
        full["abi_sizes"] = _received(full["run_time"], doc.get("derived", {}), where)
    full.setdefault("flops", 0)
    if "reduction_length" not in full:
        given = full["output"].get("shape") if isinstance(full["output"], dict) else None
        output = declare.check_shape(given, f"{where}: output: shape")
        full["reduction_length"] = _sample_size(next(iter(shapes.values())), output)
    module, function = split_reference(doc["reference"], f"{where}: reference")
    full["reference"] = function if module == DEFAULT_MODULE else f"{module}:{function}"
    return full


def _folder_name(folder: Path, where: str) -> str:
    """A family's name when it gives none."""
    name = folder.resolve().name
    if not declare.IDENTIFIER.match(name):
        raise DeclarationError(f"{where}: its folder's name {name!r} cannot name a family; add family: NAME")
    return name


def _output(value: Any, where: str) -> Any:
    """``{y: [rows, columns]}`` as ``{name: y, shape: [rows, columns]}``."""
    if not isinstance(value, dict):
        raise DeclarationError(
            f"{where}: expected a mapping, {{NAME: [SIZE, ...]}}, got {declare.brief(value)}"
        )
    if {"name", "shape"} & set(value):
        return value
    if len(value) != 1:
        raise DeclarationError(f"{where}: expected one output, {{NAME: [SIZE, ...]}}, got {len(value)}")
    ((name, shape),) = value.items()
    return {"name": name, "shape": shape}


def _sizes(shapes: Iterable[Sequence[Expr]], doc: Mapping[str, Any]) -> list[str]:
    """The names in the tensors' shapes that are nothing else, in order of appearance."""
    found: list[str] = []
    attributes = doc.get("attributes", {})
    attributes = attributes if isinstance(attributes, dict) else {}
    other = {"dtype_bytes", *doc.get("derived", {})}
    other |= {f"{name}{suffix}" for name in attributes for suffix in ("", "_h", "_w")}
    for shape in shapes:
        for extent in shape:
            # The names of an expression are a set; their order is that of the text.
            found += [n for n in _NAME.findall(extent.text) if n in extent.names]
    return [name for name in dict.fromkeys(found) if name not in other]


def _received(run_time: Any, derived: Mapping[str, Any], where: str) -> list[str]:
    """The run-time sizes, then the derived values that read one of them, or one that does."""
    names = [n for n in run_time if isinstance(n, str)] if isinstance(run_time, list) else []
    for name, text in derived.items():
        if not declare.check_expression(text, f"{where}: derived.{name}").names.isdisjoint(names):
            names.append(name)
    return names


def _sample_size(data: Sequence[Expr], output: Sequence[Expr]) -> str:
    """Elements of the first tensor, of one sample where its first axis is the output's too: what one output
    can hang on."""
    texts = [extent.text.strip() for extent in data]
    if texts[0] == output[0].text.strip():
        del texts[0]
    factors = [t if t.isidentifier() or t.isdigit() else f"({t})" for t in texts if t != "1"]
    return " * ".join(factors) or "1"


def space_in_full(doc: Mapping[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """A space's declaration with every required key, each parameter as a mapping.

    Args:
        folder: the family's, where the template files are.

    Raises:
        DeclarationError: a part from which a default follows is malformed, or a default is not clear.
    """
    full = dict(doc)
    if "file" not in full:
        full["file"] = _only_template(folder, doc.get("target"), where)
    file = declare.check_text(full["file"], f"{where}: file")
    if "target" not in full:
        full["target"] = _kind_of(file, where)
    kind = full["target"]
    if not isinstance(kind, str) or kind not in SUFFIXES:
        raise DeclarationError(f"{where}: target {kind!r}; it must be cuda or cpu")
    if "template" not in full:
        full["template"] = Path(file).name.removesuffix(".jinja").removesuffix(".cu").removesuffix(".cpp")
    full.setdefault("archs", list(archs_of(kind)))
    parameters = declare.check_named(doc["parameters"], f"{where}: parameters")
    full["parameters"] = {n: _parameter(n, v) for n, v in parameters.items()}
    if "default" not in full:
        full["default"] = {n: _first(v, f"{where}: parameters.{n}") for n, v in full["parameters"].items()}
    if isinstance(doc["launch"], dict):
        full["launch"] = {**doc["launch"]}
        for key, value in _SHORT_LAUNCH[kind].items():
            full["launch"].setdefault(key, value)
    return full


def _parameter(name: str, value: Any) -> Any:
    """``[1, 2, 4]`` as ``{values: [1, 2, 4], help: NAME}``."""
    return {"values": value, "help": name} if isinstance(value, list) else value


def _first(parameter: Any, where: str) -> Any:
    values = parameter.get("values") if isinstance(parameter, dict) else None
    return declare.check_list(values, f"{where}: values")[0]


def _only_template(folder: Path, kind: Any, where: str) -> str:
    """The template file that stands beside the space, when there is but one for its target."""
    suffixes = tuple(SUFFIXES.values())
    if isinstance(kind, str) and kind in SUFFIXES:
        suffixes = (SUFFIXES[kind],)
    found = sorted(path.name for path in folder.iterdir() if path.name.endswith(suffixes))
    if len(found) != 1:
        beside = ", ".join(found) or f"no *{' or *'.join(suffixes)}"
        raise DeclarationError(f"{where}: file is not given, and beside it is {beside}; add file: NAME")
    return found[0]


def _kind_of(file: str, where: str) -> str:
    """The kind of target that a template's file name says it is for."""
    for kind, suffix in SUFFIXES.items():
        if file.endswith(suffix):
            return kind
    raise DeclarationError(f"{where}: file {file!r} tells no target; add target: cuda or target: cpu")
