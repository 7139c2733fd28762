# SPDX-License-Identifier: Apache-2.0
"""What follows the linear part of an operator, as data: the steps of its chain in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    """One step on the value ``v``.

    Attributes:
        op: a row of the package's ``reference/pointwise.py`` or ``reference/reductions.py``.
        arguments: of a pointwise step: parameter -> a number, or the name of a scalar or channel vector.
        axes: of a reduction: what it reduces; empty for a pointwise step.
        keepdim: of a reduction: whether the reduced axes stay, with length 1.
        broadcast: of a step that reads a channel vector: the shape to which it is brought, -1 for the
            channels.
    """

    op: str
    arguments: Mapping[str, float | str] = field(default_factory=dict)
    axes: tuple[int, ...] = ()
    keepdim: bool = False
    broadcast: tuple[int, ...] = ()
