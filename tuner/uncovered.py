# SPDX-License-Identifier: Apache-2.0
"""Why no frozen kernel answered a call: what the package's own warning says, and the compiled-in sizes in
which the call differs from what is frozen."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from .shapes import describe

if TYPE_CHECKING:
    from ..codegen.problem import Problem

_COVERS = "no frozen kernel covers "


@contextmanager
def warnings_of(package: str) -> Iterator[list[warnings.WarningMessage]]:
    """While it lasts, warnings are kept and not shown; the package gives each of its own anew.

    Args:
        package: of frozen kernels; one that cannot be imported gives none.
    """
    with suppress(ImportError, AttributeError):  # what is wrong with it is told where it is called
        importlib.import_module(f"{package}.runtime.fallback").forget_warnings()
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        yield met


def refusal(problem: Problem, kind: str, package: str, met: list[warnings.WarningMessage], why: str) -> str:
    """One line that says why the PyTorch reference answered, and what would help.

    Args:
        kind: of the target.
        met: what the call warned of.
        why: the reason where it did not warn.
    """
    operator = problem.operator.name
    start = f"coldforge: {operator} runs the PyTorch reference: "
    said = next((str(w.message).removeprefix(start) for w in met if str(w.message).startswith(start)), "")
    reason, _, advice = said.partition("; ")
    if not reason or reason.startswith(_COVERS):  # it lists all that is compiled in, whatever the cause
        reason = why
    sizes = " ".join([describe(problem), *_differing(problem, kind, package)])
    return f"{operator} ({problem.dtype.name}, {sizes}): {reason}" + (f"; {advice}" if advice else "")


def _differing(problem: Problem, kind: str, package: str) -> list[str]:
    """The compiled-in values in which the nearest frozen kernel has others."""
    own = {name: value for name, value in problem.specialisation.items() if name != "dtype"}
    fewest = min((_others(own, entry) for entry in _entries(problem, kind, package)), key=len, default=[])
    return [f"{name}={own[name]}" for name in fewest]


def _others(own: dict[str, Any], entry: dict[str, Any]) -> list[str]:
    frozen = entry["specialisation"]
    return [name for name, value in own.items() if frozen.get(name) != value]


def _entries(problem: Problem, kind: str, package: str) -> list[dict[str, Any]]:
    """The operator's entries for that kind of target; those of the dtype where there are some."""
    entries = importlib.import_module(f"{package}.runtime.manifest").load().entries
    own = [e for e in entries if e["operator"] == problem.operator.name and e["target"]["kind"] == kind]
    return [e for e in own if e["dtype"] == problem.dtype.name] or own
