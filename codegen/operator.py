# SPDX-License-Identifier: Apache-2.0
"""An operator: a family, an epilogue chain and named workloads, declared in ``operators/<name>.yaml``. No
CUDA needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..templates.pointwise import POINTWISE
from . import declare
from .errors import DeclarationError
from .expr import Expr
from .family import Family
from .module_arguments import check_module, known_to_constructor
from .names import PACKAGE_NAMES, RESERVED
from .steps import EpilogueStep, parse_steps


@dataclass(frozen=True)
class ChannelVector:
    """A tensor with one value for each channel of the family's output, which the chain reads.

    Attributes:
        shape: as the caller has it, e.g. [C_out, 1, 1]: one value a channel. Empty: one axis.
        optional: whether the caller may leave it out; the steps that read it are then left out too.
    """

    name: str
    shape: tuple[Expr, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Operator:
    """What to compute, without any choice of how.

    Attributes:
        scalars: run-time scalar arguments with their defaults, in order.
        vectors: extra tensors of one value a channel that the chain reads, in order.
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
    vectors: tuple[ChannelVector, ...] = ()
    epilogue: tuple[EpilogueStep, ...] = ()
    workloads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    module: str = ""
    digest: str = ""

    @property
    def channel_vectors(self) -> tuple[str, ...]:
        """The names of the channel vectors."""
        return tuple(vector.name for vector in self.vectors)

    @property
    def optional_tensors(self) -> tuple[str, ...]:
        """The names of all tensors that a call may leave out."""
        own = [t.name for t in self.family.tensors if t.optional]
        return (*own, *(vector.name for vector in self.vectors if vector.optional))


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
    return _operator(doc, families, where)


def own_operator(family: Family) -> Operator | None:
    """The operator that is the family alone, under its name; None when it declares no workloads.

    Raises:
        DeclarationError: its workloads or its module's name cannot be used.
    """
    if not family.workloads:
        return None
    doc = {"operator": family.name, "family": family.name, "summary": family.summary}
    doc |= {"workloads": family.workloads, **({"module": family.module} if family.module else {})}
    return _operator(doc, {family.name: family}, f"{family.folder.name}/family.yaml")


def _operator(doc: Mapping[str, Any], families: Mapping[str, Family], where: str) -> Operator:
    name = declare.check_identifier(doc["operator"], where)
    module = declare.check_identifier(doc["module"], where) if "module" in doc else ""
    for taken in (name, module):
        if taken in PACKAGE_NAMES or name == module:
            raise DeclarationError(f"{where}: the name {taken!r} is already taken; name it otherwise")
    if not isinstance(doc["family"], str) or doc["family"] not in families:
        raise DeclarationError(
            f"{where}: unknown family {doc['family']!r}; known: {', '.join(sorted(families))}"
        )
    family = families[doc["family"]]
    scalars = {
        n: declare.check_number(v, f"{where}: scalars.{n}")
        for n, v in declare.check_named(doc.get("scalars", {}), f"{where}: scalars").items()
    }
    vectors = _vectors(doc.get("channel_vectors", []), family, f"{where}: channel_vectors")
    if vectors and family.channel_dim is None:
        raise DeclarationError(f"{where}: channel_vectors: family {family.name} has no channels")
    names = [vector.name for vector in vectors]
    _check_names(family, [*scalars, *names, *(f"has_{v.name}" for v in vectors if v.optional)], where)
    workloads = declare.check_named(doc["workloads"], f"{where}: workloads")
    if not workloads:
        raise DeclarationError(f"{where}: workloads: at least one is needed")
    if module:
        check_module(family, list(scalars), vectors, where)
    at = f"{where}: epilogue"
    steps = parse_steps(_list(doc, "epilogue", at), scalars, names, family.reduces, at)
    words = _words_of(family, tuple(vector.name for vector in vectors if vector.optional))
    return Operator(
        name=name,
        family=family,
        summary=declare.check_text(doc["summary"], f"{where}: summary"),
        scalars=scalars,
        vectors=vectors,
        epilogue=steps,
        workloads={n: _workload(w, words, f"{where}: workloads.{n}") for n, w in workloads.items()},
        module=module,
        digest=_digest(name, family, steps, scalars, vectors),
    )


def _list(doc: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """The list at ``key``; an empty one when there is none. A text is no list of letters."""
    value = doc.get(key, [])
    return value if value == [] else declare.check_list(value, where)


def _check_names(family: Family, own: list[str], where: str) -> None:
    """Refuses names of scalars and channel vectors that a kernel or a wrapper already uses."""
    taken = {t.name for t in family.tensors} | {family.output.name, *family.sizes, *family.derived}
    for attribute in family.attributes:
        taken |= {attribute.name, *attribute.value_names}
    for index, name in enumerate(own):
        if name in taken or name in own[:index] or name in RESERVED:
            raise DeclarationError(f"{where}: the name {name!r} is already taken; name it otherwise")


def _vectors(value: Any, family: Family, where: str) -> tuple[ChannelVector, ...]:
    """A list of names, or a mapping of names to ``{shape: [...], optional: true}``."""
    fixed = known_to_constructor(family)
    if not isinstance(value, dict):
        names = value if value == [] else declare.check_list(value, where)
        return tuple(ChannelVector(declare.check_identifier(name, where)) for name in names)
    found = []
    for name, given in declare.check_named(value, where).items():
        at = f"{where}.{name}"
        entry = declare.check_keys(given, at, (), ("shape", "optional"))
        if not isinstance(entry.get("optional", False), bool):
            raise DeclarationError(f"{at}: optional must be true or false")
        shape = declare.check_shape(entry["shape"], f"{at}: shape") if "shape" in entry else ()
        unknown = sorted(set().union(*(e.names for e in shape)) - fixed)
        if unknown:
            raise DeclarationError(
                f"{at}: shape reads {unknown[0]!r}; it may read what a module's constructor knows: "
                f"{', '.join(sorted(fixed))}"
            )
        found.append(ChannelVector(name, shape, entry.get("optional", False)))
    return tuple(found)


def shape_words(operator: Operator) -> tuple[str, ...]:
    """Every word that a workload or ``--shape`` may set."""
    return _words_of(operator.family, tuple(v.name for v in operator.vectors if v.optional))


def _words_of(family: Family, optional_vectors: tuple[str, ...]) -> tuple[str, ...]:
    words = [*family.sizes, *family.aliases]
    for attribute in family.attributes:
        words += [attribute.name, *(n for n in attribute.value_names if n != attribute.name)]
    return (*words, *(t.name for t in family.tensors if t.optional), *optional_vectors)


def _workload(value: Any, words: tuple[str, ...], where: str) -> dict[str, Any]:
    return dict(declare.check_keys(value, where, (), words))


def _digest(
    name: str,
    family: Family,
    steps: tuple[EpilogueStep, ...],
    scalars: Mapping[str, float],
    vectors: tuple[ChannelVector, ...],
) -> str:
    chain = [_step_meaning(step) for step in steps]
    given = [_vector_meaning(vector) for vector in vectors]
    meaning = [name, family.digest, chain, list(scalars.items()), given]
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()


def _step_meaning(step: EpilogueStep) -> list[Any]:
    if step.is_reduction:
        return [step.op, step.over, step.keepdim]
    row = POINTWISE[step.op]
    return [step.op, row.expression, row.cuda_expression, step.arguments]


def _vector_meaning(vector: ChannelVector) -> Any:
    if not vector.shape and not vector.optional:
        return vector.name
    return [vector.name, [e.text for e in vector.shape], vector.optional]
