# SPDX-License-Identifier: Apache-2.0
"""The epilogue chain as kernel statements: one assignment to ``v`` for each operation, CUDA and C++ alike."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..templates.pointwise import POINTWISE
from .chain import active
from .operator import Operator
from .steps import PIXELS, EpilogueStep

# What an operation that scales or shifts does to a and b of a * v + b.
_AFFINE = {
    "add": "b += double({0});",
    "sub": "b -= double({0});",
    "mul": "a *= double({0}); b *= double({0});",
    "div": "a /= double({0}); b /= double({0});",
}
_IDENTIFIER = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*\b")


@dataclass(frozen=True)
class EpilogueCode:
    """What a template needs to emit the chain, or the part of it on one side of a reduction.

    Attributes:
        scalars: run-time scalars, read once into ``const float`` members of the same name.
        channels: channel vectors, indexed by ``channel`` where they are used.
        lines: statements on ``float v``, in order.
        affine: statements on ``double a, b`` for the operations at the front that only scale and shift: they
            make ``a * v + b`` of v when a starts as 1 and b as 0.
        rest: the statements of ``lines`` that follow those operations.
        hoisted: (member, expression over the scalars): computed once a call; empty for CUDA.
        reduction: the reduction over the channels that follows ``lines``; empty for none. One over pixels
            has one value to reduce and needs no code.
        after: the operations behind it; None without a reduction.
    """

    scalars: tuple[str, ...]
    channels: tuple[str, ...]
    lines: tuple[str, ...]
    hoisted: tuple[tuple[str, str], ...] = ()
    reduction: str = ""
    after: EpilogueCode | None = None
    affine: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()


def epilogue_code(operator: Operator, language: str, absent: Sequence[str] = ()) -> EpilogueCode:
    """The operator's chain.

    Args:
        language: ``cuda`` takes an operation's CUDA override when it has one; ``cpp`` never does.
        absent: channel vectors that the call leaves out, and with them the steps that read them.
    """
    steps = [s for s in active(operator.epilogue, absent) if s.over != PIXELS]
    place = next((i for i, step in enumerate(steps) if step.is_reduction), None)
    vectors = tuple(name for name in operator.channel_vectors if name not in absent)
    if place is None:
        return _part(steps, 0, operator, vectors, language)
    after = _part(steps[place + 1 :], place + 1, operator, (), language)
    before = _part(steps[:place], 0, operator, vectors, language)
    return replace(before, reduction=steps[place].op, after=after)


def _part(
    steps: Sequence[EpilogueStep], first: int, operator: Operator, vectors: tuple[str, ...], language: str
) -> EpilogueCode:
    parts = [_step(step, first + index, operator, language) for index, step in enumerate(steps)]
    hoisted = tuple(member for _, members in parts for member in members)
    lines = tuple(line for line, _ in parts)
    affine = [
        _AFFINE[step.op].format(*(_value(value, operator) for _, value in step.arguments))
        for step in itertools.takewhile(lambda step: step.op in _AFFINE, steps)
    ]
    return EpilogueCode(
        tuple(operator.scalars), vectors, lines, hoisted, affine=tuple(affine), rest=lines[len(affine) :]
    )


def _step(
    step: EpilogueStep, index: int, operator: Operator, language: str
) -> tuple[str, list[tuple[str, str]]]:
    """The statement of one step, and the members that it wants computed once a call."""
    row = POINTWISE[step.op]
    names = {name: _value(value, operator) for name, value in step.arguments}
    text, hoisted = row.expression, {}
    if language == "cuda":
        text = row.cuda_expression or text
    elif row.cpu_expression and not any(value in operator.channel_vectors for _, value in step.arguments):
        text, hoisted = row.cpu_expression, row.cpu_hoisted
    # The index keeps apart what two steps of one operation hoist.
    members = {name: f"{name}_of_step_{index}" for name in hoisted}
    line = f"v = {_substituted(text, {**names, **members})};  // {step.op}"
    return line, [(members[name], _substituted(part, names)) for name, part in hoisted.items()]


def _substituted(text: str, names: dict[str, str]) -> str:
    return _IDENTIFIER.sub(lambda m: names.get(m.group(), m.group()), text)


def _value(value: float | str, operator: Operator) -> str:
    if isinstance(value, str):
        return value if value in operator.scalars else f"float({value}[channel])"
    return float_literal(value)


def float_literal(value: float) -> str:
    """A C literal of type float with the exact value that ``float32(value)`` has."""
    import struct

    (rounded,) = struct.unpack("f", struct.pack("f", value))
    text = f"{rounded:.9g}"
    if not any(mark in text for mark in ".e"):
        text += ".0"
    return f"({text}f)" if rounded < 0 else f"{text}f"
