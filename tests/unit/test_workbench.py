# SPDX-License-Identifier: Apache-2.0
"""The workbench on kernels that are Python functions: each way to fail has its outcome and its cause, a
hopeless variant costs three timed calls, and what is timed is timed in a quiet context."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Resources
from coldforge.codegen.errors import InputError
from coldforge.codegen.problem import make_problem
from coldforge.codegen.settings import Settings
from coldforge.codegen.space import Launch
from coldforge.codegen.target import Target
from coldforge.tuner.devices.base import Call, DeviceFault, LaunchRefused
from coldforge.tuner.energy import Reading
from coldforge.tuner.floor import Ceilings
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.request import TrialRequest
from coldforge.tuner.workbench import Workbench
from torch_device import Kernel, TorchDevice

SHAPE = {"N": 2, "H": 20, "W": 22, "C_in": 4, "C_out": 8}
WORKLOAD = (2, 4, 20, 22)


def good(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
    x, w, b, y, *_ = tensors
    y.copy_(F.leaky_relu(F.conv2d(x, w, b) / scalars[0], scalars[1]))


class Bench(TorchDevice):
    """Runs one kernel whatever is loaded, and counts what is timed."""

    cold_headline = True

    def __init__(self) -> None:
        target = Target("cpu", "x86-64-v2", "none", {"threads": 1, "llc_bytes": 1 << 20, "vector_bytes": 16})
        super().__init__(target, Settings(Path("unused"), 1, "g++", may_build=False))
        self.kernel: Kernel = good
        self.on_load: Exception | None = None
        self.on_wait: Exception | None = None
        self.time_ms = 1.0
        self.timed = 0
        self.is_quiet = False
        self.unloaded = 0

    def load(self, artifact: Any) -> Kernel:
        if self.on_load is not None:
            raise self.on_load
        return self.kernel

    def unload(self, kernel: Kernel) -> None:
        self.unloaded += 1

    def synchronize(self) -> None:
        if self.on_wait is not None:
            raise self.on_wait

    def sample_ms(self, calls: Sequence[Call], count: int, *, cold: bool) -> list[float]:
        assert self.is_quiet
        for index in range(count):
            calls[index % len(calls)]()
        self.timed += count
        return [self.time_ms] * count

    @contextmanager
    def quiet(self) -> Iterator[None]:
        assert not self.is_quiet, "entered twice"
        self.is_quiet = True
        try:
            yield
        finally:
            self.is_quiet = False


@pytest.fixture(scope="module")
def _bench() -> Workbench:
    device = Bench()
    bench = Workbench(device, Path("unused"), device.quiet)
    bench._ceilings = Ceilings(1e15, 1e15)
    return bench


@pytest.fixture
def bench(_bench: Workbench) -> Workbench:
    device = _bench.device
    assert isinstance(device, Bench)
    device.__init__()  # as new; references stay
    return _bench


@pytest.fixture
def device(bench: Workbench) -> Bench:
    assert isinstance(bench.device, Bench)
    return bench.device


def request(**changes: Any) -> TrialRequest:
    problem = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small", SHAPE)
    artifact = Artifact(Path("none"), "0" * 64, "variant", Resources(), "code", "none", (), 0.0)
    made = TrialRequest(
        problem=problem.to_dict(),
        artifact=artifact.to_dict(),
        template="by_hand",
        config={"A": 1},
        launch={"units": "N", "grain": "1"},
    )
    return replace(made, **changes)


def test_a_trial_has_phases(bench: Workbench, device: Bench) -> None:
    result = bench.trial(request())
    assert result.ok, result.reason
    assert list(result.details["phase_s"]) == ["load", "verify", "bind", "quiet", "time", "warm", "after"]
    assert 0 < sum(result.details["phase_s"].values()) <= result.seconds
    assert result.details["warm_ms"] == 1.0
    assert result.details["device_state"] == {}
    assert not device.is_quiet
    assert device.unloaded == 1
    assert TrialResult.from_dict(result.to_dict()) == result


@pytest.mark.parametrize(("times", "calls"), [(3.1, 3), (2.9, None), (1.0, None)])
def test_a_hopeless_variant_costs_three_timed_calls(
    times: float, calls: int | None, bench: Workbench, device: Bench
) -> None:
    device.time_ms = times * 2.0
    result = bench.trial(request(best_ms=2.0))
    assert result.ok
    assert result.time_ms == pytest.approx(2.0 * times)
    assert result.details["given_up"] is (calls is not None)
    if calls is not None:
        assert device.timed == calls
        assert len(result.samples_ms) == calls
        assert "warm_ms" not in result.details


def test_finals_are_timed_in_a_quiet_context(bench: Workbench, device: Bench) -> None:
    first, second = bench.finals([request(), request(config={"A": 2})])
    assert first.ok
    assert second.ok
    assert device.timed > 0
    assert not device.is_quiet
    assert first.details["device_record"] == second.details["device_record"] == {"model": "none"}
    assert first.details["warm_ms"] == 1.0
    assert "energy_j" not in first.details


def test_finals_read_energy_where_it_is_asked_for(
    bench: Workbench, device: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def readings(_: object, contestants: Sequence[object], rounds: int) -> list[list[Reading]]:
        assert device.is_quiet
        asked.append(rounds)
        return [[Reading(index + 1.0, 100.0, 0.01, "made up")] * rounds for index in range(len(contestants))]

    monkeypatch.setattr("coldforge.tuner.beside.energy_in_rounds", readings)
    first, second = bench.finals([request(), request(config={"A": 2})], energy_rounds=3)
    assert asked == [3]
    assert (first.details["energy_j"], second.details["energy_j"]) == (1.0, 2.0)
    assert first.details["energy_samples_j"] == [1.0] * 3
    (third,) = bench.finals([request()])
    assert "energy_j" not in third.details


REFUSED = LaunchRefused("variant: 300000 bytes of shared memory a block; the device allows 232448")
REFUSALS: dict[str, tuple[Exception, str]] = {
    "too much": (REFUSED, "300000 bytes of shared memory"),
    "no device memory": (
        torch.OutOfMemoryError("CUDA out of memory. Tried\nto"),
        "CUDA out of memory. Tried",
    ),
    "no host memory": (
        RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory"),
        "can't allocate memory",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("where", ["load", "call", "call of the workload"])
def test_what_the_device_refuses_is_a_limit(name: str, where: str, bench: Workbench, device: Bench) -> None:
    error, words = REFUSALS[name]

    def refusing(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        if where == "call" or tuple(tensors[0].shape) == WORKLOAD:
            raise error
        tensors[0].zero_()  # ran before the refusal was seen
        good(tensors, sizes, scalars)

    if where == "load":
        device.on_load = error
    else:
        device.kernel = refusing
    for result in (bench.trial(request()), *bench.finals([request()])):
        assert result.outcome is TrialOutcome.RESOURCE_LIMIT
        assert words in result.reason
        assert "\n" not in result.reason
        assert result.config == {"A": 1}
    device.__init__()
    assert bench.trial(request()).ok  # nothing of it is left


def test_a_workspace_beyond_the_memory_is_a_limit(bench: Workbench) -> None:
    launch = {"units": "N", "grain": "1", "workspace_bytes": str(1 << 56)}
    result = bench.trial(request(launch=launch))
    assert result.outcome is TrialOutcome.RESOURCE_LIMIT
    assert "memory" in result.reason


def test_a_problem_beyond_the_memory_is_the_users_input(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*arguments: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 640 bytes")

    monkeypatch.setattr("coldforge.tuner.workbench.build_checks", exhausted)
    with pytest.raises(InputError, match=r"N=2 H=20 W=22 does not fit the memory: .* choose smaller sizes"):
        bench.trial(request(seed=77))
    monkeypatch.undo()
    assert bench.trial(request(seed=77)).ok


@pytest.mark.parametrize("where", ["load", "call", "wait"])
def test_what_breaks_the_device_goes_through(where: str, bench: Workbench, device: Bench) -> None:
    fault = DeviceFault("waiting for the device: CUDA_ERROR_ILLEGAL_ADDRESS")

    def breaking(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        raise fault

    if where == "load":
        device.on_load = fault
    elif where == "call":
        device.kernel = breaking
    else:
        device.on_wait = fault
    with pytest.raises(DeviceFault, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        bench.trial(request())
    with pytest.raises(DeviceFault, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        bench.finals([request()])


def _from(call: int, change: Callable[[list[Any]], object]) -> Kernel:
    """Right, but for the workload's calls from that number on."""
    calls = [0]

    def kernel(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        good(tensors, sizes, scalars)
        if tuple(tensors[0].shape) == WORKLOAD:
            calls[0] += 1
            if calls[0] >= call:
                change(tensors)

    return kernel


# Two runs for each of the two kinds come before the timed ones.
WRONG: dict[str, tuple[int, Callable[[list[Any]], object], str]] = {
    "at once": (1, lambda t: t[3].add_(1.0), "normal inputs at N=2 H=20 W=22: "),
    "in the second run": (2, lambda t: t[3].mul_(1 + 2**-23), "a second run on the same inputs differs in"),
    "once timed": (5, lambda t: t[3].add_(1.0), "after timing, 5760 outputs of the timed calls are wrong"),
    "once timed, not a number": (
        5,
        lambda t: t[3].fill_(math.nan),
        "after timing, 5760 outputs of the timed",
    ),
    "an input, once timed": (20, lambda t: t[1].add_(1.0), "after timing, "),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_are_told(name: str, bench: Workbench, device: Bench) -> None:
    call, change, words = WRONG[name]
    device.kernel = _from(call, change)
    result = bench.trial(request())
    assert result.outcome is TrialOutcome.WRONG_RESULT, result
    assert words in result.reason
    assert result.time_ms is None
    device.__init__()
    assert bench.trial(request()).ok  # nothing of it is left, in the timed inputs neither


@pytest.mark.parametrize("error", [REFUSED, torch.OutOfMemoryError("CUDA out of memory.")])
def test_a_refusal_on_other_inputs_spoils_nothing(error: Exception, bench: Workbench, device: Bench) -> None:
    def refuse(_: list[Any]) -> None:
        raise error

    device.kernel = _from(5, refuse)  # the first call after the checks
    assert bench.trial(request()).outcome is TrialOutcome.RESOURCE_LIMIT
    device.__init__()
    result = bench.trial(request())  # whose timed outputs are judged
    assert result.ok, result.reason


@pytest.mark.parametrize("kept", [1, 2, 0])
def test_what_is_kept_by_its_address_is_told(kept: int, bench: Workbench, device: Bench) -> None:
    """Weights, a bias, or an image that are copied once for each address."""
    copies: dict[int, torch.Tensor] = {}

    def keeping(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        mine = copies.setdefault(tensors[kept].data_ptr(), tensors[kept].clone())
        good([mine if place == kept else one for place, one in enumerate(tensors)], sizes, scalars)

    device.kernel = keeping
    result = bench.trial(request())
    assert result.outcome is TrialOutcome.WRONG_RESULT
    assert "outputs of the timed calls are wrong" in result.reason


def test_an_answer_that_is_kept_by_its_addresses_is_told(bench: Workbench, device: Bench) -> None:
    answered = set[tuple[int, int]]()

    def answering_once(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        addresses = tensors[0].data_ptr(), tensors[3].data_ptr()
        if addresses not in answered:
            good(tensors, sizes, scalars)
        if tuple(tensors[0].shape) == WORKLOAD and addresses[0] % 64 == 0:  # as an application has them
            answered.add(addresses)

    device.kernel = answering_once
    result = bench.trial(request())
    assert result.outcome is TrialOutcome.WRONG_RESULT
    assert "outputs of the timed calls are wrong" in result.reason


def test_a_finalist_that_goes_wrong_once_timed_is_told_and_spoils_nothing(
    bench: Workbench, device: Bench
) -> None:
    """Right in the checks before, and from then on wrong: in its output, and in the inputs that all share."""

    def spoil(tensors: list[Any]) -> None:
        tensors[0].add_(1.0)
        tensors[3].add_(1.0)

    device.kernel = _from(5, spoil)
    (result,) = bench.finals([request()])
    assert result.outcome is TrialOutcome.WRONG_RESULT
    assert result.reason.startswith("after timing, ")
    assert result.time_ms is None
    device.__init__()
    (result,) = bench.finals([request()])
    assert result.ok, result.reason
    assert bench.trial(request()).ok  # whose timed outputs are judged


def test_a_launch_is_evaluated_once_a_shape(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.trial(request())
    seen: list[Any] = []
    plain = TrialRequest.launch_at

    def counted(self: TrialRequest, problem: Any, target: Any) -> Launch:
        seen.append(tuple(problem.dims.values()))
        return plain(self, problem, target)

    monkeypatch.setattr(TrialRequest, "launch_at", counted)
    assert bench.trial(request()).ok
    assert len(set(seen)) == len(seen) == 8  # seven ragged shapes and the workload
