# SPDX-License-Identifier: Apache-2.0
"""Timing on a GPU of pretended time: work on other streams must not look fast, and what a graph's launch
takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from coldforge.tuner.devices.base import GraphTime
from coldforge.tuner.devices.cuda import CudaDevice
from coldforge.tuner.devices.graphs import HELD_CALLS, MOST_REPLAYS, SAMPLES, CaptureFailed, capture
from coldforge.tuner.devices.side_streams import TRIES
from pretend_gpu import PretendGpu

Calls = dict[str, Callable[[], None]]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PretendGpu:
    return PretendGpu(monkeypatch)


@pytest.fixture
def device(gpu: PretendGpu) -> CudaDevice:
    return gpu.device()


@pytest.fixture
def calls(gpu: PretendGpu) -> Calls:
    """Calls whose work takes 0.3 ms, all or most of it on a side stream for some."""
    side = gpu.stream()

    def plain() -> None:
        gpu.launch(0.3)

    def left() -> None:  # never joined
        gpu.launch(0.01)
        gpu.launch(0.3, side)

    def left_behind() -> None:  # waits for the current stream, is not joined
        gpu.launch(0.01)
        side.wait_stream(gpu.current)
        gpu.launch(0.29, side)

    def begun_early() -> None:  # joined, but does not wait for the current stream
        gpu.launch(0.3, side)
        gpu.launch(0.01)
        gpu.current.wait_stream(side)

    def forked() -> None:  # as it should be
        side.wait_stream(gpu.current)
        gpu.launch(0.3, side)
        gpu.launch(0.1)
        gpu.current.wait_stream(side)

    def many() -> None:  # small kernels, for which the host takes longer than the device
        for _ in range(30):
            gpu.launch(0.001)

    found = {"plain": plain, "left": left, "left_behind": left_behind, "begun_early": begun_early}
    return {**found, "forked": forked, "many": many}


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("name", ["left", "left_behind", "begun_early"])
def test_work_on_another_stream_does_not_look_fast(
    name: str, cold: bool, device: CudaDevice, gpu: PretendGpu, calls: Calls
) -> None:
    call = calls[name]
    before = gpu.flushes
    seen = device._sampled([call], 2, cold=cold)
    assert min(seen) < 0.2, "events alone do not see it"
    samples = device.sample_ms([call], 4, cold=cold)
    assert len(samples) == 4
    assert all(0.3 <= sample < 0.35 for sample in samples)
    assert device.works_aside(call)
    assert (gpu.flushes > before) is cold


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("name", ["plain", "forked", "many"])
def test_work_that_events_see_is_timed_by_events(
    name: str, cold: bool, device: CudaDevice, gpu: PretendGpu, calls: Calls
) -> None:
    gpu.hiccups = TRIES - 2  # a host that is late now and then accuses nobody
    call = calls[name]
    samples = device.sample_ms([call], 4, cold=cold)
    assert not device.works_aside(call)
    assert samples == device._sampled([call], 4, cold=cold)
    if name != "many":
        assert samples == pytest.approx([0.3] * 4)


def test_each_call_is_asked_about_once(device: CudaDevice, calls: Calls) -> None:
    asked: list[Any] = []
    look = device._guard._look
    device._guard._look = lambda call: asked.append(call) or look(call)  # type: ignore[method-assign]
    for _ in range(3):
        device.sample_ms([calls["plain"], calls["left"]], 2, cold=False)
    assert asked == [calls["plain"], calls["left"]]
    device._guard.trust(calls["many"])  # what the driver launches on the current stream
    device.sample_ms([calls["many"]], 2, cold=False)
    assert len(asked) == 2


def test_a_callable_that_cannot_be_remembered(device: CudaDevice, calls: Calls) -> None:
    class Odd:
        __slots__ = ("call",)
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, call: Callable[[], None]) -> None:
            self.call = call

        def __call__(self) -> None:
            self.call()

    assert device.works_aside(Odd(calls["left"]))
    assert device.sample_ms([Odd(calls["plain"])], 1, cold=False) == pytest.approx([0.3])


def test_a_graph_leaves_the_launches_out(device: CudaDevice, gpu: PretendGpu, calls: Calls) -> None:
    found = device.graph_time([calls["many"], calls["many"]])
    assert found == GraphTime(pytest.approx(0.03, rel=0.01))
    assert gpu.current is gpu.main
    wide = device.graph_time([lambda: gpu.launch(20.0)])
    assert wide.time_ms == pytest.approx(20.0)


@pytest.mark.parametrize(("ms", "replays"), [(0.0, MOST_REPLAYS), (0.03, 67), (1.5, 2), (20.0, 2)])
def test_small_launches_are_replayed_many_times(
    ms: float, replays: int, device: CudaDevice, gpu: PretendGpu
) -> None:
    assert device.graph_time([lambda: gpu.launch(ms), lambda: gpu.launch(ms)]).time_ms == pytest.approx(ms)
    made = sum(graph.replays for graph in gpu.graphs)
    assert made % replays == 0
    assert made >= SAMPLES * replays, "some may be taken again"


def test_why_there_is_no_graph(device: CudaDevice, gpu: PretendGpu, calls: Calls) -> None:
    def waits() -> None:
        gpu.launch(0.1)
        gpu.wait()

    found = device.graph_time([waits])
    assert found == GraphTime(None, "CUDA error: operation not permitted when stream is capturing")
    assert gpu.current is gpu.main, "a broken capture leaves its stream the current one"
    assert device.graph_time([calls["left"]]) == GraphTime(None, "it leaves work on other streams")
    with pytest.raises(CaptureFailed, match="Graph is empty"):
        capture([lambda: None])


def test_a_fault_in_a_capture_is_no_reason(device: CudaDevice) -> None:
    def wrong() -> None:
        raise KeyError("a mistake of ours")

    with pytest.raises(KeyError):
        capture([wrong])


@pytest.mark.parametrize(("count", "launches"), [(1, 2), (7, 12), (64, 64), (100, 128), (1000, 1024)])
def test_a_batch_is_a_graph_of_calls(
    count: int, launches: int, device: CudaDevice, gpu: PretendGpu, calls: Calls
) -> None:
    batch, found = device.batch([calls["plain"], lambda: gpu.launch(0.5)], count)
    assert found == launches, "as many, or somewhat more"
    assert launches <= max(count + HELD_CALLS, 2)
    before = gpu.main.end_ms = gpu.now_ms
    batch()
    assert gpu.main.end_ms - before == pytest.approx(0.4 * launches, rel=0.05)


def test_a_batch_without_a_graph(device: CudaDevice, gpu: PretendGpu) -> None:
    made = [0]

    def waits() -> None:
        made[0] += 1
        gpu.wait()

    batch, found = device.batch([waits], 10)
    made[0] = 0
    batch()
    assert (found, made[0]) == (10, 10)
