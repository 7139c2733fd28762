# SPDX-License-Identifier: Apache-2.0
# Copied by `coldforge freeze` from conv2d/reference.py; do not edit.
"""PyTorch reference of the conv2d family, on whatever dtype and device the tensors have."""

from __future__ import annotations

import torch
import torch.nn.functional as F

Pair = tuple[int, int]


def conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> torch.Tensor:
    """The convolution before its epilogue.

    Args:
        x: [N, C_in, H, W].
        weight: [C_out, C_in / groups, R, S].
        bias: [C_out] or None.

    Returns:
        [N, C_out, H_out, W_out].
    """
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def conv2d_magnitude(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> torch.Tensor:
    """The sum of the absolute values of the terms that ``conv2d`` adds up: the scale of its rounding
    error."""
    magnitude = None if bias is None else bias.abs()
    return F.conv2d(x.abs(), weight.abs(), magnitude, stride, padding, dilation, groups)
