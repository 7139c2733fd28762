# SPDX-License-Identifier: Apache-2.0
"""Many small tensors between guard zones in one allocation: poisoned by one copy, compared by one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .buffers import GUARD_BYTES, NAN_BYTE

_WORD_BYTES = 8


class Arena:
    """Contiguous tensors in a row, a zone of guard bytes before, between and behind them.

    `fills` are the bytes that poison the tensors, taken in turn; NaN where none are given.

    Each lies at an address that is an odd multiple of the alignment, as in a `GuardedTensor`: a kernel that
    assumes more than the contract promises is found.

    Attributes:
        tensors: The usable parts, poisoned at first.
        storage: The whole allocation as 8-byte words.
        pattern: What the words are when poisoned.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        dtype: torch.dtype,
        device: torch.device,
        alignment_bytes: int,
        *,
        guard: int,
        guard_bytes: int = GUARD_BYTES,
        fills: Sequence[int] = (NAN_BYTE,),
    ) -> None:
        lengths = [math.prod(shape) * dtype.itemsize for shape in shapes]
        step = 2 * alignment_bytes
        room = sum(-(-length // step) * step + guard_bytes + step for length in lengths) + guard_bytes + step
        size = -(-room // step) * step
        loose = torch.empty(size + step, dtype=torch.uint8, device=device)
        whole = loose[-loose.data_ptr() % step :][:size]  # so that equal shapes lie alike in two arenas
        self._bodies: list[tuple[int, int]] = []
        at = guard_bytes
        for length in lengths:
            at += (alignment_bytes - at) % step
            self._bodies.append((at, at + length))
            at += length + guard_bytes
        whole.fill_(guard)
        for index, (begin, end) in enumerate(self._bodies):
            whole[begin:end].fill_(fills[index % len(fills)])
        self.tensors = [
            whole[begin:end].view(dtype).view(tuple(shape))
            for (begin, end), shape in zip(self._bodies, shapes, strict=True)
        ]
        self._bytes = whole
        self.storage = whole.view(torch.int64)
        self.pattern = self.storage.clone()
        mask = torch.full_like(whole, 0xFF)
        for begin, end in self._bodies:
            mask[begin:end].fill_(0)
        self._zones = mask.view(torch.int64)
        self._scratch = torch.empty_like(self.storage)

    def renew_pattern(self) -> None:
        """What the words are now is what they are to be after `poison`."""
        self.pattern.copy_(self.storage)

    def poison(self) -> None:
        """All words as the pattern has them."""
        self.storage.copy_(self.pattern)

    def outside(self) -> torch.Tensor:
        """Whether anything was written outside the tensors, as it is now: a 0-dim bool on the device."""
        torch.bitwise_xor(self.storage, self.pattern, out=self._scratch)
        return self._scratch.bitwise_and_(self._zones).any()

    def differs(self, other: Arena) -> torch.Tensor:
        """Whether any word, of the zones too, is not as in an arena of the same shapes: a 0-dim bool."""
        return (self.storage != other.storage).any()

    def changed(self) -> torch.Tensor:
        """Whether any word is not as in the pattern: a 0-dim bool on the device."""
        return (self.storage != self.pattern).any()

    # For finding out which, when it is known that something is amiss.

    def changed_at(self, index: int) -> bool:
        """Whether a tensor, or a zone beside it, is not as in the pattern."""
        begin, end = self._around(index)
        return not torch.equal(self._bytes[begin:end], self.pattern.view(torch.uint8)[begin:end])

    def outside_at(self, index: int) -> bool:
        """Whether a zone beside a tensor was written. One between two tensors belongs to both, a half to
        each."""
        (begin, end), (first, last) = self._around(index), self._bodies[index]
        pattern = self.pattern.view(torch.uint8)
        return any(not torch.equal(self._bytes[a:b], pattern[a:b]) for a, b in ((begin, first), (last, end)))

    def _around(self, index: int) -> tuple[int, int]:
        begin, end = self._bodies[index]
        before = 0 if index == 0 else (self._bodies[index - 1][1] + begin) // 2
        after = self._bytes.numel()
        if index + 1 < len(self._bodies):
            after = (end + self._bodies[index + 1][0]) // 2
        return before, after
