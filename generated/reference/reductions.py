# SPDX-License-Identifier: Apache-2.0
# Copied by `coldforge freeze` from templates/reductions.py; do not edit.
"""The reductions of an epilogue chain: over the channels, or over the pixels of an output that has one.

All of them grow with each value that they reduce, so a bound on the values bounds the result. Device code
has the same names in `coldforge/reduce.cuh` and `coldforge/cpu_reduce.hpp`.

This file imports nothing but the standard library, and torch when a reference is called: frozen packages
carry a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Reference = Callable[[torch.Tensor, Sequence[int], bool], torch.Tensor]


@dataclass(frozen=True)
class Reduction:
    """A function of all values along some axes.

    Attributes:
        name: What an operator's chain calls it; PyTorch's own name.
        reference: `reference(v, axes, keepdim)` in PyTorch, on tensors of any floating dtype.
        roundings: What a kernel's result may be off by, in units of eps times what `scale` names.
        scale: 'terms': the root of the number of terms times the reduced magnitudes; 'result': the result
            and, for a maximum and a logarithm that may cancel, 1 and the logarithm of the number of terms;
            'none': no arithmetic at all.
    """

    name: str
    reference: Reference
    roundings: int
    scale: str


def _method(name: str) -> Reference:
    """The tensor method of that name."""

    def reference(v: torch.Tensor, axes: Sequence[int], keepdim: bool) -> torch.Tensor:
        return getattr(v, name)(dim=tuple(axes), keepdim=keepdim)

    return reference


_ALL = (
    # max + log(sum(exp(v - max))). Measured up to 4096 terms: 1 when they are added in pairs; in one sequence
    # 4.3 at 128 terms and 12 at 512, as the same exponential is rounded the same way each time.
    Reduction("logsumexp", _method("logsumexp"), 8, "result"),
    Reduction("sum", _method("sum"), 2, "terms"),
    Reduction("mean", _method("mean"), 4, "terms"),
    Reduction("amax", _method("amax"), 0, "none"),
    Reduction("amin", _method("amin"), 0, "none"),
)

REDUCTIONS: Mapping[str, Reduction] = MappingProxyType({r.name: r for r in _ALL})
