# SPDX-License-Identifier: Apache-2.0
"""Random numbers by the gigabyte: in portions, each with a generator of its own, so that all CPUs draw.

One generator gives some 75 million normal numbers a second on one CPU. Which numbers come out depends on the
generator and the shape alone, not on how many CPUs there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

PORTION = 1 << 22
"""Elements; a tensor of no more is drawn from the generator itself."""


def normal(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Standard normal fp32 numbers on the host."""
    return _drawn(shape, generator, lambda part, own: part.normal_(generator=own))


def uniform(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """fp32 numbers from [0, 1) on the host."""
    return _drawn(shape, generator, lambda part, own: part.uniform_(generator=own))


def _drawn(
    shape: Sequence[int],
    generator: torch.Generator,
    fill: Callable[[torch.Tensor, torch.Generator], object],
) -> torch.Tensor:
    whole = torch.empty(tuple(shape))
    parts = whole.view(-1).split(PORTION)
    if len(parts) <= 1:
        fill(whole, generator)
        return whole
    seeds = torch.randint(2**62, (len(parts),), generator=generator).tolist()

    def one(part: torch.Tensor, seed: int) -> None:
        fill(part, torch.Generator().manual_seed(seed))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(one, parts, seeds))
    return whole
