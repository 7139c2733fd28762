# SPDX-License-Identifier: Apache-2.0
"""An operator: a family, an epilogue chain and named workloads, declared in ``operators/<name>.yaml``. No
CUDA needed."""

from __future__ import annotations

import hashlib
import json
import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..templates.pointwise import POINTWISE
from . import declare
from .errors import DeclarationError
from .family import Family

Argument = float | str

# Names that mean something else where an operator's own names are printed: words of C++ and Python, and what
# kernels and wrappers call their own parts.
_WORDS = """
    OP Tensor args arguments channel epilogue operator precision self sizes torch v workspace
    alignas alignof asm auto bool case catch char const constexpr decltype default delete do double enum
    explicit extern false float friend goto inline int long mutable namespace new noexcept nullptr private
    protected public register short signed sizeof static struct switch template this throw true typedef typeid
    typename union unsigned using virtual void volatile
"""
_RESERVED = frozenset(keyword.kwlist) | frozenset(_WORDS.split())


@dataclass(frozen=True)
class EpilogueStep:
    """One pointwise operation of the chain.

    Attributes:
        op: a key of ``templates.pointwise.POINTWISE``.
        arguments: parameter name -> a number (compiled in), or the name of a scalar or of a channel vector.
    """

    op: str
    arguments: tuple[tuple[str, Argument], ...] = ()


@dataclass(frozen=True)
class Operator:
    """What to compute, without any choice of how.

    Attributes:
        scalars: run-time scalar arguments with their defaults, in order.
        channel_vectors: names of extra [C_out] tensors that the chain reads, in order.
        epilogue: the chain, first operation first.
        workloads: name -> shape words as given in YAML (sizes, attributes, aliases, ``bias: false``).
        module: the name of the ``torch.nn.Module`` form; empty when there is none.
        digest: of the declaration's meaning. The order of scalars and channel vectors is part of it: it is
            that of the call and of a kernel's arguments.
    """

    name: str
    family: Family
    summary: str
    scalars: Mapping[str, float] = field(hash=False)
    channel_vectors: tuple[str, ...] = ()
    epilogue: tuple[EpilogueStep, ...] = ()
    workloads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    module: str = ""
    digest: str = ""


def load_operator(path: Path, families: Mapping[str, Family]) -> Operator:
    """Reads an operator's declaration.

    Args:
        path: the YAML file; its stem is the operator's name.
        families: the families by name.

    Raises:
        DeclarationError: it is malformed, or names a family, operation, parameter or value that does not
            exist.
    """
    where = f"operators/{path.name}"
    doc = declare.check_keys(
        declare.load_mapping(path),
        where,
        ("operator", "family", "summary", "workloads"),
        ("scalars", "channel_vectors", "epilogue", "module"),
    )
    name = declare.check_identifier(doc["operator"], where)
    if name != path.stem:
        raise DeclarationError(f"{where}: declares {name!r}; the file name must be {name}.yaml")
    if not isinstance(doc["family"], str) or doc["family"] not in families:
        raise DeclarationError(
            f"{where}: unknown family {doc['family']!r}; known: {', '.join(sorted(families))}"
        )
    family = families[doc["family"]]
    scalars = {
        n: declare.check_number(v, f"{where}: scalars.{n}")
        for n, v in declare.check_named(doc.get("scalars", {}), f"{where}: scalars").items()
    }
    vectors = tuple(
        declare.check_identifier(v, where) for v in _list(doc, "channel_vectors", f"{where}: channel_vectors")
    )
    _check_names(family, [*scalars, *vectors], where)
    workloads = declare.check_named(doc["workloads"], f"{where}: workloads")
    if not workloads:
        raise DeclarationError(f"{where}: workloads: at least one is needed")
    module = declare.check_identifier(doc["module"], where) if "module" in doc else ""
    steps = tuple(
        _step(s, scalars, vectors, f"{where}: epilogue") for s in _list(doc, "epilogue", f"{where}: epilogue")
    )
    return Operator(
        name=name,
        family=family,
        summary=declare.check_text(doc["summary"], f"{where}: summary"),
        scalars=scalars,
        channel_vectors=vectors,
        epilogue=steps,
        workloads={n: _workload(w, family, f"{where}: workloads.{n}") for n, w in workloads.items()},
        module=module,
        digest=_digest(name, family, steps, scalars, vectors),
    )


def _list(doc: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """The list at ``key``; an empty one when there is none. A text is no list of letters."""
    value = doc.get(key, [])
    return value if isinstance(value, list) else declare.check_list(value, where)


def _check_names(family: Family, own: list[str], where: str) -> None:
    """Refuses names of scalars and channel vectors that a kernel or a wrapper already uses."""
    taken = {t.name for t in family.tensors} | {family.output.name, *family.sizes, *family.derived}
    for attribute in family.attributes:
        taken |= {attribute.name, *attribute.value_names}
    for index, name in enumerate(own):
        if name in taken or name in own[:index] or name in _RESERVED:
            raise DeclarationError(f"{where}: the name {name!r} is already taken; name it otherwise")


def _usage(name: str) -> str:
    """How a step of several parameters, or of none, is written."""
    parameters = POINTWISE[name].parameters
    if not parameters:
        return f"{name} takes no parameters; write it as a word"
    words = ", ".join(f"{p}: {'...' if default is None else default}" for p, default in parameters.items())
    return f"{name} takes {len(parameters)} parameters; name them, as in {{{name}: {{{words}}}}}"


def shape_words(family: Family) -> tuple[str, ...]:
    """Every word that a workload or ``--shape`` may set."""
    words = [*family.sizes, *family.aliases]
    for attribute in family.attributes:
        words += [attribute.name, *(n for n in attribute.value_names if n != attribute.name)]
    return (*words, *(t.name for t in family.tensors if t.optional))


def _workload(value: Any, family: Family, where: str) -> dict[str, Any]:
    return dict(declare.check_keys(value, where, (), shape_words(family)))


def _step(item: Any, scalars: Mapping[str, float], vectors: tuple[str, ...], where: str) -> EpilogueStep:
    """``relu``, ``{div: divisor}`` or ``{clamp: {min: 0, max: 6}}``."""
    if isinstance(item, str):
        name, given = item, {}
    elif isinstance(item, dict) and len(item) == 1:
        ((name, given),) = item.items()
    else:
        raise DeclarationError(f"{where}: expected an operation or {{operation: arguments}}, got {item!r}")
    if name not in POINTWISE:
        raise DeclarationError(f"{where}: unknown operation {name!r}; known: {', '.join(sorted(POINTWISE))}")
    parameters = POINTWISE[name].parameters
    if not isinstance(given, dict):
        if len(parameters) != 1:
            raise DeclarationError(f"{where}: {_usage(name)}, got {given!r}")
        given = {next(iter(parameters)): given}
    unknown = [key for key in given if key not in parameters]
    if unknown:
        known = ", ".join(parameters) or "none"
        raise DeclarationError(f"{where}: {name} has no parameter {unknown[0]!r}; known: {known}")
    arguments: list[tuple[str, Argument]] = []
    for key, default in parameters.items():
        value = given.get(key, default)
        if value is None:
            raise DeclarationError(f"{where}: {name} needs {key!r}")
        if isinstance(value, str) and value not in scalars and value not in vectors:
            raise DeclarationError(
                f"{where}: {name}.{key} names {value!r}, which is no scalar and no channel vector; "
                f"declared: {', '.join([*scalars, *vectors]) or 'none'}"
            )
        if isinstance(value, str) and value in vectors and key not in POINTWISE[name].channel_parameters:
            raise DeclarationError(f"{where}: {name}.{key} cannot be a channel vector")
        arguments.append((key, value if isinstance(value, str) else declare.check_number(value, where)))
    return EpilogueStep(name, tuple(arguments))


def _digest(
    name: str,
    family: Family,
    steps: tuple[EpilogueStep, ...],
    scalars: Mapping[str, float],
    vectors: tuple[str, ...],
) -> str:
    expressions = [
        (s.op, POINTWISE[s.op].expression, POINTWISE[s.op].cuda_expression, s.arguments) for s in steps
    ]
    meaning = [name, family.digest, expressions, list(scalars.items()), vectors]
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()
