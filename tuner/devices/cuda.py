# SPDX-License-Identifier: Apache-2.0
"""An NVIDIA GPU as a device: cubins launched through the driver on PyTorch's current stream.

PyTorch owns the memory and the primary context; kernels are loaded into that context. Foreign error codes are
told apart here and nowhere else: a refusal of one kernel, or a fault after which the process is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ...codegen.compile.cubin import kernels
from ...codegen.errors import TargetUnavailable, ToolMissing
from .base import Call, Device, DeviceFault, GraphTime, LaunchRefused, MathMode, pack_arguments
from .graphs import CaptureFailed, captured_batch, graph_time
from .meters import Meter, board_meter
from .modes import library_modes
from .nvml import open_board, readings
from .side_streams import StreamGuard

if TYPE_CHECKING:
    from ...codegen.compile.artifact import Artifact
    from ...codegen.settings import Settings
    from ...codegen.space import Launch
    from ...codegen.target import Target

ENTRY, FINISH = b"coldforge_kernel", b"coldforge_finish"
PLAIN_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory beyond this has to be asked for."""
FLUSH_FACTOR = 3
"""A flush reads this many times the L2, which is not a strict least-recently-used cache."""
SETTLE_LIMIT_S = 1.0
SETTLE_SPREAD = 0.02
_HOLD_S, _HOLD_LIMIT_S = 150e-6, 20e-3
_HOLD_S_PER_CALL, _HOLD_MOST_S_PER_CALL, _HOLD_FORGOTTEN = 100e-6, 1e-3, 0.9
_CYCLES_PER_S = 2e9
_CAPTURING = "CUDA_ERROR_STREAM_CAPTURE"
"""How the names of errors begin that end a capture and nothing else."""

# Answers that say no to one kernel and leave the context as it was. Everything else is a fault.
_REFUSALS = frozenset(
    {
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA_ERROR_INVALID_IMAGE",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "CUDA_ERROR_INVALID_SOURCE",
        "CUDA_ERROR_INVALID_PTX",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        "CUDA_ERROR_NOT_FOUND",
        "CUDA_ERROR_NOT_SUPPORTED",
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        "CUDA_ERROR_INVALID_CLUSTER_SIZE",
    }
)


@dataclass(frozen=True)
class CudaKernel:
    """A loaded cubin and its functions (driver handles); `finish` is None when it has no second one.

    Attributes:
        stages: What was found allowed: a variant is bound a hundred times, to a few launches.
        granted: Bytes of dynamic shared memory that were asked for, by what is launched. Never lowered: calls
            that were bound before may need them.
    """

    module: Any
    function: Any
    name: str
    finish: Any = None
    stages: dict[Launch, list[_Stage]] = field(default_factory=dict, compare=False, repr=False)
    granted: dict[str, int] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class _Stage:
    """One kernel launch of a call."""

    name: str
    function: Any
    grid: int
    block: int
    shared_bytes: int

    @property
    def asked(self) -> str:
        """What is launched, for messages."""
        memory = f" and {self.shared_bytes} bytes of shared memory" if self.shared_bytes else ""
        return f"{self.name}, {self.grid} blocks of {self.block} threads{memory}"


class CudaDevice(Device):
    """The GPU that PyTorch calls cuda:0 in this process."""

    kind = "cuda"
    alignment_bytes = workspace_alignment_bytes = 256
    cold_headline = True

    def __init__(self, target: Target, settings: Settings) -> None:
        """Makes the context.

        Raises:
            TargetUnavailable: PyTorch sees no GPU.
            ToolMissing: cuda-bindings is not installed.
        """
        super().__init__(target, settings)
        try:
            driver = importlib.import_module("cuda.bindings.driver")  # compiled, without type stubs
        except ImportError as error:
            raise ToolMissing(
                f"launching needs the package cuda-bindings ({error}); pip install 'coldforge[cuda]'"
            ) from error
        if not torch.cuda.is_available():
            raise TargetUnavailable("PyTorch sees no CUDA device; use --target cpu")
        self._driver = driver
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._flush_buffer: torch.Tensor | None = None
        self._hold_s_per_call = 0.0  # most kernels take longer than it takes to enqueue one
        self._events: list[tuple[Any, Any]] = []
        self._guard = StreamGuard(self.synchronize, lambda call: self._sampled([call], 1, cold=False)[0])
        properties = torch.cuda.get_device_properties(self.torch_device)
        place = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
        self._board = open_board("{:08x}:{:02x}:{:02x}.0".format(*place))
        # The first allocation makes the context.
        self._flush_result = torch.zeros((), device=self.torch_device)
        torch.cuda.synchronize(self.torch_device)

    # --- kernels ---

    def load(self, artifact: Artifact) -> CudaKernel:
        data = artifact.path.read_bytes()
        module = self._asked(artifact.name, self._driver.cuModuleLoadData(data))
        try:
            function = self._asked(artifact.name, self._driver.cuModuleGetFunction(module, ENTRY))
        except LaunchRefused:
            self._driver.cuModuleUnload(module)
            raise
        finish = None
        # Most have none; the driver is not asked in vain, as tools that watch it count that as an error.
        if FINISH.decode() in kernels(data):
            finish = self._asked(artifact.name, self._driver.cuModuleGetFunction(module, FINISH))
        return CudaKernel(module, function, artifact.name, finish)

    def unload(self, kernel: CudaKernel) -> None:
        self._asked(kernel.name, self._driver.cuModuleUnload(kernel.module))

    def bind(
        self,
        kernel: CudaKernel,
        launch: Launch,
        tensors: Sequence[torch.Tensor | None],
        sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> Call:
        if launch not in kernel.stages:
            kernel.stages[launch] = self._allowed(kernel, launch)
        stages = kernel.stages[launch]
        workspace, zeroed = self.workspace_address(launch, tensors), launch.zeroed_bytes
        packed = pack_arguments(tensors, sizes, scalars)
        arguments = ctypes.create_string_buffer(packed, len(packed))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        address = ctypes.addressof(pointers)
        driver, device = self._driver, self.torch_device
        launches = [
            (stage.asked, stage.function, stage.grid, 1, 1, stage.block, 1, 1, stage.shared_bytes)
            for stage in stages
        ]

        def call(_alive: object = (tensors, arguments, pointers)) -> None:
            stream = torch.cuda.current_stream(device).cuda_stream
            if zeroed:
                self._asked(kernel.name, driver.cuMemsetD8Async(workspace, 0, zeroed, stream))
            for asked, *launched in launches:
                self._asked(asked, driver.cuLaunchKernel(*launched, stream, address, 0))

        self._guard.trust(call)
        return call

    def _allowed(self, kernel: CudaKernel, launch: Launch) -> list[_Stage]:
        """The launches of one call in order, each checked against the device.

        Raises:
            LaunchRefused: A limit is broken, or the cubin lacks the second kernel.
        """
        name = kernel.name
        stages = [_Stage(name, kernel.function, launch.grid, launch.block, launch.shared_bytes)]
        if launch.finish_grid:
            if kernel.finish is None:
                raise LaunchRefused(f"{name} has no kernel {FINISH.decode()}, and its launch asks for it")
            shape = (launch.finish_grid, launch.finish_block, launch.finish_shared_bytes)
            stages.append(_Stage(f"{FINISH.decode()} of {name}", kernel.finish, *shape))
        for stage in stages:
            self._allow(kernel, stage)
        return stages

    def _allow(self, kernel: CudaKernel, stage: _Stage) -> None:
        """Checks one launch against the device and asks for large shared memory."""
        limits = self.target.attributes
        if not 1 <= stage.grid <= limits["max_grid"]:
            raise LaunchRefused(f"{stage.name}: a grid of {stage.grid} blocks; 1 to {limits['max_grid']}")
        attribute = self._driver.CUfunction_attribute
        most = self._asked(
            stage.name,
            self._driver.cuFuncGetAttribute(
                attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, stage.function
            ),
        )
        if not 1 <= stage.block <= most:
            raise LaunchRefused(f"{stage.name}: {stage.block} threads a block; it allows 1 to {most}")
        if stage.shared_bytes > limits["max_shared_bytes"]:
            raise LaunchRefused(
                f"{stage.name}: {stage.shared_bytes} bytes of shared memory a block; "
                f"the device allows {limits['max_shared_bytes']}"
            )
        if stage.shared_bytes > kernel.granted.get(stage.name, PLAIN_SHARED_BYTES):
            large = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            answer = self._driver.cuFuncSetAttribute(stage.function, large, stage.shared_bytes)
            self._asked(stage.asked, answer)
            kernel.granted[stage.name] = stage.shared_bytes

    def _asked(self, name: str, answer: tuple[Any, ...]) -> Any:
        """The value of a driver call's answer (status, value).

        Raises:
            LaunchRefused: The driver said no and nothing broke.
            DeviceFault: The context is lost.
        """
        status = answer[0]
        if int(status) != 0:
            text = getattr(status, "name", str(status))
            if text in _REFUSALS or text.startswith(_CAPTURING):
                raise LaunchRefused(f"{name}: {text}")
            raise DeviceFault(f"{name}: {text}")
        return answer[1] if len(answer) > 1 else None

    def synchronize(self) -> None:
        self._asked("waiting for the device", self._driver.cuCtxSynchronize())

    # --- timing ---

    def sample_ms(self, calls: Sequence[Call], count: int, *, cold: bool) -> list[float]:
        """See `Device.sample_ms`.

        Samples are enqueued behind a pause that gives this process a head start: all of a sample is enqueued
        before the device begins it, so that it never waits between an event and its kernel, and launch
        overhead stays outside. A sample that the device began too early is seen by its first event, and all
        are taken again behind a longer pause. That is remembered, and slowly forgotten.

        None of this is for a call that works aside: it is enqueued while nothing else is, and its sample ends
        when the host has seen all streams done.
        """
        with self._faults():
            if any(self._guard.works_aside(call) for call in calls[:count]):
                return self._until_all_streams_end(calls, count, cold=cold)
            return self._sampled(calls, count, cold=cold)

    def _until_all_streams_end(self, calls: Sequence[Call], count: int, *, cold: bool) -> list[float]:
        samples = []
        for index in range(count):
            if cold:
                self.flush()
            samples.append(self._guard.all_streams_ms(calls[index % len(calls)]))
        return samples

    def works_aside(self, call: Call) -> bool:
        """See `Device.works_aside`. The first time that it is asked of a call, it runs that some times."""
        with self._faults():
            return self._guard.works_aside(call)

    def graph_time(self, calls: Sequence[Call]) -> GraphTime:
        """See `Device.graph_time`."""
        if any(self.works_aside(call) for call in calls):
            return GraphTime(None, "it leaves work on other streams")
        once_ms = statistics.median(self.sample_ms(calls, 3, cold=False))
        with self._faults():
            return graph_time(calls, once_ms, lambda call, count: self._sampled([call], count, cold=False))

    def batch(self, calls: Sequence[Call], count: int) -> tuple[Call, int]:
        """See `Device.batch`: a graph, replayed, where the calls can be captured."""
        with self._faults():
            if not any(self.works_aside(call) for call in calls):
                with contextlib.suppress(CaptureFailed):
                    return captured_batch(calls, count)
        return super().batch(calls, count)

    def _sampled(self, calls: Sequence[Call], count: int, *, cold: bool) -> list[float]:
        with self._faults():
            if cold:
                self._flush_source()
            while True:
                per_call_s = self._hold_s_per_call
                hold_s = min(_HOLD_LIMIT_S, _HOLD_S + count * per_call_s)
                events, ahead = self._enqueue(calls, count, hold_s, cold=cold)
                self.synchronize()
                if ahead or per_call_s >= _HOLD_MOST_S_PER_CALL or hold_s >= _HOLD_LIMIT_S:
                    self._hold_s_per_call = _HOLD_FORGOTTEN * per_call_s
                    return [start.elapsed_time(stop) for start, stop in events]
                longer_s = max(2 * per_call_s, _HOLD_S_PER_CALL)
                self._hold_s_per_call = min(longer_s, _HOLD_MOST_S_PER_CALL)

    def _enqueue(
        self, calls: Sequence[Call], count: int, hold_s: float, *, cold: bool
    ) -> tuple[list[tuple[Any, Any]], bool]:
        """Enqueues samples behind a pause: their events, and whether each was there before it began."""
        while len(self._events) < count:
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        events, ahead = self._events[:count], True
        torch.cuda._sleep(int(hold_s * _CYCLES_PER_S))
        for index, (start, stop) in enumerate(events):
            if cold:
                self.flush()
            start.record()
            calls[index % len(calls)]()
            stop.record()
            ahead = ahead and not start.query()
        return events, ahead

    def flush(self) -> None:
        """Reads a buffer larger than the L2. A written one would leave lines that the next kernel has to
        write back."""
        torch.sum(self._flush_source(), dim=0, out=self._flush_result)

    def _flush_source(self) -> torch.Tensor:
        if self._flush_buffer is None:
            count = FLUSH_FACTOR * self.target.attributes["l2_bytes"] // 4
            self._flush_buffer = torch.ones(count, device=self.torch_device)
        return self._flush_buffer

    def settle(self) -> None:
        """Multiplies matrices until the time of it is steady, a second at the most."""
        with self._faults():
            a = torch.randn(4096, 4096, device=self.torch_device)
            out = torch.empty_like(a)
        end = time.monotonic() + SETTLE_LIMIT_S
        before = 0.0
        while time.monotonic() < end:
            samples = self._sampled([lambda: torch.mm(a, a, out=out)], 20, cold=False)
            now = statistics.median(samples)
            if abs(now - before) <= SETTLE_SPREAD * now:
                return
            before = now

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """PyTorch may be the first to notice a kernel's fault: its error becomes a DeviceFault."""
        try:
            yield
        except RuntimeError:
            self.synchronize()
            raise

    # --- what it is ---

    def facts(self) -> dict[str, Any]:
        return {
            "model": torch.cuda.get_device_properties(self.torch_device).name,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "arch": self.target.arch,
            **readings(self._board),
        }

    def state(self) -> dict[str, Any]:
        return {name: value for name, value in readings(self._board).items() if name != "driver"}

    def meter(self) -> Meter | None:
        return board_meter(self._board)

    def math_modes(self, dtype: str) -> tuple[MathMode, ...]:
        return library_modes() if dtype == "fp32" else super().math_modes(dtype)
