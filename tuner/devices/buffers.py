# SPDX-License-Identifier: Apache-2.0
"""Tensors between guard zones: stray writes are seen, stray reads give NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

GUARD_BYTES = 1 << 17
"""Bytes of guard on either side: many rows of any workload, so that a lost tile edge lands inside."""

NAN_BYTE = 0xFF
"""Fills a float of any width with a NaN."""


@dataclass(frozen=True)
class GuardedTensor:
    """A contiguous tensor in the middle of one allocation.

    Attributes:
        tensor: The usable part.
        storage: The whole allocation, as bytes, a multiple of 8.
        front, back: Byte views of the zones around it.
        guard: The byte that fills the zones. Zones around an output differ from NaN_BYTE: a kernel that
            reads a poisoned byte may write that very NaN, which must not look like an intact zone.
    """

    tensor: torch.Tensor
    storage: torch.Tensor
    front: torch.Tensor
    back: torch.Tensor
    guard: int

    @classmethod
    def allocate(
        cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device, alignment_bytes: int, guard: int
    ) -> GuardedTensor:
        """Allocates `shape` at an address that is an odd multiple of `alignment_bytes`.

        So a kernel that assumes more than the contract promises is found here and not by a user.
        """
        length = math.prod(shape) * dtype.itemsize
        whole = -(-(length + 2 * GUARD_BYTES + 2 * alignment_bytes) // 8) * 8
        storage = torch.empty(whole, dtype=torch.uint8, device=device)
        first = storage.data_ptr() + GUARD_BYTES
        start = GUARD_BYTES + (alignment_bytes - first) % (2 * alignment_bytes)
        result = cls(
            storage[start : start + length].view(dtype).view(tuple(shape)),
            storage,
            storage[:start],
            storage[start + length :],
            guard,
        )
        result.poison()
        return result

    def poison(self) -> None:
        """Fills the tensor with NaN and renews the guard zones."""
        self.tensor.view(-1).view(torch.uint8).fill_(NAN_BYTE)
        self.front.fill_(self.guard)
        self.back.fill_(self.guard)

    def intact(self) -> bool:
        """True when nothing was written outside the tensor."""
        return bool((self.front == self.guard).all()) and bool((self.back == self.guard).all())
