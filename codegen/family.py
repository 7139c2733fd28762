# SPDX-License-Identifier: Apache-2.0
"""A family: what a group of operators computes before its epilogue, declared in ``family.yaml``.

The declaration names the sizes, the attributes, the tensors and their shapes, what is known only at run
time, the work
counts, and the PyTorch reference (a function in a file beside it). Nothing here knows convolution.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import declare
from .errors import DeclarationError
from .expr import Expr, parse
from .steps import AXES, PIXELS

PAIR_SUFFIXES = ("_h", "_w")
_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Attribute:
    """An integer argument of the operator that is fixed when a kernel is built.

    Attributes:
        name: as in the Python signature (``stride``).
        pair: whether it is one number per spatial axis (then ``stride_h`` and ``stride_w`` are its value
            names).
        default: its default, for both axes.
        minimum: the least legal value.
    """

    name: str
    pair: bool
    default: int
    minimum: int

    @property
    def value_names(self) -> tuple[str, ...]:
        """The names under which expressions and kernels see it."""
        return tuple(self.name + suffix for suffix in PAIR_SUFFIXES) if self.pair else (self.name,)


@dataclass(frozen=True)
class TensorDeclaration:
    """A tensor argument: its shape as expressions over the problem's values."""

    name: str
    shape: tuple[Expr, ...]
    optional: bool = False


@dataclass(frozen=True)
class Peer:
    """A function of the reference file that is timed beside the reference itself.

    Attributes:
        name: its row in a bench.
        function: takes what the reference takes.
        answers: whether it gives what the reference gives, by another way; else it is a yardstick, such as
            the time of reading an input, and its result is not looked at.
    """

    name: str
    function: str
    answers: bool = True


@dataclass(frozen=True)
class Rule:
    """A condition and the reason given when it does not hold (``{NAME}`` fields are filled in)."""

    require: Expr
    reason: str

    def explain(self, values: Mapping[str, Any]) -> str:
        """The reason with its fields filled in.

        Raises:
            DeclarationError: a field names no value.
        """
        try:
            return _FIELD.sub(lambda field: str(values[field[1]]), self.reason)
        except KeyError as error:
            raise DeclarationError(
                f"reason {self.reason!r}: unknown name {error.args[0]!r}; {self.require.text} does not hold"
            ) from None


@dataclass(frozen=True)
class Family:
    """A declared family. See ``templates/conv2d/family.yaml`` for one with comments.

    Attributes:
        sizes: dimension names, each a positive integer.
        aliases: short words for several sizes at once (``kernel_size`` -> R, S).
        derived: values computed from the sizes and attributes, in order.
        run_time: the sizes a kernel learns at launch; every other size is compiled in.
        abi_sizes: the run-time values that a kernel receives, in order.
        channel_dim: the output dimension that channel vectors of an epilogue run along.
        reduces: what an operator's chain may reduce in a kernel of this family: ``channels``, ``pixels``.
        peers: other functions of the reference that are timed beside it.
        workload_inputs: the kinds of inputs that the workload itself is checked with; empty: the usual ones.
        digest: of everything in the folder that decides what is computed.
    """

    name: str
    summary: str
    folder: Path
    sizes: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    aliases: Mapping[str, tuple[str, ...]] = field(hash=False)
    derived: Mapping[str, Expr] = field(hash=False)
    rules: tuple[Rule, ...] = ()
    tensors: tuple[TensorDeclaration, ...] = ()
    output: TensorDeclaration = field(default_factory=lambda: TensorDeclaration("y", ()))
    channel_dim: int = 1
    run_time: tuple[str, ...] = ()
    abi_sizes: tuple[str, ...] = ()
    flops: Expr = field(default_factory=lambda: parse("0"))
    reduction_length: Expr = field(default_factory=lambda: parse("1"))
    reference_name: str = ""
    magnitude_name: str = ""
    reduces: tuple[str, ...] = ()
    peers: tuple[Peer, ...] = ()
    workload_inputs: tuple[str, ...] = ()
    digest: str = ""

    @property
    def reference_file(self) -> Path:
        """The Python file that holds the reference: torch and standard library only, so that it can be
        frozen."""
        return self.folder / "reference.py"

    @property
    def reference(self) -> Callable[..., Any]:
        """The PyTorch function: tensors by name, then attributes by name (pairs as tuples)."""
        return _function(self.reference_file, self.reference_name)

    @property
    def magnitude(self) -> Callable[..., Any] | None:
        """Same arguments: the sum of the terms' absolute values, on which the error bound rests; None when
        not given."""
        return _function(self.reference_file, self.magnitude_name) if self.magnitude_name else None

    def peer(self, peer: Peer) -> Callable[..., Any]:
        """The function of a peer: same arguments as the reference."""
        return _function(self.reference_file, peer.function)


@lru_cache(maxsize=64)
def _function(path: Path, name: str) -> Callable[..., Any]:
    place = hashlib.sha256(str(path).encode()).hexdigest()[:8]  # two roots may use one folder name
    spec = importlib.util.spec_from_file_location(f"coldforge_reference_{path.parent.name}_{place}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise DeclarationError(f"cannot read the reference file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # torch.compile looks a function's module up there
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise DeclarationError(f"{path}: no function {name!r}")
    return function


_REQUIRED = (
    "family",
    "summary",
    "sizes",
    "tensors",
    "output",
    "run_time",
    "abi_sizes",
    "flops",
    "reduction_length",
    "reference",
)
_OPTIONAL = (
    "attributes",
    "aliases",
    "derived",
    "requires",
    "magnitude",
    "channel_dim",
    "reduces",
    "peers",
    "workload_inputs",
)


def load_family(folder: Path) -> Family:
    """Reads ``folder/family.yaml``.

    Raises:
        DeclarationError: it is malformed, or its parts contradict each other.
    """
    path = folder / "family.yaml"
    where = f"{folder.name}/family.yaml"
    doc = declare.check_keys(declare.load_mapping(path), where, _REQUIRED, _OPTIONAL)
    sizes = _names(doc["sizes"], f"{where}: sizes")
    attributes = tuple(
        _attribute(n, v, where) for n, v in declare.check_named(doc.get("attributes", {}), where).items()
    )
    derived = {
        n: declare.check_expression(v, f"{where}: derived.{n}")
        for n, v in declare.check_named(doc.get("derived", {}), f"{where}: derived").items()
    }
    tensors = tuple(
        _tensor(n, v, where) for n, v in declare.check_named(doc["tensors"], f"{where}: tensors").items()
    )
    output = declare.check_keys(doc["output"], f"{where}: output", ("name", "shape"))
    aliases = {
        n: _names(v, f"{where}: aliases.{n}")
        for n, v in declare.check_named(doc.get("aliases", {}), where).items()
    }
    family = Family(
        name=declare.check_identifier(doc["family"], where),
        summary=declare.check_text(doc["summary"], f"{where}: summary"),
        folder=folder,
        sizes=sizes,
        attributes=attributes,
        aliases=aliases,
        derived=derived,
        rules=parse_rules(doc.get("requires", []), f"{where}: requires"),
        tensors=tensors,
        output=TensorDeclaration(
            declare.check_identifier(output["name"], where), _shape(output["shape"], where)
        ),
        channel_dim=declare.check_int(doc.get("channel_dim", 1), f"{where}: channel_dim", 0, 8),
        run_time=_names(doc["run_time"], f"{where}: run_time"),
        abi_sizes=_names(doc["abi_sizes"], f"{where}: abi_sizes"),
        flops=declare.check_expression(doc["flops"], f"{where}: flops"),
        reduction_length=declare.check_expression(doc["reduction_length"], f"{where}: reduction_length"),
        reference_name=declare.check_identifier(doc["reference"], f"{where}: reference"),
        magnitude_name=declare.check_identifier(doc["magnitude"], where) if "magnitude" in doc else "",
        reduces=_reduces(doc.get("reduces", []), f"{where}: reduces"),
        peers=tuple(
            _peer(n, v, f"{where}: peers.{n}")
            for n, v in declare.check_named(doc.get("peers", {}), f"{where}: peers").items()
        ),
        workload_inputs=_names(doc["workload_inputs"], f"{where}: workload_inputs")
        if "workload_inputs" in doc
        else (),
        digest=_digest(folder, doc),
    )
    _check_consistency(family, where)
    return family


def parse_rules(value: Any, where: str) -> tuple[Rule, ...]:
    """A list of ``{require: expression, reason: text}``."""
    rules = []
    for item in value if isinstance(value, list) else declare.check_list(value, where):
        entry = declare.check_keys(item, where, ("require", "reason"))
        rules.append(
            Rule(
                declare.check_expression(entry["require"], where), declare.check_text(entry["reason"], where)
            )
        )
    return tuple(rules)


def _reduces(value: Any, where: str) -> tuple[str, ...]:
    names = _names(value, where) if value != [] else ()
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
    return TensorDeclaration(name, _shape(entry["shape"], at), entry.get("optional", False))


def _shape(value: Any, where: str) -> tuple[Expr, ...]:
    return tuple(
        declare.check_expression(item, f"{where}: shape")
        for item in declare.check_list(value, f"{where}: shape")
    )


def _names(value: Any, where: str) -> tuple[str, ...]:
    names = tuple(declare.check_identifier(item, where) for item in declare.check_list(value, where))
    if len(set(names)) != len(names):
        raise DeclarationError(f"{where}: a name stands twice in {', '.join(names)}")
    return names


def _check_consistency(family: Family, where: str) -> None:
    values = set(family.sizes) | {n for a in family.attributes for n in a.value_names} | set(family.derived)
    values |= {f"has_{t.name}" for t in family.tensors if t.optional} | {"dtype_bytes"}
    for name in family.run_time:
        if name not in family.sizes:
            raise DeclarationError(f"{where}: run_time names {name!r}, which is no size")
    for name in family.abi_sizes:
        if name not in family.sizes and name not in family.derived:
            raise DeclarationError(f"{where}: abi_sizes names {name!r}, which is no size and not derived")
    for alias, names in family.aliases.items():
        for name in set(names) - set(family.sizes):
            raise DeclarationError(f"{where}: aliases.{alias} names {name!r}, which is no size")
    if family.channel_dim >= len(family.output.shape):
        raise DeclarationError(f"{where}: channel_dim {family.channel_dim} is no dimension of the output")
    pixels = [e.text for i, e in enumerate(family.output.shape) if i not in (0, family.channel_dim)]
    if PIXELS in family.reduces and any(text != "1" for text in pixels):
        raise DeclarationError(f"{where}: reduces pixels, but the output has [{', '.join(pixels)}], not one")
    used = [
        family.flops,
        family.reduction_length,
        *family.derived.values(),
        *(r.require for r in family.rules),
    ]
    used += [e for t in (*family.tensors, family.output) for e in t.shape]
    for rule in family.rules:
        for name in sorted(set(_FIELD.findall(rule.reason)) - values):
            raise DeclarationError(f"{where}: reason {rule.reason!r} reads unknown name {name!r}")
    for expression in used:
        unknown = expression.names - values
        if unknown:
            raise DeclarationError(
                f"{where}: expression {expression.text!r} reads unknown name {min(unknown)!r}"
            )
    defined = _functions_in(family.reference_file)
    functions = (family.reference_name, family.magnitude_name, *(p.function for p in family.peers))
    for name in filter(None, functions):
        if name not in defined:
            raise DeclarationError(f"{where}: reference.py defines no function {name!r}")


def _functions_in(path: Path) -> set[str]:
    """The functions a Python file defines, found without running it (and so without importing torch)."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeclarationError(f"cannot read {path}: {error.strerror or error}") from None
    except (SyntaxError, ValueError) as error:
        raise DeclarationError(f"{path}: malformed Python: {error}") from None
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def _digest(folder: Path, declaration: Mapping[str, Any]) -> str:
    """Of what decides the result: the declaration's meaning (not its comments) and the reference.

    The order inside a part counts: that of the tensors is the order of the call.
    """
    meaning = {key: declaration[key] for key in sorted(declaration) if key != "summary"}
    digest = hashlib.sha256(json.dumps(meaning).encode())
    digest.update((folder / "reference.py").read_bytes())
    return digest.hexdigest()
