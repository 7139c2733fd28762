# SPDX-License-Identifier: Apache-2.0
"""The two ways in which CUDA's libraries treat fp32 operands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .base import MathMode


def library_modes() -> tuple[MathMode, ...]:
    """fp32 as it is, and fp32 rounded to TF32 on the way into the matrix units."""
    return (
        MathMode("", "fp32", lambda: _tf32_allowed(False)),
        MathMode("_tf32", "tf32", lambda: _tf32_allowed(True)),
    )


@contextlib.contextmanager
def _tf32_allowed(allowed: bool) -> Iterator[None]:
    """Lets the libraries round fp32 operands to TF32, or forbids it (cuDNN's default is to do it)."""
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = allowed, allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
