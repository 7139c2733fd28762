# SPDX-License-Identifier: Apache-2.0
"""What makes verification quick says what the slow way says: figures without a wait, checks in one go, zones
in one allocation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from coldforge.codegen.problem import Problem
from coldforge.codegen.space import Launch
from coldforge.tuner import examiner, figures
from coldforge.tuner.bound import Expectation, judge
from coldforge.tuner.devices.arena import Arena
from coldforge.tuner.devices.buffers import NAN_BYTE, STALE_BYTES
from coldforge.tuner.examiner import Examiner
from coldforge.tuner.figures import CERTAIN, Judge, summed
from coldforge.tuner.verify import Check, build_check, build_checks, verify
from small_conv import good, small_conv
from torch_device import TorchDevice, torch_device

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _expectation(reference: torch.Tensor, tolerance: torch.Tensor) -> Expectation:
    return Expectation(reference, tolerance, True, float(torch.linalg.vector_norm(reference)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_figures_are_the_judges(dtype: torch.dtype, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(figures._PART, "cpu", 700)
    generator = torch.Generator().manual_seed(3)
    reference = torch.randn(9, 333, dtype=torch.float64, generator=generator) * scale
    output = reference.to(dtype)  # off by half a rounding at most
    tolerance = (reference.abs() * 2 * torch.finfo(dtype).eps + 1e-7 * scale).float()
    expected = _expectation(reference, tolerance)
    ratio, error = summed(Judge(CPU).look(output, expected).tolist(), expected.norm)
    slow = judge(output, expected)
    assert ratio == pytest.approx(slow.ratio, rel=2e-7)
    assert error == pytest.approx(slow.error, rel=1e-6)
    assert 0.05 < ratio < 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0, -2.0])
@pytest.mark.parametrize("place", [0, 699, 700, 2996])
def test_one_wrong_output_anywhere_is_seen(value: float, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(figures._PART, "cpu", 700)
    reference = torch.zeros(2997, dtype=torch.float64)
    output = torch.zeros(2997)
    output[place] = value
    expected = _expectation(reference, torch.full((2997,), 1.5))
    ratio, _ = summed(Judge(CPU).look(output, expected).tolist(), expected.norm)
    assert ratio > CERTAIN
    assert math.isinf(ratio) is not math.isfinite(value)


def test_what_is_near_the_bound_is_left_to_the_judge() -> None:
    reference, tolerance = torch.zeros(4, dtype=torch.float64), torch.ones(4)
    for value, certain in ((1 - 2e-6, True), (1 - 2**-24, False), (1 + 2**-23, False)):
        output = torch.full((4,), value)
        ratio, _ = summed(Judge(CPU).look(output, _expectation(reference, tolerance)).tolist(), 0.0)
        assert (ratio <= CERTAIN) is certain


def test_an_arena_has_zones_of_guard_bytes() -> None:
    arena = Arena([(3, 5), (), (7,)], torch.float32, CPU, 16, guard=0x5A, guard_bytes=256)
    assert [t.shape for t in arena.tensors] == [(3, 5), (), (7,)]
    for one in arena.tensors:
        assert one.data_ptr() % 32 == 16
        assert bool(one.isnan().all())
    starts = [one.data_ptr() for one in arena.tensors]
    assert all(b - a >= 256 for a, b in itertools.pairwise(starts))
    for value, one in enumerate(arena.tensors):
        one.fill_(value)
    assert not arena.outside()
    assert arena.changed()
    twin = Arena([(3, 5), (), (7,)], torch.float32, CPU, 16, guard=0x5A, guard_bytes=256)
    for one, other in zip(arena.tensors, twin.tensors, strict=True):
        other.copy_(one)
    assert not arena.differs(twin)
    arena.tensors[2][3] = math.nan
    assert arena.differs(twin)
    assert [arena.outside_at(index) for index in range(3)] == [False] * 3
    arena.poison()
    assert not arena.changed()


def test_an_arena_is_poisoned_with_the_bytes_that_it_is_given_in_turn() -> None:
    arena = Arena([(3, 5), (), (7,)], torch.float32, CPU, 16, guard=0x5A, guard_bytes=256, fills=STALE_BYTES)
    assert [bool((one > 1e36).all()) for one in arena.tensors] == [True, False, True]
    assert arena.tensors[1] < -1e36
    halves = Arena([(3, 5), (4,)], torch.float16, CPU, 16, guard=0x5A, guard_bytes=256, fills=STALE_BYTES)
    assert [one.unique().tolist() for one in halves.tensors] == [[61280.0], [-65376.0]]


@pytest.mark.parametrize(("index", "offset"), [(0, -1), (0, 15), (1, -1), (1, 1), (2, -1), (2, 7), (2, 60)])
def test_a_stray_write_is_laid_at_the_nearest_door(index: int, offset: int) -> None:
    arena = Arena([(3, 5), (), (7,)], torch.float32, CPU, 16, guard=0x5A, guard_bytes=256)
    one = arena.tensors[index]
    one.as_strided((1,), (1,), one.storage_offset() + offset).fill_(1.0)
    assert arena.outside()
    assert [arena.outside_at(place) for place in range(3)] == [place == index for place in range(3)]
    arena.poison()
    assert not arena.outside()
    assert not arena.outside_at(index)


@pytest.fixture(scope="module")
def device() -> TorchDevice:
    return torch_device()


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small_conv()


@pytest.fixture(scope="module")
def checks(device: TorchDevice, problem: Problem) -> tuple[Check, ...]:
    return build_checks(device, problem, "fp32").all()


def test_together_and_alone_give_one_verdict(
    device: TorchDevice, checks: tuple[Check, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = verify(device, good, lambda _: Launch(), checks)
    monkeypatch.setattr(examiner, "SMALL_ELEMENTS", 0)
    alone = verify(device, good, lambda _: Launch(), checks)
    monkeypatch.undo()
    monkeypatch.setattr(examiner, "TOGETHER_ELEMENTS", 20000)
    grouped = Examiner(device, checks)
    assert len(grouped._together) > 3
    few = grouped.examine(good, lambda _: Launch())
    for other in (alone, few):
        assert other.ok
        assert other.checks == together.checks == 58
        assert other.error == pytest.approx(together.error, rel=1e-6)
        assert other.bound_ratio == pytest.approx(together.bound_ratio, rel=1e-6)


def test_every_check_runs_twice_in_a_row(device: TorchDevice, checks: tuple[Check, ...]) -> None:
    order: list[tuple[int, ...]] = []
    outputs: set[int] = set()

    def noting(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        assert bool((tensors[-1].isnan() | (tensors[-1].abs() > 1e36)).all())  # nobody's yet
        order.append((tensors[0].data_ptr(), *sizes))
        outputs.add(tensors[-1].data_ptr())
        good(tensors, sizes, scalars)

    assert verify(device, noting, lambda _: Launch(), checks).ok
    assert order[::2] == order[1::2]
    assert len(set(order)) == len(checks)
    assert len(outputs) == 2 * len(checks)


@pytest.mark.parametrize("period", [2, 3, 9, 13, 58, 115])
def test_what_comes_back_every_few_calls_is_seen(
    period: int, device: TorchDevice, checks: tuple[Check, ...]
) -> None:
    calls = [0]

    def forgetful(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        good(tensors, sizes, scalars)
        calls[0] += 1
        if calls[0] % period == 0:
            tensors[-1].view(-1)[0] *= 1 + 2**-23

    verdict = verify(device, forgetful, lambda _: Launch(), checks)
    assert not verdict.ok
    assert "a second run on the same inputs differs in 1 outputs" in verdict.reason


def test_a_write_into_the_output_of_an_earlier_check_is_seen(
    device: TorchDevice, checks: tuple[Check, ...]
) -> None:
    calls = [0]

    def straying(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        good(tensors, sizes, scalars)
        calls[0] += 1
        if calls[0] == 60:
            earlier.view(-1)[0] = 1.0

    held = Examiner(device, checks)
    earlier = held._together[0]._second.tensors[20]
    verdict = held.examine(straying, lambda _: Launch())
    assert not verdict.ok
    assert verdict.reason == f"{checks[20].name}: a second run on the same inputs differs in 1 outputs"


def test_an_examiner_is_as_before_after_a_bad_variant(device: TorchDevice, checks: tuple[Check, ...]) -> None:
    def spoiling(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        for one in tensors:
            one.fill_(1.0)
        if sizes[0] == 3:
            raise RuntimeError("broken off")

    held = Examiner(device, checks)
    first = held.examine(good, lambda _: Launch())
    with pytest.raises(RuntimeError, match="broken off"):
        held.examine(spoiling, lambda _: Launch())
    assert held.examine(good, lambda _: Launch()) == first


def test_a_reference_of_zeros_is_met_exactly(device: TorchDevice, problem: Problem) -> None:
    check = build_check(device, problem, "impulses", "fp32")
    verdict = verify(device, good, lambda _: Launch(), [check])
    assert verdict.ok
    assert math.isfinite(verdict.error)


def test_workspaces_of_a_config_are_kept_for_the_next(device: TorchDevice, checks: tuple[Check, ...]) -> None:
    seen: list[int] = []

    def kernel(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        *rest, workspace = tensors
        assert (workspace is None) == (sizes[0] == 1)
        if workspace is not None:
            assert workspace.unique().item() in (NAN_BYTE, *STALE_BYTES)
            assert workspace.numel() == 64 * sizes[0]
            workspace.zero_()
            seen.append(workspace.data_ptr())
        good(rest, sizes, scalars)

    def launch(problem: Problem) -> Launch:
        samples = problem.dims["N"]
        return Launch(workspace_bytes=64 * samples if samples > 1 else 0)

    held = Examiner(device, checks)
    assert held.examine(kernel, launch, workspace=True).ok
    first, seen = seen, []
    assert held.examine(kernel, launch, workspace=True).ok
    assert seen == first
