# SPDX-License-Identifier: Apache-2.0
"""The steps of an epilogue chain as an operator's YAML writes them: pointwise operations and reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..templates.pointwise import POINTWISE
from ..templates.reductions import REDUCTIONS
from . import declare
from .errors import DeclarationError

Argument = float | str

CHANNELS, PIXELS = "channels", "pixels"
AXES = (CHANNELS, PIXELS)


@dataclass(frozen=True)
class EpilogueStep:
    """One step of the chain.

    Attributes:
        op: a key of ``templates.pointwise.POINTWISE``, or of ``templates.reductions.REDUCTIONS``.
        arguments: of an operation: parameter name -> a number (compiled in), or the name of a scalar or of a
            channel vector.
        over: of a reduction: ``channels`` or ``pixels``; empty for an operation.
        keepdim: of a reduction: whether the reduced axes stay, with length 1.
    """

    op: str
    arguments: tuple[tuple[str, Argument], ...] = ()
    over: str = ""
    keepdim: bool = False

    @property
    def is_reduction(self) -> bool:
        """Whether it reduces axes rather than changing each value."""
        return bool(self.over)

    def reads(self, names: Sequence[str]) -> bool:
        """Whether an argument is one of ``names``."""
        return any(isinstance(value, str) and value in names for _, value in self.arguments)


def parse_steps(
    items: Sequence[Any],
    scalars: Mapping[str, float],
    vectors: Sequence[str],
    reduces: Sequence[str],
    where: str,
) -> tuple[EpilogueStep, ...]:
    """The chain, checked as a whole.

    Args:
        scalars, vectors: names that arguments may be.
        reduces: the axes that the family's templates can reduce.

    Raises:
        DeclarationError: an unknown operation or argument, or a chain that no kernel can follow.
    """
    steps: list[EpilogueStep] = []
    gone: set[str] = set()
    for item in items:
        step = _step(item, scalars, vectors, where)
        if step.is_reduction and step.over not in reduces:
            able = " and ".join(reduces) or "nothing"
            raise DeclarationError(
                f"{where}: {step.op} over {step.over}: the templates of this family reduce {able}"
            )
        if step.over in gone:
            raise DeclarationError(f"{where}: {step.op}: the {step.over} are already reduced")
        if CHANNELS in gone and step.reads(vectors):
            raise DeclarationError(f"{where}: {step.op} reads a channel vector, but no channels are left")
        if step.is_reduction:
            gone.add(step.over)
        steps.append(step)
    return tuple(steps)


def _step(item: Any, scalars: Mapping[str, float], vectors: Sequence[str], where: str) -> EpilogueStep:
    """``relu``, ``{div: divisor}``, ``{clamp: {min: 0, max: 6}}`` or ``{logsumexp: {over: channels}}``."""
    if isinstance(item, str):
        name, given = item, {}
    elif isinstance(item, dict) and len(item) == 1:
        ((name, given),) = item.items()
    else:
        raise DeclarationError(f"{where}: expected an operation or {{operation: arguments}}, got {item!r}")
    if isinstance(name, str) and name in REDUCTIONS:
        return _reduction(name, given, f"{where}: {name}")
    if not isinstance(name, str) or name not in POINTWISE:
        known = ", ".join(sorted([*POINTWISE, *REDUCTIONS]))
        raise DeclarationError(f"{where}: unknown operation {name!r}; known: {known}")
    return EpilogueStep(name, _arguments(name, given, scalars, vectors, where))


def _reduction(name: str, given: Any, where: str) -> EpilogueStep:
    entry = declare.check_keys(given, where, ("over",), ("keepdim",))
    keepdim = entry.get("keepdim", False)
    if entry["over"] not in AXES:
        raise DeclarationError(f"{where}: over: {entry['over']!r}; it must be {' or '.join(AXES)}")
    if not isinstance(keepdim, bool):
        raise DeclarationError(f"{where}: keepdim must be true or false")
    return EpilogueStep(name, (), entry["over"], keepdim)


def _arguments(
    name: str, given: Any, scalars: Mapping[str, float], vectors: Sequence[str], where: str
) -> tuple[tuple[str, Argument], ...]:
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
    return tuple(arguments)


def _usage(name: str) -> str:
    """How a step of several parameters, or of none, is written."""
    parameters = POINTWISE[name].parameters
    if not parameters:
        return f"{name} takes no parameters; write it as a word"
    words = ", ".join(f"{p}: {'...' if default is None else default}" for p, default in parameters.items())
    return f"{name} takes {len(parameters)} parameters; name them, as in {{{name}: {{{words}}}}}"
