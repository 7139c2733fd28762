# SPDX-License-Identifier: Apache-2.0
"""A GPU of pretended time behind the part of `torch.cuda` that timing uses: streams that run side by side,
events, graphs, and a host for which everything takes a while."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from coldforge.codegen.target import cuda_target
from coldforge.tuner.devices import cuda, side_streams
from coldforge.tuner.devices.cuda import CudaDevice
from coldforge.tuner.devices.side_streams import StreamGuard

LAUNCH_MS, RECORD_MS, WAKE_MS, FLUSH_MS = 0.004, 0.001, 0.008, 0.05


class Stream:
    """A queue of work."""

    def __init__(self) -> None:
        self.end_ms = 0.0

    def wait_stream(self, other: Stream) -> None:
        self.end_ms = max(self.end_ms, other.end_ms)

    def synchronize(self) -> None: ...


class PretendGpu:
    """Everything of it. `launch` is what a call's kernel does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        self.main = self.current = Stream()
        self.streams = [self.main]
        self.capturing: Graph | None = None
        self.graphs: list[Graph] = []
        self.hiccups = 0
        self.flushes = 0
        clock = SimpleNamespace(perf_counter=lambda: self.now_ms / 1e3)
        monkeypatch.setattr(side_streams, "time", clock)
        for name, value in {
            "Event": lambda enable_timing: Event(self),
            "_sleep": lambda cycles: self.launch(cycles / cuda._CYCLES_PER_S * 1e3),
            "Stream": self.stream,
            "CUDAGraph": self._new_graph,
            "graph": self._graph,
            "stream": self._on,
            "current_stream": lambda: self.current,
            "set_stream": self._set,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def device(self) -> CudaDevice:
        """A device on it, without a driver."""
        device: Any = object.__new__(CudaDevice)
        device.target = cuda_target("sm_90")
        device._driver = SimpleNamespace(cuCtxSynchronize=self.wait)
        device._hold_s_per_call, device._events, device._board = 0.0, [], None
        device._guard = StreamGuard(device.synchronize, lambda c: device._sampled([c], 1, cold=False)[0])
        device._flush_source = lambda: None
        device.flush = self._flush
        return device

    def stream(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    def launch(self, ms: float, on: Stream | None = None) -> None:
        """Enqueues a kernel on a stream, the current one when none is given."""
        self.now_ms += LAUNCH_MS
        stream = on or self.current
        if self.capturing is not None and stream is self.current:
            self.capturing.kernels.append(ms)
            return
        stream.end_ms = max(self.now_ms, stream.end_ms) + ms

    def wait(self) -> tuple[int]:
        """Waits for all streams; sometimes the host is elsewhere for a while."""
        if self.capturing is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
        self.now_ms = max(self.now_ms, *(stream.end_ms for stream in self.streams)) + WAKE_MS
        if self.hiccups:
            self.hiccups -= 1
            self.now_ms += 5.0
        return (0,)

    def _flush(self) -> None:
        self.flushes += 1
        self.launch(FLUSH_MS)

    def _new_graph(self) -> Graph:
        self.graphs.append(Graph(self))
        return self.graphs[-1]

    def _set(self, stream: Stream) -> None:
        self.current = stream

    @contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def _graph(self, graph: Graph, *, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        """As PyTorch's: the end of a broken capture raises too, and leaves its stream the current one."""
        before, self.current, self.capturing = self.current, stream, graph
        broken = True
        try:
            yield
            broken = False
        finally:
            self.capturing = None
            if broken:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            if not graph.kernels:
                warnings.warn("The CUDA Graph is empty. This usually means", stacklevel=1)
            self.current = before


class Graph:
    """What was captured."""

    def __init__(self, gpu: PretendGpu) -> None:
        self._gpu = gpu
        self.kernels: list[float] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self._gpu.now_ms += LAUNCH_MS
        for ms in self.kernels:
            stream = self._gpu.current
            stream.end_ms = max(self._gpu.now_ms, stream.end_ms) + ms


class Event:
    """A point of the current stream."""

    def __init__(self, gpu: PretendGpu) -> None:
        self._gpu, self.at_ms = gpu, 0.0

    def record(self) -> None:
        self._gpu.now_ms += RECORD_MS
        self.at_ms = max(self._gpu.now_ms, self._gpu.current.end_ms)

    def query(self) -> bool:
        return self.at_ms <= self._gpu.now_ms

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms
