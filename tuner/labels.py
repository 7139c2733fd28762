# SPDX-License-Identifier: Apache-2.0
"""What tells studies and kernels of one operator apart for a person: the workload, and what was given beside
it. A study's name has only the workload's, with a `+` where ``--shape`` changed fields of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..codegen.catalogue import catalogue
from ..codegen.errors import ColdforgeError
from ..codegen.operator import shape_words
from ..codegen.problem import make_problem
from .stored import ABOUT, checked

if TYPE_CHECKING:
    from ..codegen.catalogue import Catalogue
    from ..codegen.freeze import Winner
    from ..codegen.operator import Operator
    from .study import Study


def study_label(study: Study) -> str:
    """``small``, or ``small N=1,H=20`` as ``--workload`` and ``--shape`` take them.

    Raises:
        ColdforgeError: the study is damaged.
    """
    about = checked(study.about, ABOUT, f"study {study.name}")

    def declared() -> Operator:
        return catalogue(*(Path(root) for root in study.roots)).operator(about["operator"])

    problem = about["problem"]
    return label(about["workload"], problem["dims"], problem.get("absent") or (), declared)


def winner_label(winner: Winner, declared: Catalogue) -> str:
    """The same of a frozen kernel, whose name has a digest of its sizes."""
    absent = [name.removeprefix("has_") for name, given in winner.specialisation.items() if given == 0]
    return label(winner.workload_name, winner.workload, absent, lambda: declared.operator(winner.operator))


def label(
    workload: str, dims: Mapping[str, int], absent: Sequence[str], declared: Callable[[], Operator]
) -> str:
    """The same of a workload's name and all sizes.

    Args:
        absent: optional tensors that are left out.
        declared: gives the operator; asked only where fields were changed. Where it has no such operator or
            workload (any more), all sizes are named.
    """
    name = workload.removesuffix("+")
    if name == workload:
        return workload
    try:
        words = _changed(declared(), name, dims, absent)
    except ColdforgeError:
        words = dict(dims)
    return f"{name} {written(words)}".strip()


def _changed(operator: Operator, name: str, dims: Mapping[str, int], absent: Sequence[str]) -> dict[str, int]:
    """The fields of ``--shape`` that make the workload the problem of these sizes: where one word sets
    several of them to the value that they have, that word."""
    base = make_problem(operator, name)
    found = {size: value for size, value in dims.items() if base.dims.get(size) != value}
    for word, sizes in _together(operator).items():
        values = {found.get(size) for size in sizes}
        if len(values) == 1 and None not in values:
            found = {size: value for size, value in found.items() if size not in sizes} | {
                word: dims[sizes[0]]
            }
    for tensor in operator.optional_tensors:
        if (tensor in absent) != (tensor in base.absent):
            found[tensor] = int(tensor not in absent)
    return {word: found[word] for word in shape_words(operator) if word in found}


def fields_of(operator: Operator, workload: str) -> dict[str, Any]:
    """A workload's fields as ``--shape`` takes them, word for word as they are declared: a list as the sizes
    that it stands for, a tensor that is left out as 0."""
    found: dict[str, Any] = {}
    together = _together(operator)
    for word, value in operator.workloads[workload].items():
        if isinstance(value, list):
            found.update(zip(together.get(word, (word,)), value, strict=False))
        else:
            found[word] = int(value) if isinstance(value, bool) else value
    return found


def written(fields: Mapping[str, Any]) -> str:
    """``N=1,H=20``."""
    return ",".join(f"{word}={value}" for word, value in fields.items())


def _together(operator: Operator) -> dict[str, tuple[str, ...]]:
    """The words that set several sizes -> these."""
    family = operator.family
    found = {word: tuple(sizes) for word, sizes in family.aliases.items()}
    return found | {a.name: tuple(a.value_names) for a in family.attributes if a.pair}
