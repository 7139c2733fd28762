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
    """

    scalars: tuple[str, ...]
    channels: tuple[str, ...]
    lines: tuple[str, ...]


def epilogue_code(operator: Operator, language: str) -> EpilogueCode:
    """The operator's chain.

    Args:
        language: ``cuda`` takes an operation's CUDA override when it has one; ``cpp`` never does.
    """
    lines = tuple(_line(step, operator, language) for step in operator.epilogue)
    return EpilogueCode(tuple(operator.scalars), operator.channel_vectors, lines)


def _line(step: EpilogueStep, operator: Operator, language: str) -> str:
    row = POINTWISE[step.op]
    text = row.cuda_expression if language == "cuda" and row.cuda_expression else row.expression
    values = {name: _value(value, operator) for name, value in step.arguments}
    expression = _IDENTIFIER.sub(lambda m: values.get(m.group(), m.group()), text)
    return f"v = {expression};  // {step.op}"


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
