# SPDX-License-Identifier: Apache-2.0
"""Samples on a GPU: a slow host must not show in a kernel's time, nor may work on other streams hide from it;
what a graph's launch takes, and what a probe measures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import InputError
from coldforge.codegen.problem import make_problem
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import detect
from coldforge.tuner.bench import bench
from coldforge.tuner.beside import figures_beside
from coldforge.tuner.devices import open_device
from coldforge.tuner.devices.base import Device
from coldforge.tuner.floor import ceilings_of, probe

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

HOST_S = 400e-6
Calls = dict[str, Callable[[], object]]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return open_device(detect("cuda"), Settings(tmp_path_factory.mktemp("home"), 1, "g++", True))


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.ones(1 << 27, device="cuda")  # 0.25 ms on an H200


@pytest.fixture(scope="module")
def calls(x: torch.Tensor) -> Calls:
    """The same work on the current stream, and in several ways on another one."""
    side, flag = torch.cuda.Stream(), torch.ones(1, device="cuda")

    def aside() -> None:
        with torch.cuda.stream(side):
            x.mul_(1.0)

    def left() -> None:
        flag.mul_(1.0)
        aside()

    def left_behind() -> None:
        flag.mul_(1.0)
        side.wait_stream(torch.cuda.current_stream())
        aside()

    def begun_early() -> None:
        aside()
        flag.mul_(1.0)
        torch.cuda.current_stream().wait_stream(side)

    def forked() -> None:
        side.wait_stream(torch.cuda.current_stream())
        aside()
        torch.cuda.current_stream().wait_stream(side)

    found: Calls = {"plain": lambda: x.mul_(1.0), "left": left, "left_behind": left_behind}
    return {**found, "begun_early": begun_early, "forked": forked}


@pytest.mark.parametrize("cold", [False, True])
def test_launch_overhead_stays_outside(cold: bool, device: Device) -> None:
    x = torch.ones(1 << 20, device="cuda")

    def quick() -> None:
        x.mul_(1.0)
        x.mul_(1.0)

    def late() -> None:
        x.mul_(1.0)
        end = time.perf_counter() + HOST_S
        while time.perf_counter() < end:
            pass
        x.mul_(1.0)

    base = statistics.median(device.sample_ms([quick], 20, cold=cold))
    times = [device.sample_ms([late], 1, cold=cold)[0] for _ in range(20)]
    assert statistics.median(times) < base + 0.25 * HOST_S * 1e3


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("name", ["left", "left_behind", "begun_early"])
def test_work_on_another_stream_does_not_look_fast(
    name: str, cold: bool, device: Device, calls: Calls
) -> None:
    honest = statistics.median(device.sample_ms([calls["plain"]], 9, cold=cold))
    samples = device.sample_ms([calls[name]], 9, cold=cold)
    print(f"{name}, cold={cold}: {statistics.median(samples):.4f} ms, on its own stream {honest:.4f} ms")
    assert device.works_aside(calls[name])
    assert min(samples) > 0.98 * honest
    assert statistics.median(samples) < honest + 0.2


@pytest.mark.parametrize("cold", [False, True])
def test_a_stream_that_is_forked_and_joined_is_timed_by_events(
    cold: bool, device: Device, calls: Calls
) -> None:
    honest = statistics.median(device.sample_ms([calls["plain"]], 9, cold=cold))
    found = statistics.median(device.sample_ms([calls["forked"]], 9, cold=cold))
    assert not device.works_aside(calls["plain"])
    assert not device.works_aside(calls["forked"])
    assert found == pytest.approx(honest, rel=0.05, abs=0.01)


def test_large_and_small_calls_are_not_suspected(device: Device, x: torch.Tensor) -> None:
    small = torch.ones(1 << 10, device="cuda")
    matrix = torch.randn(8192, 8192, device="cuda")

    def many() -> None:
        for _ in range(50):
            small.mul_(1.0)

    for call in (lambda: small.mul_(1.0), many, lambda: matrix @ matrix, lambda: x.sum().item()):
        assert not device.works_aside(call)


def test_a_graph_shows_what_a_launch_costs(device: Device, calls: Calls) -> None:
    small = torch.ones(1 << 12, device="cuda")

    def many() -> None:
        for _ in range(20):
            small.mul_(1.0)

    host = statistics.median(_each_ms(many) for _ in range(9))
    found = device.graph_time([many])
    assert found is not None
    assert found.reason == ""
    assert found.time_ms is not None
    print(f"20 small kernels: {host:.4f} ms launched, {found.time_ms:.4f} ms from a graph")
    assert 0 < found.time_ms < 0.6 * host
    wide = device.graph_time([calls["plain"]])
    warm = statistics.median(device.sample_ms([calls["plain"]], 9, cold=False))
    assert wide is not None
    assert wide.time_ms == pytest.approx(warm, rel=0.05)


def _each_ms(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    return 100 * (time.perf_counter() - began)


def test_a_graph_does_the_work(device: Device) -> None:
    y = torch.zeros(1 << 10, device="cuda")
    batch, launches = device.batch([lambda: y.add_(1.0)], 1000)
    torch.cuda.synchronize()
    before = float(y[0])
    batch()
    torch.cuda.synchronize()
    assert float(y[0]) - before == launches >= 1000


def test_why_there_is_no_graph(device: Device, calls: Calls, x: torch.Tensor) -> None:
    def waits() -> None:
        x.mul_(1.0)
        torch.cuda.synchronize()

    stream = torch.cuda.current_stream()
    found = device.graph_time([waits])
    assert found is not None
    assert found.time_ms is None
    print(found.reason)
    assert "captur" in found.reason
    assert torch.cuda.current_stream() == stream
    (beside,) = figures_beside(device, [[calls["left"]]])
    assert beside["graph_ms"] is None
    assert beside["graph_reason"] == "it leaves work on other streams"
    assert beside["side_streams"] is True
    # The device is none the worse.
    assert device.sample_ms([calls["plain"]], 3, cold=True)
    again = device.graph_time([calls["plain"]])
    assert again is not None
    assert again.time_ms is not None


def test_a_probe_stays_under_the_table(device: Device, tmp_path: Path) -> None:
    found, known = probe(device), ceilings_of(device, tmp_path)
    print(found)
    assert found.copy > 0
    assert set(found.flops) == {"fma", "tf32", "fp16"}
    if known.source == "table":
        assert 0.85 * known.read < found.read < 1.03 * known.read
        assert 0.85 * known.write < found.write < 1.03 * known.write
        assert found.copy == pytest.approx(known.copy, rel=0.1)
        for unit, rate in found.flops.items():
            assert 0.4 * known.flops[unit] < rate <= known.flops[unit]


@pytest.mark.timeout(900)
def test_rows_of_a_bench_have_graphs_and_energy(tmp_path: Path) -> None:
    target = detect("cuda")
    problem = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small")
    try:
        found = bench(problem, target, Settings(tmp_path, 2, "g++", True), budget_ms=500.0)
    except InputError as error:
        pytest.skip(str(error))  # no frozen kernel is of this GPU
    rows = {row["name"]: row for row in found["rows"] if not row["reason"]}
    for name, row in rows.items():
        figures = (row["time_ms"], row["warm_ms"], row.get("graph_ms"), row.get("energy_j"))
        print(name, *figures, row.get("graph_reason", ""))
        assert "side_streams" not in row
        assert row["graph_ms"] is not None or row["graph_reason"]
    frozen = rows["frozen"]
    assert 0 < frozen["graph_ms"] < 1.5 * frozen["warm_ms"]
    assert frozen["graph_ms"] < rows["eager"]["graph_ms"]
    assert found["ceilings"]["copy"] > 0
    assert found["probe"]["source"] == "probe"
    assert found["device_record"]["sm_clock_mhz"] > 0
