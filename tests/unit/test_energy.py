# SPDX-License-Identifier: Apache-2.0
"""Joules a launch on a device whose meter is made up: what counts is the power and the time of a launch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import pytest
from coldforge.tuner.beside import figures_beside
from coldforge.tuner.cli.bench_table import print_bench
from coldforge.tuner.devices.base import Call, GraphTime
from coldforge.tuner.devices.meters import Meter
from coldforge.tuner.energy import (
    ROUNDS,
    Reading,
    Span,
    details,
    energy_in_rounds,
    mean_power_w,
    read_energy,
)
from torch_device import TorchDevice, torch_device

IDLE_W, BUSY_W = 40.0, 100.0
SHORT = Span(least_s=0.06, ticks=10, most_s=2.0)


class Metered(TorchDevice):
    """Its counter goes on in steps of a millisecond, faster while a call works."""

    source: Meter | None = None

    def __init__(self) -> None:
        plain = torch_device()
        super().__init__(plain.target, plain.settings)
        self.extra_j = 0.0
        self.launches = 0
        self.source = Meter("made up", self._joules, ahead_s=0.005)

    def _joules(self) -> float:
        step = int(time.perf_counter() * 1e3)
        return step * IDLE_W / 1e3 + self.extra_j

    def meter(self) -> Meter | None:
        return self.source

    def call(self, ms: float) -> Call:
        def work() -> None:
            self.launches += 1
            began = time.perf_counter()
            time.sleep(ms / 1e3)
            self.extra_j += (BUSY_W - IDLE_W) * (time.perf_counter() - began)

        return work


def test_the_energy_of_a_launch_is_power_times_time() -> None:
    device = Metered()
    found = read_energy(device, [device.call(2.0), device.call(2.0)], SHORT)
    assert found is not None
    assert found.source == "made up"
    assert found.joules == pytest.approx(found.power_w * found.launch_s)
    assert found.launch_s >= 2e-3
    assert IDLE_W < found.power_w <= 1.3 * BUSY_W


def test_twice_the_work_is_twice_the_energy() -> None:
    device = Metered()
    one, two = device.call(4.0), device.call(8.0)
    readings = energy_in_rounds(device, [[one], [two]], 3, span=SHORT)
    first, second = (details(of)["energy_j"] for of in readings)
    assert 1.3 < second / first < 3.0


def test_a_repetition_lasts_as_long_as_it_must() -> None:
    device = Metered()
    began = time.perf_counter()
    assert read_energy(device, [device.call(1.0)], SHORT)
    assert time.perf_counter() - began >= 0.065
    # A meter that tells nothing new ends it, at the latest then.
    device.source = Meter("stuck", lambda: 1.0, ahead_s=0.0)
    assert read_energy(device, [device.call(1.0)], Span(0.01, 20, 0.05)) is None
    # A slow one is waited for.
    device.source = Meter("slow", lambda: int(time.perf_counter() * 100) * 1.0, ahead_s=0.0)
    found = read_energy(device, [device.call(1.0)], Span(0.01, 20, 5.0))
    assert found is not None
    assert found.power_w == pytest.approx(100.0, rel=0.2)


def test_power_is_sampled_where_nothing_is_counted() -> None:
    device = Metered()
    watts = itertools.cycle([90.0, 110.0])
    device.source = Meter("power", lambda: next(watts), counts=False, ahead_s=0.0)
    found = read_energy(device, [device.call(1.0)], SHORT)
    assert found is not None
    assert found.power_w == pytest.approx(100.0, rel=0.06)


def test_a_meter_that_fails_meanwhile_says_nothing() -> None:
    device = Metered()

    def gone() -> float:
        raise OSError("no such file")

    device.source = Meter("gone", gone, ahead_s=0.0)
    assert read_energy(device, [device.call(1.0)], Span(0.01, 5, 0.05)) is None
    device.source = None
    assert read_energy(device, [device.call(1.0)], SHORT) is None
    assert device.launches > 0


def test_one_that_tells_nothing_leaves_all_without(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Metered()
    answers = iter([Reading(1.0, 1.0, 1.0, "m"), Reading(2.0, 1.0, 1.0, "m"), None])
    monkeypatch.setattr("coldforge.tuner.energy.read_energy", lambda *_: next(answers))
    assert energy_in_rounds(device, [[device.call(1.0)], [device.call(1.0)]], 2) == [[], []]


def test_the_order_of_a_round_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    device, asked = Metered(), []

    def reading(_: object, calls: Sequence[Callable[[], object]], __: object) -> Reading:
        asked.append(calls[0])
        return Reading(float(len(asked)), 1.0, 1.0, "m")

    monkeypatch.setattr("coldforge.tuner.energy.read_energy", reading)
    calls = [device.call(1.0) for _ in range(4)]
    found = energy_in_rounds(device, [[call] for call in calls], ROUNDS)
    rounds = list(zip(*[iter(asked)] * 4, strict=True))
    assert all(set(one) == set(calls) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 3
    assert [len(of) for of in found] == [ROUNDS] * 4


@pytest.mark.parametrize("late_s", [0.0, 0.003])
def test_the_power_of_a_counter_is_its_slope(late_s: float) -> None:
    seen = [(0.1 * i + late_s, 5e6 + 30.0 * i) for i in range(8)]
    assert mean_power_w(seen, counts=True) == pytest.approx(300.0)
    assert mean_power_w(seen[:5], counts=True) is None, "too little"
    assert mean_power_w([(t, 5.0 - t) for t, _ in seen], counts=True) is None, "no counter goes back"
    assert mean_power_w([(t, 7.0) for t, _ in seen], counts=False) == 7.0


def test_eleven_rounds_can_tell_one_of_nine() -> None:
    # A sign test of n rounds says at best 2 ** (1 - n); eight are compared with the leader at 99% together.
    assert 2.0 ** (1 - ROUNDS) < 0.01 / 8 <= 2.0 ** (2 - ROUNDS)


def test_what_stands_beside_a_time() -> None:
    device = torch_device()
    assert figures_beside(device, [[lambda: None]]) == [{}]
    device = Metered()
    device.cold_headline = True
    graphs = iter([GraphTime(0.5), GraphTime(None, "it waits")])
    device.graph_time = lambda calls: next(graphs)  # type: ignore[method-assign]
    aside = device.call(0.1)
    device.works_aside = lambda call: call is aside  # type: ignore[method-assign]
    first, second = figures_beside(device, [[device.call(0.1)], [aside]])
    assert first == {"warm_ms": 1.0, "graph_ms": 0.5}
    assert second == {"warm_ms": 1.0, "graph_ms": None, "graph_reason": "it waits", "side_streams": True}
    assert details([]) == {}
    found = details([Reading(j, 100.0, j / 100, "m") for j in (3.0, 1.0, 2.0)])
    assert found["energy_j"] == 2.0
    assert found["energy_samples_j"] == [3.0, 1.0, 2.0]
    assert found["energy_launch_ms"] == 20.0
    assert (found["energy_power_w"], found["energy_source"]) == (100.0, "m")


def test_the_table_of_a_bench_has_what_stands_beside(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    plain = {"ci95_ms": [0.9, 1.1], "error": 1e-7, "reason": "", "time_ms": 1.0}
    frozen = {**plain, "name": "frozen", "warm_ms": 0.75, "graph_ms": 0.625, "energy_j": 0.4375}
    eager = {**plain, "name": "eager", "graph_ms": None, "graph_reason": "it waits", "side_streams": True}
    floor = {"floor_ms": 0.5, "floor": {"limit": "memory"}, "cold": True, "variant": "v"}
    ratios = {"speedup": {"eager": 1.0}, "speedup_ci95": {"eager": [1.0, 1.0]}}
    found = {"operator": "op", "workload": "w", "device": "d", "rows": [frozen, eager], **floor, **ratios}
    print_bench(found)
    shown = capsys.readouterr().out
    for words in ("warm ms", "graph ms", "mJ", "0.75", "0.625", "437.5"):
        assert words in shown
    assert "The device's memory speed allows 0.5 ms at best; the frozen kernel reaches 50% of" in shown
    assert "eager: left work on other streams" in shown
    print_bench({**found, "rows": [{**plain, "name": "frozen"}, {**plain, "name": "eager"}]})
    shown = capsys.readouterr().out
    assert "mJ" not in shown
    assert "streams" not in shown
