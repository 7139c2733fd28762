# SPDX-License-Identifier: Apache-2.0
"""Timing on a device whose times are scripted: screening, medians, intervals, turns, floors."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import Target, cuda_target
from coldforge.tuner import floor
from coldforge.tuner.devices.base import Call, Device
from coldforge.tuner.floor import Ceilings, ceilings_of, floor_of, impossible, raised
from coldforge.tuner.intervals import paired
from coldforge.tuner.measure import (
    Policy,
    in_rounds,
    time_variant,
    warm_ms,
)
from coldforge.tuner.outcome import TrialOutcome, TrialResult


class ScriptedDevice(Device):
    """A call returns its own time in ms; the device records in which order and how calls were sampled."""

    kind = "cpu"
    torch_device = torch.device("cpu")
    cold_headline = True

    def __init__(self, model: str = "none") -> None:
        attributes = {"threads": 2, "llc_bytes": 1 << 20, "vector_bytes": 16}
        target = Target("cpu", "x86-64-v2", model, attributes)
        super().__init__(target, Settings(Path("unused"), 1, "g++", may_build=False))
        self.taken: list[tuple[Any, bool]] = []
        self.settled = 0

    def sample_ms(self, calls: Sequence[Call], count: int, *, cold: bool) -> list[float]:
        self.taken += [(call, cold) for call in itertools.islice(itertools.cycle(calls), count)]
        return [float(call()) for call, _ in self.taken[len(self.taken) - count :]]  # type: ignore[arg-type]

    def settle(self) -> None:
        self.settled += 1

    def load(self, artifact: Any) -> Any: ...

    def unload(self, kernel: Any) -> None: ...

    def bind(self, *_: Any) -> Call:
        return lambda: None

    def synchronize(self) -> None: ...

    def flush(self) -> None: ...

    def facts(self) -> dict[str, Any]:
        return {}


def times(values: Sequence[float]) -> Callable[[], float]:
    source = itertools.cycle(values)
    return lambda: next(source)


def workload(**shape: int) -> Problem:
    return make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "seed", shape)


def test_the_time_is_the_median_of_cold_samples() -> None:
    device = ScriptedDevice()
    timing = time_variant(device, [times([1.0, 1.0, 1.0, 2.0, 50.0])], None, Policy(budget_ms=200, known=0))
    assert timing.time_ms == 1.0
    assert sum(timing.samples_ms[:-10]) < 200 <= sum(timing.samples_ms)
    assert not timing.given_up
    assert all(cold for _, cold in device.taken)
    assert len(device.taken) == 1 + 2 + len(timing.samples_ms)  # a look, two dropped, and the samples


def test_sampling_ends_when_the_median_is_known() -> None:
    steady = time_variant(ScriptedDevice(), [times([1.0, 1.001, 0.999])], 1.0)
    assert len(steady.samples_ms) == 11
    noisy = [times([1.0, 1.1, 0.9, 1.2, 0.8, 1.3, 0.7])]
    assert len(time_variant(ScriptedDevice(), noisy, 1.0).samples_ms) >= 27
    # One that is not near the best need not be known as well.
    rough = [times([1.0, 1.02, 0.98, 1.01, 0.99])]
    assert len(time_variant(ScriptedDevice(), rough, 0.9).samples_ms) > 20
    assert len(time_variant(ScriptedDevice(), rough, 0.5).samples_ms) == 11
    assert len(time_variant(ScriptedDevice(), rough, None).samples_ms) > 20


def test_sets_of_inputs_rotate() -> None:
    device = ScriptedDevice()
    first, second = times([1.0]), times([1.0])
    time_variant(device, [first, second], None)
    uses = [call for call, _ in device.taken]
    assert abs(uses.count(first) - uses.count(second)) <= 2


@pytest.mark.parametrize(("best_ms", "given_up"), [(None, False), (1.0, True), (2.0, True), (4.0, False)])
def test_screening_gives_up_what_is_surely_slower(best_ms: float | None, given_up: bool) -> None:
    device = ScriptedDevice()
    timing = time_variant(device, [times([10.0])], best_ms)
    assert timing.given_up is given_up
    assert timing.time_ms == 10.0
    assert len(timing.samples_ms) == (3 if given_up else 11)
    assert len(device.taken) == (3 if given_up else 1 + 2 + 11)  # all calls, whatever they were for


@pytest.mark.parametrize("values", [[9.0, 1.0], [9.0, 9.0, 1.0]])
def test_slow_samples_are_no_reason_to_give_up_while_one_is_not(values: list[float]) -> None:
    assert not time_variant(ScriptedDevice(), [times([*values, *[1.0] * 50])], 1.0).given_up


def test_turns_take_every_contestant_once_a_round() -> None:
    device = ScriptedDevice()
    contestants = [times([1.0]), times([2.0]), times([3.0])]
    samples = in_rounds(device, [[call] for call in contestants], budget_ms=360.0)
    assert device.settled == 1
    assert [set(values.values()) for values in samples] == [{1.0}, {2.0}, {3.0}]
    assert {len(values) for values in samples} == {60}
    rounds = [call for call, _ in device.taken[12:]]
    orders = {tuple(contestants.index(c) for c in rounds[i : i + 3]) for i in range(0, len(rounds), 3)}
    assert len(orders) > 2
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert in_rounds(device, []) == []


def test_all_of_a_round_get_the_same_inputs() -> None:
    device = ScriptedDevice()
    contestants = [[times([1.0]), times([1.5])], [times([2.0]), times([2.5])]]
    first, second = in_rounds(device, contestants, budget_ms=10.0)
    assert [first[turn] for turn in range(4)] == [1.0, 1.5, 1.0, 1.5]
    assert [second[turn] for turn in range(4)] == [2.0, 2.5, 2.0, 2.5]


@pytest.mark.parametrize(("ms", "rounds"), [(1.0, 41), (480.0, 41), (1000.0, 20), (9000.0, 11)])
def test_rounds_enough_for_an_interval_are_held_where_one_can_wait(ms: float, rounds: int) -> None:
    assert len(in_rounds(ScriptedDevice(), [[times([ms])]], budget_ms=20.0)[0]) == rounds


def test_warm_times_stand_beside_cold_ones_alone() -> None:
    device = ScriptedDevice()
    assert warm_ms(device, [times([1.0, 2.0, 9.0, 2.0, 2.0])]) == 2.0
    assert not any(cold for _, cold in device.taken)
    device.cold_headline = False
    assert warm_ms(device, [times([1.0])]) is None


def test_slow_contestants_join_few_rounds_and_leave_the_others_theirs() -> None:
    device = ScriptedDevice()
    frozen, close, slow, slower = times([1.0]), times([15.0]), times([300.0]), times([500.0])
    samples = in_rounds(device, [[frozen], [close], [slow], [slower]], budget_ms=4000.0)
    assert [len(one) for one in samples] == [125, 125, 5, 5]
    assert list(samples[0]) == list(range(125))
    late = list(samples[2])
    assert late == list(samples[3])
    assert late[0] == 0
    assert {b - a for a, b in itertools.pairwise(late)} == {25}
    first, second = paired(samples[0], samples[2])
    assert (first, second) == ([1.0] * 5, [300.0] * 5)


def test_slow_contestants_get_half_of_the_budget_where_it_lasts() -> None:
    samples = in_rounds(ScriptedDevice(), [[times([0.01])], [times([1.0])]], budget_ms=100.0)
    assert [len(one) for one in samples] == [301, 50]
    alone = in_rounds(ScriptedDevice(), [[times([100.0])], [times([3000.0])]], budget_ms=100.0)
    assert [len(one) for one in alone] == [41, 5]


@pytest.mark.parametrize(("hiccups", "rounds"), [(3, 41), (4, 39)])
def test_hiccups_make_no_contestant_slow(hiccups: int, rounds: int) -> None:
    busy = times([*[50.0] * hiccups, *[1.0] * 400])
    samples = in_rounds(ScriptedDevice(), [[times([1.0])], [busy]], budget_ms=20.0)
    assert len(samples[0]) >= 41
    assert rounds <= len(samples[1]) <= len(samples[0])


def test_finals_hold_every_round_for_all() -> None:
    contestants = [[times([1.0])], [times([90.0])]]
    samples = in_rounds(ScriptedDevice(), contestants, budget_ms=100.0, slow=math.inf)
    assert [len(one) for one in samples] == [41, 41]


def test_the_floor_of_the_founding_workload_on_an_h200() -> None:
    target = cuda_target("sm_90", "NVIDIA H200")
    device = ScriptedDevice("NVIDIA H200")
    ceilings = ceilings_of(device, Path("unused"))
    found = floor_of(workload(), ceilings, "fp32", cold=True)
    assert target.attributes["l2_bytes"] == ceilings.cache_bytes
    assert 0.126 < found.time_ms < 0.128
    assert found.limit == "memory"
    assert 0.27 < found.fma_ms < 0.29
    assert not found.cache_resident
    assert found.to_dict()["limit"] == "memory"


def test_the_floor_of_a_mean_is_reading_its_data() -> None:
    ceilings = ceilings_of(ScriptedDevice("NVIDIA H200"), Path("unused"))
    problem = make_problem(catalogue().operator("conv_transpose2d_mean_logsumexp"), "seed")
    assert problem.bytes_written == 16 * 4
    data = 16 * 64 * 512 * 512
    assert problem.flops == data + 2 * 16 * 64 * 128 * 9, "of the collapsed form"
    found = floor_of(problem, ceilings, "fp32", cold=True)
    assert found.time_ms == pytest.approx(1e3 * problem.bytes_read / ceilings.read, rel=1e-6)
    assert 0.22 < found.time_ms < 0.25
    assert found.limit == "memory"
    assert found.arithmetic_ms < found.fma_ms < 0.01
    # A sum of the same data was timed at 0.2387 ms; nothing reads them in 0.2.
    assert impossible(0.2387, problem, ceilings, "fp32", cold=True) == ""
    assert "timing error" in impossible(0.2, problem, ceilings, "fp32", cold=True)
    resident = problem.with_dims(N=1)  # 67 MB, and the cache holds 63
    assert floor_of(resident, ceilings, "fp32", cold=True).cache_resident
    assert impossible(0.005, resident, ceilings, "fp32", cold=True) == ""


def test_impossible_times_are_refused() -> None:
    ceilings = Ceilings(4.31e12, 4.67e12, {"fma": 66.9e12, "fp16": 989.4e12}, 60 << 20)
    problem = workload()
    assert impossible(0.10, problem, ceilings, "fp32", cold=True).startswith("timing error: 0.1 ms, but")
    # All of the writes but what the cache holds must have left it: 67 MB in and 457 MB out.
    assert impossible(0.12, problem, ceilings, "fp32", cold=True) == ""
    assert impossible(0.01, problem, ceilings, "fp32", cold=False) == ""
    small = workload(N=1, H=16, W=16)
    assert impossible(1e-6, small, ceilings, "fp32", cold=True) == ""
    assert floor_of(small, ceilings, "fp32", cold=True).cache_resident


def test_a_probe_refuses_nothing_by_arithmetic() -> None:
    slow = {"read": 1e15, "write": 1e15, "flops": {"fma": 1e9}, "cache_bytes": 0}
    probed = Ceilings.from_dict({**slow, "source": "probe"})
    assert impossible(1.0, workload(), probed, "fp32", cold=True) == ""
    assert impossible(1.0, workload(), Ceilings.from_dict({**slow, "source": "table"}), "fp32", cold=True)


def test_ceilings_are_probed_once_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = []

    def probe(device: Device) -> Ceilings:
        probes.append(device)
        return Ceilings(1e9, 2e9, {"fma": 3e9}, 4, "probe")

    monkeypatch.setattr(floor, "probe", probe)
    device = ScriptedDevice("Some CPU @ 2.0GHz")
    first = ceilings_of(device, tmp_path)
    assert ceilings_of(device, tmp_path) == first
    assert len(probes) == 1
    (path,) = (tmp_path / "devices").iterdir()
    assert path.name == "cpu-Some-CPU-2-0GHz-2.json"
    assert json.loads(path.read_text())["read"] == 1e9
    path.write_text("{")  # a broken record is measured again
    assert ceilings_of(device, tmp_path) == first
    assert len(probes) == 2


def test_a_kernel_faster_than_its_floor_raises_probed_ceilings() -> None:
    low = Ceilings(1e12, 1e12, {"fma": 1e12}, 0, "probe")
    before = floor_of(workload(), low, "fp32", cold=True)
    assert before.limit == "arithmetic"
    after = floor_of(workload(), raised(low, before, 2.0), "fp32", cold=True)
    assert after.time_ms == pytest.approx(2.0)
    assert after.memory_ms == before.memory_ms < 2.0


def test_results_survive_json() -> None:
    result = TrialResult(
        TrialOutcome.OK,
        time_ms=0.5,
        samples_ms=(0.5, 0.6),
        error=1e-7,
        config={"TILE_X": 32},
        details={"floor_ms": 0.1},
    )
    again = TrialResult.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    assert again.ok
    assert not TrialResult(TrialOutcome.CRASH, "SIGSEGV").ok
