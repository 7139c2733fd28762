# SPDX-License-Identifier: Apache-2.0
"""The base of the generated `torch.nn` modules: parameters named and initialised as PyTorch's own layers
do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn


class FrozenModule(nn.Module):
    """Holds an operator's parameters.

    Attributes:
        starts: parameters that start at one value instead of at random.
    """

    def __init__(self) -> None:
        super().__init__()
        self.starts: dict[str, float] = {}

    def add_parameter(
        self,
        name: str,
        shape: Sequence[int],
        present: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Registers a parameter; an absent one as None, so that `state_dict` leaves it out."""
        value = nn.Parameter(torch.empty(tuple(shape), device=device, dtype=dtype)) if present else None
        self.register_parameter(name, value)

    def reset_parameters(self) -> None:
        """Draws the parameters as `torch.nn`'s convolutions do: with the same seed the same numbers.

        Filters are uniform in +-1/sqrt(fan_in) (Kaiming, a = sqrt(5)), and so is what is added to their
        result.
        """
        fan_in = 1
        for name, parameter in self.named_parameters(recurse=False):
            if name in self.starts:
                nn.init.constant_(parameter, self.starts[name])
            elif parameter.dim() > 1:
                nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))
                fan_in = parameter[0].numel()
            else:
                bound = 1 / math.sqrt(fan_in)
                nn.init.uniform_(parameter, -bound, bound)

    def describe(self, *names: str) -> str:
        """`name=value` of the given attributes, and the parameters' shapes."""
        shapes = [f"{n}={list(p.shape)}" for n, p in self.named_parameters(recurse=False)]
        return ", ".join(shapes + [f"{name}={getattr(self, name)!r}" for name in names])
