# SPDX-License-Identifier: Apache-2.0
"""What the runner is told: its input stream, built from arrays, launch and order (native/runtime/job.h)."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError
from ..space import Launch

ROLES = ("input", "output", "workspace", "updated")
MAX_THREADS = 1024
_ORDER = re.compile(r"forward|reverse|shuffle:\d{1,18}")


@dataclass(frozen=True)
class Array:
    """An array of a call.

    Attributes:
        name: what findings call it.
        role: "input" is read only. "output" starts as NaN bytes, as does a "workspace", whose end content is
            not returned. "updated" starts as its value and is returned.
        value: a numpy array or a torch tensor, contiguous, on the host; of an output only shape and dtype
            matter. None for a workspace.
        workspace_bytes: a workspace's size.
        zeroed_bytes: how much of a workspace, from its start, is zero.
    """

    name: str
    role: str
    value: Any = None
    workspace_bytes: int = 0
    zeroed_bytes: int = 0

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InputError(f"array {self.name}: role {self.role!r}; it must be one of {', '.join(ROLES)}")
        if not self.name.isidentifier():
            raise InputError(f"array {self.name!r}: a name is one word")
        if (self.value is None) != (self.role == "workspace"):
            raise InputError(f"array {self.name}: a workspace has a size, every other array a value")

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.workspace_bytes if self.value is None else int(self.value.nbytes)

    def content(self) -> bytes:
        """What it holds when the kernel starts; empty if that is NaN bytes."""
        return raw_bytes(self.value) if self.role in ("input", "updated") else b""


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor, found out without importing torch."""
    return type(value).__module__.partition(".")[0] == "torch"


def raw_bytes(value: Any) -> bytes:
    """The bytes of a numpy array or a torch tensor on the host."""
    if not is_tensor(value):
        return value.tobytes()
    import torch

    flat = value.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def from_bytes(data: bytes, like: Any) -> Any:
    """The inverse of `raw_bytes`: a new array or tensor of the shape and dtype of `like`."""
    if is_tensor(like):
        import torch

        flat = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if data
            else torch.empty(0, dtype=torch.uint8)
        )
        return flat.view(like.dtype).reshape(like.shape)
    import numpy

    return numpy.frombuffer(data, dtype=like.dtype).reshape(like.shape).copy()


@dataclass(frozen=True)
class Call:
    """One launch of a variant.

    Attributes:
        launch: grid, block and shared memory, of the second kernel too.
        arrays: in the order of the argument struct; None where an optional one is absent.
        sizes: the run-time sizes, in order.
        scalars: the run-time scalars, in order.
        order: which threads and blocks go first: "forward", "reverse" or "shuffle:<seed>".
        time_limit_s: seconds of processor time it may take.
    """

    launch: Launch
    arrays: Sequence[Array | None]
    sizes: Sequence[int] = ()
    scalars: Sequence[float] = ()
    order: str = "forward"
    time_limit_s: float = 20.0
    present: tuple[Array, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not _ORDER.fullmatch(self.order):
            raise InputError(f"order {self.order!r}; it must be forward, reverse or shuffle:<seed>")
        launch = self.launch
        for grid, block in ((launch.grid, launch.block), (launch.finish_grid, launch.finish_block)):
            if (grid or launch.grid == 0) and not (grid >= 1 and 1 <= block <= MAX_THREADS):
                raise InputError(
                    f"a launch of {grid} blocks of {block} threads; it needs a block or more, of 1 to "
                    f"{MAX_THREADS} threads"
                )
        object.__setattr__(self, "present", tuple(array for array in self.arrays if array is not None))


def encode(library: str, calls: Sequence[Call]) -> bytes:
    """The runner's input."""
    return b"".join((f"library {library}\n".encode(), *(_encode_call(call) for call in calls)))


def _encode_call(call: Call) -> bytes:
    launch = call.launch
    kind, _, seed = call.order.partition(":")
    lines = [f"call {call.time_limit_s:.3f}\n", f"order {kind} {seed or 0}\n"]
    lines.append(f"kernel coldforge_kernel {launch.grid} {launch.block} {launch.shared_bytes}\n")
    if launch.finish_grid:
        shape = f"{launch.finish_grid} {launch.finish_block} {launch.finish_shared_bytes}"
        lines.append(f"kernel coldforge_finish {shape}\n")
    pieces = ["".join(lines).encode()]
    for array in call.present:
        content = array.content()
        head = f"array {array.role} {array.nbytes} {array.zeroed_bytes} {len(content)} {array.name}\n"
        pieces += [head.encode(), content]
    return b"".join((*pieces, _encode_words(call).encode()))


def _encode_words(call: Call) -> str:
    """The argument struct: pointers, then sizes, then scalars, 8 bytes each."""
    words, place = [], 0
    for array in call.arrays:
        words.append("number 0" if array is None else f"address {place}")
        place += array is not None
    words += [f"number {struct.unpack('<Q', struct.pack('<q', size))[0]}" for size in call.sizes]
    words += [f"number {struct.unpack('<Q', struct.pack('<d', scalar))[0]}" for scalar in call.scalars]
    return "\n".join(words) + "\n"
