# SPDX-License-Identifier: Apache-2.0
"""The judge's quick eye: the worst ratio and the error of an output, without a wait and in few passes.

Judging a large output moves far more bytes than the kernel that made it. Here the difference is taken in
float64 and kept in float32, a part of the output at a time that fits a cache, and figures stay on the device
until all are asked for at once. Rounding a difference to float32 moves a ratio by 1e-7 of itself, so a ratio
under `CERTAIN` is a pass for certain; anything else is for `bound.judge`, whose word counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .bound import Expectation

CERTAIN = 1.0 - 1e-6
"""A ratio up to here is within the bound whatever its own rounding."""

_PART = {"cpu": 1 << 18, "cuda": 1 << 23}
"""Outputs at a time, by kind of device: the differences stay in its cache, and launches are few."""


def ratios(
    output: torch.Tensor, reference: torch.Tensor, tolerance: torch.Tensor, difference: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Least and greatest (out - ref) / tolerance, and the L2 norm of out - ref: three numbers on the device.

    Args:
        output: Flat, of any float dtype.
        reference: float64, all finite.
        tolerance: float32, all above zero.
        difference: float32, scratch of the same length; the ratios afterwards.

    Returns:
        NaN where an output is NaN.
    """
    norm = torch.linalg.vector_norm(subtract(output, reference, difference))
    least, most = difference.div_(tolerance).aminmax()
    return least, most, norm


def subtract(output: torch.Tensor, reference: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    """Puts out - ref into the float32 `difference`; returns it, in float64 where that costs nothing."""
    if difference.device.type != "cpu":
        # One pass that computes in float64 and writes float32.
        return torch.sub(output, reference, out=difference)
    wide = output.double().sub_(reference)
    difference.copy_(wide)
    return wide


class Judge:
    """Judges outputs of any size of one device; keeps its scratch memory."""

    def __init__(self, device: torch.device) -> None:
        self._part = _PART.get(device.type, _PART["cpu"])
        self._difference = torch.empty(0, device=device)

    def look(self, output: torch.Tensor, expected: Expectation) -> torch.Tensor:
        """Figures of each part on the device, shape [3, parts]: see `ratios`. Only for finite references."""
        got, want = output.reshape(-1), expected.reference.view(-1)
        allowed = expected.tolerance.view(-1)
        count = min(self._part, got.numel())
        if self._difference.numel() < count:
            self._difference = torch.empty(count, device=got.device)
        found = []
        for first in range(0, got.numel(), self._part):
            part = slice(first, first + self._part)
            one = got[part]
            found.append(ratios(one, want[part], allowed[part], self._difference[: one.numel()]))
        # One launch for all: a hundred small ones take longer than what they wait for.
        return torch.stack([torch.stack(column).double() for column in zip(*found, strict=True)])


def summed(figures: Sequence[Sequence[float]], norm: float) -> tuple[float, float]:
    """The worst |ratio| (infinite for a NaN) and the relative L2 error that parts have together."""
    worst, error2 = 0.0, 0.0
    for least, most, part in zip(*figures, strict=True):
        here = max(-least, most)
        worst = max(worst, math.inf if math.isnan(least + most) else here)
        error2 += part * part
    if norm > 0:
        return worst, math.sqrt(error2) / norm
    return worst, math.inf if error2 > 0 else 0.0
