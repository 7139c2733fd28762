# SPDX-License-Identifier: Apache-2.0
# Copied by `coldforge freeze` from conv_transpose2d_mean/reference.py; do not edit.
"""PyTorch reference of the conv_transpose2d_mean family, on whatever dtype and device the tensors have.

``conv_transpose2d_mean`` is the definition and the judge. ``collapsed`` is the algebra that kernels use,
written in PyTorch: a second opinion, a peer to be timed against, and the scale of the rounding error.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

Pair = tuple[int, int]


def conv_transpose2d_mean(
    x: torch.Tensor,
    weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    *,
    stride: Pair,
    padding: Pair,
    output_padding: Pair,
    dilation: Pair,
    groups: int,
) -> torch.Tensor:
    """The transposed convolution, then the mean over its pixels; nothing collapsed.

    Args:
        x: [N, C_in, H, W].
        weight: [C_in, C_out / groups, R, S].
        conv_bias: [C_out] or None.

    Returns:
        [N, C_out, 1, 1].
    """
    y = F.conv_transpose2d(x, weight, conv_bias, stride, padding, output_padding, groups, dilation)
    return y.mean((2, 3), keepdim=True)


def _range(tap: int, extent: int, out: int, stride: int, padding: int, dilation: int) -> tuple[int, int]:
    """The inputs h in [first, end) along one axis for which tap ``tap`` falls inside the output:
    0 <= h * stride - padding + tap * dilation < out."""
    first = max(0, -((tap * dilation - padding) // stride))
    end = min(extent, (out - 1 + padding - tap * dilation) // stride + 1)
    return first, max(first, end)


def collapsed(
    x: torch.Tensor,
    weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    *,
    stride: Pair,
    padding: Pair,
    output_padding: Pair,
    dilation: Pair,
    groups: int,
) -> torch.Tensor:
    """The same without the convolution: each tap times the sum of the pixels that it meets (``groups`` 1).

    Args and result as ``conv_transpose2d_mean``. Rows that no tap misses are added once, border rows and
    columns where they count, so nothing is subtracted and nothing cancels.
    """
    extents, kernel = x.shape[2:], weight.shape[2:]
    out = [
        (n - 1) * stride[a] - 2 * padding[a] + dilation[a] * (k - 1) + output_padding[a] + 1
        for a, (n, k) in enumerate(zip(extents, kernel, strict=True))
    ]
    if padding == (0, 0):
        v = x.sum((2, 3)) @ weight.sum((2, 3))
    else:
        rows, columns = (
            [_range(t, extents[a], out[a], stride[a], padding[a], dilation[a]) for t in range(kernel[a])]
            for a in (0, 1)
        )
        v = torch.zeros((), dtype=x.dtype, device=x.device)
        for r, (top, bottom) in enumerate(rows):
            for s, (left, right) in enumerate(columns):
                v = v + x[:, :, top:bottom, left:right].sum((2, 3)) @ weight[:, :, r, s]
    v = v / (out[0] * out[1])
    v = v if conv_bias is None else v + conv_bias
    return v[:, :, None, None]


def conv_transpose2d_mean_magnitude(
    x: torch.Tensor,
    weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    *,
    stride: Pair,
    padding: Pair,
    output_padding: Pair,
    dilation: Pair,
    groups: int,
) -> torch.Tensor:
    """The sum of the absolute values of the terms that ``conv_transpose2d_mean`` adds up: the scale of its
    rounding error."""
    attributes = {"stride": stride, "padding": padding, "output_padding": output_padding}
    bias = None if conv_bias is None else conv_bias.abs()
    return collapsed(x.abs(), weight.abs(), bias, dilation=dilation, groups=groups, **attributes)


def sum_x(x: torch.Tensor, weight: torch.Tensor, conv_bias: torch.Tensor | None, **_: object) -> torch.Tensor:
    """The sum of all of ``x``: not this operator, but the time that it takes PyTorch to read ``x`` once."""
    return x.sum()
