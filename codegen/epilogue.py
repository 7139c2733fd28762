# SPDX-License-Identifier: Apache-2.0
"""The epilogue chain as kernel statements: one assignment to ``v`` for each operation, CUDA and C++ alike."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..templates.pointwise import POINTWISE
from .operator import EpilogueStep, Operator

_IDENTIFIER = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*\b")


@dataclass(frozen=True)
class EpilogueCode:
    """What a template needs to emit the chain.

    Attributes:
        scalars: run-time scalars, read once into ``const float`` members of the same name.
        channels: channel vectors, indexed by ``channel`` where they are used.
        lines: statements on ``float v``, in order.
        hoisted: (member, expression over the scalars): computed once a call; empty for CUDA.
    """

    scalars: tuple[str, ...]
    channels: tuple[str, ...]
    lines: tuple[str, ...]
    hoisted: tuple[tuple[str, str], ...] = ()


def epilogue_code(operator: Operator, language: str) -> EpilogueCode:
    """The operator's chain.

    Args:
        language: ``cuda`` takes an operation's CUDA override when it has one; ``cpp`` never does.
    """
    steps = [_step(step, index, operator, language) for index, step in enumerate(operator.epilogue)]
    hoisted = tuple(member for _, members in steps for member in members)
    lines = tuple(line for line, _ in steps)
    return EpilogueCode(tuple(operator.scalars), operator.channel_vectors, lines, hoisted)


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
