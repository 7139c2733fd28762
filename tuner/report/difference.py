# SPDX-License-Identifier: Apache-2.0
"""The winner's source with what the default config's had in its place."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_AROUND = 3
"""Equal lines shown before and after a change."""
_WORTH_FOLDING = 4


@dataclass(frozen=True)
class Line:
    """One line of a source.

    Attributes:
        kind: ``same``, ``added`` (the winner's alone) or ``removed`` (the default's alone).
        number: in the winner's source, from 1; in the default's for ``removed``.
        text: without its end.
    """

    kind: str
    number: int
    text: str


@dataclass(frozen=True)
class Block:
    """Lines that are shown together.

    Attributes:
        folded: whether they are equal in both and far from any change.
    """

    lines: tuple[Line, ...]
    folded: bool = False


@dataclass(frozen=True)
class Difference:
    """Of two sources.

    Attributes:
        blocks: all of the winner's lines, and the default's that differ.
        added, removed: how many lines only the winner has, and only the default.
        compared: whether there was another source.
    """

    blocks: tuple[Block, ...]
    added: int = 0
    removed: int = 0
    compared: bool = False


def difference(winner: str, default: str | None) -> Difference:
    """Sets the winner's source against the default's.

    Args:
        default: None when there is none to compare with: then all lines are the winner's.
    """
    new = winner.splitlines()
    if default is None:
        return Difference((Block(tuple(Line("same", n, text) for n, text in enumerate(new, 1))),))
    lines = list(_lines(default.splitlines(), new))
    kinds = [line.kind for line in lines]
    blocks = tuple(_blocks(lines))
    return Difference(blocks, kinds.count("added"), kinds.count("removed"), compared=True)


def _lines(old: Sequence[str], new: Sequence[str]) -> Iterator[Line]:
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        if tag == "equal":
            yield from (Line("same", n + 1, new[n]) for n in range(new_from, new_to))
            continue
        yield from (Line("removed", n + 1, old[n]) for n in range(old_from, old_to))
        yield from (Line("added", n + 1, new[n]) for n in range(new_from, new_to))


def _blocks(lines: Sequence[Line]) -> Iterator[Block]:
    """Runs of equal lines that no change is near are blocks of their own."""
    near = [False] * len(lines)
    for index, line in enumerate(lines):
        if line.kind != "same":
            low, high = max(0, index - _AROUND), index + _AROUND + 1
            near[low:high] = [True] * len(near[low:high])
    begin = 0
    shown: list[Line] = []
    while begin < len(lines):
        end = begin
        while end < len(lines) and near[end] == near[begin]:
            end += 1
        run = tuple(lines[begin:end])
        if near[begin] or len(run) < _WORTH_FOLDING:
            shown += run
        else:
            if shown:
                yield Block(tuple(shown))
                shown = []
            yield Block(run, folded=True)
        begin = end
    if shown:
        yield Block(tuple(shown))
