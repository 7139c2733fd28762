# SPDX-License-Identifier: Apache-2.0
"""A small convolution and a right kernel for it, for tests of verification that need no compiler."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import Problem, make_problem


def small_conv() -> Problem:
    """conv2d_divide_leaky_relu with a 20 x 22 image."""
    operator = catalogue().operator("conv2d_divide_leaky_relu")
    return make_problem(operator, "small", {"N": 2, "H": 20, "W": 22, "C_in": 4, "C_out": 8})


def good(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
    """What `TorchDevice` runs as a kernel of it."""
    x, w, b, y = tensors
    y.copy_(F.leaky_relu(F.conv2d(x, w, b) / scalars[0], scalars[1]))
