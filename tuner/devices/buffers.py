# SPDX-License-Identifier: Apache-2.0
"""Tensors between guard zones: stray writes are seen, stray reads give NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

GUARD_BYTES = 1 << 17
"""Bytes of guard on either side of an output: many rows of any workload: a stray tile lands inside."""

INPUT_GUARD_BYTES = 1 << 15
"""Bytes of guard on either side of an input: a halo's width of rows is what a wrong kernel reads too far."""

NAN_BYTE = 0xFF
"""Fills a float of any width with a NaN."""

STALE_BYTES = 0x7B, 0xFB
"""Fill a float of any width with a large finite number, of either sign, and an integer likewise. A maximum or
a minimum that begins with what lies in the memory drops a NaN and keeps one of these."""

OUTPUT_BYTE = 0x5A
"""Fills the zones around an output."""


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
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        alignment_bytes: int,
        *,
        guard: int,
        guard_bytes: int = GUARD_BYTES,
    ) -> GuardedTensor:
        """Allocates `shape` at an address that is an odd multiple of `alignment_bytes`.

        So a kernel that assumes more than the contract promises is found here and not by a user.
        """
        length = math.prod(shape) * dtype.itemsize
        whole = -(-(length + 2 * guard_bytes + 2 * alignment_bytes) // 8) * 8
        storage = torch.empty(whole, dtype=torch.uint8, device=device)
        first = storage.data_ptr() + guard_bytes
        start = guard_bytes + (alignment_bytes - first) % (2 * alignment_bytes)
        result = cls(
            storage[start : start + length].view(dtype).view(tuple(shape)),
            storage,
            storage[:start],
            storage[start + length :],
            guard,
        )
        result.poison()
        return result

    def poison(self, fill: int = NAN_BYTE) -> None:
        """Fills the tensor with NaN, or with another byte, and renews the guard zones."""
        for zone, byte in ((self.tensor.view(-1).view(torch.uint8), fill), *self._zones()):
            words, ends = _by_words(zone)
            words.fill_(_repeated(byte))
            for end in ends:
                if end.numel():
                    end.fill_(byte)

    def intact(self) -> bool:
        """True when nothing was written outside the tensor."""
        return not bool(self.outside())

    def outside(self) -> torch.Tensor:
        """Whether anything was written outside the tensor: a 0-dim bool on its device, not waited for."""
        found = []
        for zone, byte in self._zones():
            words, ends = _by_words(zone)
            found.append((words != _repeated(byte)).any())
            if rest := [end for end in ends if end.numel()]:
                found.append((torch.cat(rest) != byte).any())
        return torch.stack(found).any()

    def _zones(self) -> tuple[tuple[torch.Tensor, int], tuple[torch.Tensor, int]]:
        return (self.front, self.guard), (self.back, self.guard)


def _by_words(zone: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Bytes as aligned 8-byte words and the odd bytes at the ends: this runs hundreds of times a variant."""
    ragged = min(-zone.data_ptr() % 8, zone.numel())
    end = ragged + (zone.numel() - ragged) // 8 * 8
    return zone[ragged:end].view(torch.int64), (zone[:ragged], zone[end:])


def _repeated(byte: int) -> int:
    return int.from_bytes(bytes([byte]) * 8, "little", signed=True)
