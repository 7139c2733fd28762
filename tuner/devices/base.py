# SPDX-License-Identifier: Apache-2.0
"""The contract between the worker and a device: everything that differs between targets is behind it.

A `Device` lives in the worker process only (the parent never makes a context). It loads artifacts, binds a
kernel to its arguments, launches, waits, samples times, and tells what it is. Verification and measurement
are written once against it. Rules that every device keeps:

* one thread uses a device; nothing is locked here;
* `bind` may be slow (it packs arguments), the `Call` it returns only enqueues and never waits: the zeroing of
  the workspace's start, the kernel, and the second kernel, each where the launch asks for it, in this order;
* a refusal that harms nothing raises `LaunchRefused` (too much shared memory, bad grid, unloadable binary);
  anything after which the process cannot be trusted raises `DeviceFault`, from any method: the worker exits;
* a kernel's fault may surface late: `synchronize` raises it.
"""

from __future__ import annotations

import contextlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...codegen.errors import ColdforgeError
from .buffers import INPUT_GUARD_BYTES, NAN_BYTE, OUTPUT_BYTE, GuardedTensor

if TYPE_CHECKING:
    from ...codegen.compile.artifact import Artifact
    from ...codegen.settings import Settings
    from ...codegen.space import Launch
    from ...codegen.target import Target
    from .meters import Meter

_NO_HOST_MEMORY = "DefaultCPUAllocator"
"""In the text of PyTorch's error when the host has no memory: it has no class of its own."""

Call = Callable[[], object]
"""Enqueues work on the device's current stream and returns at once; its value is ignored."""


class LaunchRefused(ColdforgeError):
    """The device refused to load or launch a kernel, and is unharmed."""


class DeviceFault(ColdforgeError):
    """A kernel broke the process's device state (illegal address, trap, ...): replace the worker."""


@dataclass(frozen=True)
class MathMode:
    """A setting of the library's arithmetic under which peers are timed.

    Attributes:
        suffix: Appended to a peer's name: "" for the dtype's own class, "_tf32" and the like for others.
        precision: The error class the mode stands for ('fp32', 'tf32', ...).
        enter: Makes the context manager that switches the mode on.
    """

    suffix: str
    precision: str
    enter: Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class GraphTime:
    """The time of one launch from a captured graph, with a warm cache.

    Attributes:
        time_ms: None where the call cannot be captured.
        reason: Why it cannot, in one line; empty when it can.
    """

    time_ms: float | None
    reason: str = ""


class Device(ABC):
    """One device of one worker.

    Args:
        target: What kernels are compiled for; also gives thread counts and cache sizes.
        settings: Where state lives.
    """

    kind: str  # 'cuda' or 'cpu'
    torch_device: torch.device
    alignment_bytes: int = 16  # what kernels may assume of a base pointer (cuda: 256)
    workspace_alignment_bytes: int = 64  # and of the workspace (cuda: 256)
    wants_quiet: bool = False  # whether other work on this machine disturbs what is timed
    cold_headline: bool = False  # whether the headline time is taken with a flushed cache

    def __init__(self, target: Target, settings: Settings) -> None:
        self.target = target
        self.settings = settings

    # --- kernels ---

    @abstractmethod
    def load(self, artifact: Artifact) -> Any:
        """Loads a compiled variant and returns an opaque handle.

        Raises:
            LaunchRefused: The file is not loadable here or lacks the entry symbol `coldforge_kernel`. It may
                lack `coldforge_finish`: `bind` refuses a launch that asks for it.
        """

    @abstractmethod
    def unload(self, kernel: Any) -> None:
        """Gives a handle's memory back, where the device can. Calls bound to it must not be used again."""

    @abstractmethod
    def bind(
        self,
        kernel: Any,
        launch: Launch,
        tensors: Sequence[torch.Tensor | None],
        sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> Call:
        """Packs the arguments once and returns the call that enqueues one launch, second kernel included.

        Args:
            kernel: A handle from `load`.
            launch: The evaluated launch of these sizes.
            tensors: In ABI order (inputs, channel vectors, output, workspace if the space declares one); an
                absent optional is None. The call keeps them alive.
            sizes: The run-time sizes in ABI order.
            scalars: The epilogue's scalars in ABI order.

        Raises:
            LaunchRefused: The launch breaks a limit of the device, or asks for a second kernel that the
                binary does not have; some limits only show when called.
            ValueError: The launch has a workspace and the last tensor is none.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for all enqueued work. Raises DeviceFault for a fault of any of it."""

    # --- timing ---

    @abstractmethod
    def sample_ms(self, calls: Sequence[Call], count: int, *, cold: bool) -> list[float]:
        """Times `count` single calls, taking `calls` in rotation, each sample the time of one call in ms.

        A call may be a bound kernel or any function that enqueues torch work, so that peers are timed exactly
        as kernels are. Device work of the call is all inside the timed region, on whichever stream it is: a
        call for which `works_aside` is true is timed until all streams are done. With `cold`, caches are
        flushed (by reading) before each sample; a device without a flush ignores it.

        Raises:
            DeviceFault: A call faulted.
        """

    def works_aside(self, call: Call) -> bool:
        """Whether a call has work done on another stream than the current one, in such a way that the
        current one does not wait for all of it. Its samples then include what the host takes to launch."""
        return False

    def graph_time(self, calls: Sequence[Call]) -> GraphTime | None:
        """The time of one launch when each of `calls` is captured once as a graph, and these are replayed
        back to back in rotation; None on a device that has no graphs.

        Raises:
            DeviceFault: A call faulted.
        """
        return None

    def batch(self, calls: Sequence[Call], count: int) -> tuple[Call, int]:
        """One call that enqueues `calls` in rotation, as close together as the device can, and how many of
        them: `count` or somewhat more."""

        def enqueue() -> None:
            for index in range(count):
                calls[index % len(calls)]()

        return enqueue, count

    @abstractmethod
    def flush(self) -> None:
        """Evicts what caches hold by reading a buffer larger than the last one; enqueues only."""

    @abstractmethod
    def settle(self) -> None:
        """Keeps the device busy until its clocks are steady (bounded: about a second); may do nothing."""

    # --- what it is ---

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """The record kept with each result, plain JSON.

        At least: model, driver (or None), torch, arch. cuda adds what `nvml.READINGS` names (None where it
        cannot be read); cpu adds threads, clock_mhz.
        """

    def state(self) -> dict[str, Any]:
        """The part of `facts` that changes while one works: clocks, temperature and the like. Takes about a
        millisecond."""
        return {}

    def meter(self) -> Meter | None:
        """What its energy is read from; None where nothing tells."""
        return None

    def math_modes(self, dtype: str) -> tuple[MathMode, ...]:
        """The modes under which the peers are timed, the dtype's own class first. cuda adds TF32 for fp32."""
        return (MathMode("", dtype, contextlib.nullcontext),)

    # --- memory: the same for all, by torch ---

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> GuardedTensor:
        """Allocates a poisoned output between guard zones, at the weakest alignment a kernel may assume."""
        on, alignment = self.torch_device, self.alignment_bytes
        return GuardedTensor.allocate(shape, dtype, on, alignment, guard=OUTPUT_BYTE)

    def allocate_workspace(self, size_bytes: int) -> GuardedTensor | None:
        """Allocates a poisoned workspace as `allocate` does an output; None for one of no bytes."""
        if size_bytes == 0:
            return None
        on, alignment = self.torch_device, self.workspace_alignment_bytes
        return GuardedTensor.allocate((size_bytes,), torch.uint8, on, alignment, guard=OUTPUT_BYTE)

    def workspace_address(self, launch: Launch, tensors: Sequence[torch.Tensor | None]) -> int:
        """The address of a call's workspace, which is the last tensor; 0 where the launch has none.

        Raises:
            ValueError: The last tensor is too small or not aligned as kernels may assume: it is no workspace.
        """
        if launch.workspace_bytes == 0:
            return 0
        last = tensors[-1] if tensors else None
        if last is None or last.nbytes < launch.workspace_bytes:
            raise ValueError(f"the last tensor is no workspace of {launch.workspace_bytes} bytes")
        if last.data_ptr() % self.workspace_alignment_bytes:
            raise ValueError(f"the workspace is not aligned to {self.workspace_alignment_bytes} bytes")
        return last.data_ptr()

    def place(self, value: torch.Tensor) -> GuardedTensor:
        """Copies an input to the device between guard zones of NaN bytes: stray reads show in the output."""
        on, alignment = self.torch_device, self.alignment_bytes
        buffer = GuardedTensor.allocate(
            value.shape, value.dtype, on, alignment, guard=NAN_BYTE, guard_bytes=INPUT_GUARD_BYTES
        )
        buffer.tensor.copy_(value)
        return buffer

    @contextlib.contextmanager
    def memory(self) -> Iterator[None]:
        """A span in which a lack of memory is a refusal.

        Raises:
            LaunchRefused: There was not enough.
        """
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or _NO_HOST_MEMORY in str(error):
                raise LaunchRefused(f"out of memory: {str(error).splitlines()[0]}") from error
            raise

    def run(
        self,
        kernel: Any,
        launch: Launch,
        tensors: Sequence[torch.Tensor | None],
        sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> None:
        """Binds, launches once and waits."""
        self.bind(kernel, launch, tensors, sizes, scalars)()
        self.synchronize()

    @contextlib.contextmanager
    def session(self) -> Iterator[Device]:
        """The span in which the device is used; a subclass may set threads or streams up and down here."""
        yield self


def pack_arguments(
    tensors: Sequence[torch.Tensor | None], sizes: Sequence[int], scalars: Sequence[float]
) -> bytes:
    """Returns the kernel's one argument: 8-byte little-endian words, pointers, then sizes, then scalars."""
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    layout = f"<{len(pointers)}Q{len(sizes)}q{len(scalars)}d"
    return struct.pack(layout, *pointers, *sizes, *scalars)
