# SPDX-License-Identifier: Apache-2.0
"""The CPU as a device: shared libraries whose range functions run under PyTorch's own parallel-for.

A variant holds no threads. `torch_parallel_for` of libtorch splits its work units over PyTorch's threads, one
contiguous chunk each, here as in a frozen extension: what is timed is what is deployed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...codegen.errors import TargetUnavailable
from .base import Call, Device, DeviceFault, LaunchRefused, pack_arguments
from .meters import Meter, cpu_meter

if TYPE_CHECKING:
    from ...codegen.compile.artifact import Artifact
    from ...codegen.settings import Settings
    from ...codegen.space import Launch
    from ...codegen.target import Target

ENTRY, FINISH = "coldforge_kernel", "coldforge_finish"
SETTLE_LIMIT_S = 0.5
SETTLE_SPREAD = 0.03


@dataclass(frozen=True)
class CpuKernel:
    """A loaded library and the addresses of its range functions; the second one's is None when it has one
    only."""

    library: ctypes.CDLL
    name: str
    address: int
    finish_address: int | None = None


class CpuDevice(Device):
    """The CPU of this process, on `threads` of PyTorch's threads (an attribute of the target)."""

    kind = "cpu"
    wants_quiet = True
    torch_device = torch.device("cpu")

    def __init__(self, target: Target, settings: Settings) -> None:
        """Looks PyTorch's parallel-for up.

        Raises:
            TargetUnavailable: This PyTorch has none (it is older than 2.10).
        """
        super().__init__(target, settings)
        self._parallel_for = _parallel_for()
        self._flush_buffer: torch.Tensor | None = None

    # --- kernels ---

    def load(self, artifact: Artifact) -> CpuKernel:
        try:
            # All symbols now: one that is missing must not end the process at the first call.
            library = ctypes.CDLL(str(artifact.path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise LaunchRefused(f"cannot load {artifact.name}: {error}") from error
        address = _address(library, ENTRY)
        if address is None:
            raise LaunchRefused(f"{artifact.name} has no symbol {ENTRY}")
        return CpuKernel(library, artifact.name, address, _address(library, FINISH))

    def unload(self, kernel: CpuKernel) -> None:
        close = ctypes.CDLL(None).dlclose
        close.argtypes = [ctypes.c_void_p]
        close(kernel.library._handle)

    def bind(
        self,
        kernel: CpuKernel,
        launch: Launch,
        tensors: Sequence[torch.Tensor | None],
        sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> Call:
        stages = _stages(kernel, launch)
        workspace, zeroed = self.workspace_address(launch, tensors), launch.zeroed_bytes
        packed = pack_arguments(tensors, sizes, scalars)
        arguments = ctypes.create_string_buffer(packed, len(packed))
        run = self._parallel_for
        parameters = [(0, *stage, ctypes.addressof(arguments)) for stage in stages]

        def call(_alive: object = (kernel, tensors, arguments)) -> None:
            if zeroed:
                ctypes.memset(workspace, 0, zeroed)
            for one in parameters:
                status = run(*one)
                if status:
                    raise DeviceFault(f"torch_parallel_for failed with status {status}")

        return call

    def synchronize(self) -> None:
        """Nothing to wait for: a call returns when its work is done."""

    # --- timing ---

    def sample_ms(self, calls: Sequence[Call], count: int, *, cold: bool) -> list[float]:
        clock = time.perf_counter_ns
        samples = []
        for index in range(count):
            call = calls[index % len(calls)]
            if cold:
                self.flush()
            start = clock()
            call()
            samples.append((clock() - start) / 1e6)
        return samples

    def flush(self) -> None:
        if self._flush_buffer is None:
            self._flush_buffer = torch.ones(2 * self.target.attributes["llc_bytes"] // 4)
        self._flush_buffer.sum()

    def settle(self) -> None:
        """Works until a probe's time is steady, half a second at the most."""
        a = torch.ones(256, 256)
        end = time.monotonic() + SETTLE_LIMIT_S
        before = 0.0
        while time.monotonic() < end:
            now = statistics.median(self.sample_ms([lambda: a @ a], 40, cold=False))
            if abs(now - before) <= SETTLE_SPREAD * now:
                return
            before = now

    @contextlib.contextmanager
    def session(self) -> Iterator[Device]:
        """Holds PyTorch at the target's number of threads."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.target.attributes["threads"])
        try:
            yield self
        finally:
            torch.set_num_threads(before)

    # --- what it is ---

    def facts(self) -> dict[str, Any]:
        return {
            "model": self.target.device,
            "driver": None,
            "torch": torch.__version__,
            "arch": self.target.arch,
            "threads": torch.get_num_threads(),
            "clock_mhz": _clock_mhz(),
            "machine": platform.machine(),
        }

    def state(self) -> dict[str, Any]:
        return {"clock_mhz": _clock_mhz()}

    def meter(self) -> Meter | None:
        return cpu_meter()


def _address(library: ctypes.CDLL, symbol: str) -> int | None:
    """Where a function was loaded; None when the library has none of that name."""
    try:
        return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    except AttributeError:
        return None


def _stages(kernel: CpuKernel, launch: Launch) -> list[tuple[int, int, int]]:
    """Work units, grain and function of what one call runs, in order.

    Raises:
        LaunchRefused: A number is not positive, or the library lacks the second function.
    """
    stages = [(launch.units, launch.grain, kernel.address)]
    if launch.finish_units:
        if kernel.finish_address is None:
            raise LaunchRefused(f"{kernel.name} has no symbol {FINISH}, and its launch asks for it")
        stages.append((launch.finish_units, launch.finish_grain, kernel.finish_address))
    for units, grain, _ in stages:
        if units < 1 or grain < 1:
            raise LaunchRefused(f"{units} work units in grains of {grain}: both must be positive")
    return stages


@functools.cache
def _parallel_for() -> Any:
    """`torch_parallel_for(begin, end, grain, function, context)` of libtorch's stable C interface."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = ctypes.CDLL(str(path)).torch_parallel_for
    except (OSError, AttributeError) as error:
        raise TargetUnavailable(
            f"PyTorch {torch.__version__} has no torch_parallel_for; the cpu target needs PyTorch 2.10"
        ) from error
    function.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 2
    function.restype = ctypes.c_int32
    return function


def _clock_mhz() -> float | None:
    """The first core's clock now, where the system tells."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("cpu MHz"):
                return float(line.partition(":")[2])
    return None
