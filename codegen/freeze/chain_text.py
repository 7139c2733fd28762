# SPDX-License-Identifier: Apache-2.0
"""An epilogue chain as the Python statements of a frozen reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ..chain import Roles, reduced_axes, roles_after, roles_of
from ..operator import Operator
from ..steps import CHANNELS, EpilogueStep


@dataclass(frozen=True)
class ChainTexts:
    """The chain as text, cut at its reduction over the channels if there is one.

    Attributes:
        operations, reductions: the names that it uses, in order, each once.
        lines: the statements on ``v``, the last of them a return.
        before, after: the statements on either side of the reduction over the channels; empty without one.
        reduction: its name; empty without one.
        axes: the axes that it reduces.
        keepdim: whether they stay, with length 1.
        steps: every step as the runtime's ``Step``.
    """

    operations: tuple[str, ...]
    reductions: tuple[str, ...]
    lines: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    reduction: str = ""
    axes: tuple[int, ...] = ()
    keepdim: bool = False
    steps: tuple[str, ...] = ()


def chain_texts(operator: Operator) -> ChainTexts:
    """The operator's chain in PyTorch."""
    roles = roles_of(operator.family)
    all_roles: list[Roles] = []
    for step in operator.epilogue:
        all_roles.append(roles)
        roles = roles_after(step, roles)
    pairs = list(zip(operator.epilogue, all_roles, strict=True))
    operations = dict.fromkeys(s.op for s in operator.epilogue if not s.is_reduction)
    reductions = dict.fromkeys(s.op for s in operator.epilogue if s.is_reduction)
    steps = tuple(_step(operator, step, roles) for step, roles in pairs)
    whole = ChainTexts(tuple(operations), tuple(reductions), _statements(operator, pairs), steps=steps)
    place = next((i for i, (step, _) in enumerate(pairs) if step.over == CHANNELS), None)
    if place is None:
        return whole
    step, at = pairs[place]
    return ChainTexts(
        whole.operations,
        whole.reductions,
        whole.lines,
        before=_statements(operator, pairs[:place]),
        after=_statements(operator, pairs[place + 1 :]),
        reduction=step.op,
        axes=reduced_axes(step, at),
        keepdim=step.keepdim,
        steps=steps,
    )


def _step(operator: Operator, step: EpilogueStep, roles: Roles) -> str:
    name = json.dumps(step.op)
    if step.is_reduction:
        return f"Step({name}, axes={reduced_axes(step, roles)}, keepdim={step.keepdim})"
    given = ", ".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in step.arguments)
    if not step.reads(operator.channel_vectors):
        return f"Step({name}, {{{given}}})"
    return f"Step({name}, {{{given}}}, broadcast={_broadcast(roles)})"


def _broadcast(roles: Roles) -> tuple[int, ...]:
    """The shape by which a channel vector meets values of those axes."""
    return tuple(-1 if role == CHANNELS else 1 for role in roles)


def _statements(operator: Operator, pairs: Sequence[tuple[EpilogueStep, Roles]]) -> tuple[str, ...]:
    optional = [vector.name for vector in operator.vectors if vector.optional]
    lines: list[str] = []
    for index, (step, roles) in enumerate(pairs):
        call = _call(operator, step, roles)
        absent = [value for _, value in step.arguments if isinstance(value, str) and value in optional]
        if absent:
            present = " and ".join(f"{name} is not None" for name in dict.fromkeys(absent))
            lines += [f"if {present}:", f"    v = {call}"]
        elif index == len(pairs) - 1:
            return (*lines, f"return {call}")
        else:
            lines.append(f"v = {call}")
    return (*lines, "return v")


def _call(operator: Operator, step: EpilogueStep, roles: Roles) -> str:
    if step.is_reduction:
        return f"_{step.op}(v, {list(reduced_axes(step, roles))}, {step.keepdim})"
    shape = list(_broadcast(roles))
    given = []
    for name, value in step.arguments:
        text = value if isinstance(value, str) else repr(value)
        if value in operator.channel_vectors:
            text = f"{text}.to(v.dtype).reshape({shape})"
        given.append(f", {name}={text}")
    return f"_{step.op}(v{''.join(given)})"
