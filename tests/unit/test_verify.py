# SPDX-License-Identifier: Apache-2.0
"""Verification on kernels written in PyTorch: right ones pass every check, planted faults are caught."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import InputError
from coldforge.codegen.operator import EpilogueStep
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.space import Launch
from coldforge.tuner.bound import expect, judge
from coldforge.tuner.devices.base import pack_arguments
from coldforge.tuner.inputs import draw
from coldforge.tuner.verify import Check, build_check, build_checks, verify
from small_conv import good, small_conv
from torch_device import Kernel, TorchDevice, torch_device


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are tiny: waking threads would cost more than the work
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def device() -> TorchDevice:
    return torch_device()


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small_conv()


@pytest.fixture(scope="module")
def checks(device: TorchDevice, problem: Problem) -> tuple[Check, ...]:
    return build_checks(device, problem, "fp32").all()


def test_a_right_kernel_passes_with_room(device: TorchDevice, checks: tuple[Check, ...]) -> None:
    verdict = verify(device, good, lambda _: Launch(), checks)
    assert verdict.ok, verdict.reason
    assert verdict.checks == len(checks) == 7 * 8 + 2
    assert 1e-8 < verdict.error < 1e-6
    assert 0.05 < verdict.bound_ratio < 0.9


def test_other_summation_orders_pass(device: TorchDevice, checks: tuple[Check, ...]) -> None:
    def taps_first(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        x, w, b, y = tensors
        total = torch.zeros_like(y)
        for r in reversed(range(3)):
            for s in range(3):
                for c in range(x.shape[1]):
                    part = x[:, c : c + 1, r : r + y.shape[2], s : s + y.shape[3]]
                    total += part * w[:, c, r, s].view(1, -1, 1, 1)
        y.copy_(F.leaky_relu((total + b.view(1, -1, 1, 1)) * (1.0 / scalars[0]), scalars[1]))

    assert verify(device, taps_first, lambda _: Launch(), checks).ok


def _half(x: torch.Tensor) -> torch.Tensor:
    return x.half().float()


def _tf32(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)


def _epilogue(v: torch.Tensor, scalars: list[float]) -> torch.Tensor:
    return F.leaky_relu(v / scalars[0], scalars[1])


def _conv(change: Callable[..., tuple[Any, Any, Any]]) -> Kernel:
    def kernel(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        x, w, b, y = tensors
        y.copy_(_epilogue(F.conv2d(*change(x, w, b)), scalars))

    return kernel


def _after(change: Callable[[torch.Tensor, list[float]], torch.Tensor]) -> Kernel:
    def kernel(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        x, w, b, y = tensors
        y.copy_(change(F.conv2d(x, w, b), scalars))

    return kernel


def _patch(change: Callable[[torch.Tensor], Any]) -> Kernel:
    def kernel(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        good(tensors, sizes, scalars)
        change(tensors[-1])

    return kernel


def _split_with_one_scale(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[Any, Any, Any]:
    """Both operands in two fp16 pieces under one scale: fine on average, not where the image is dark."""

    def pieces(value: torch.Tensor) -> torch.Tensor:
        scale = 2.0 ** torch.floor(torch.log2(value.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-30)))
        high = _half(value / scale)
        return (high + _half(value / scale - high)) * scale

    return pieces(x), pieces(w), b


def _into_stale(combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Kernel:
    """Combines the result with an output that nobody has begun."""

    def kernel(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        found = tensors[-1].clone()
        good(tensors, sizes, scalars)
        tensors[-1].copy_(combine(found, tensors[-1]))

    return kernel


def _scratch_state() -> Kernel:
    calls = [0]

    def kernel(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        good(tensors, sizes, scalars)
        calls[0] += 1
        tensors[-1].view(-1)[0] *= 1 + 2**-23 * (calls[0] % 2)

    return kernel


MUTANTS: dict[str, tuple[Kernel, str]] = {
    "zeros": (lambda t, n, s: t[-1].zero_(), "outputs are wrong"),
    "nothing written": (lambda t, n, s: None, "outputs are wrong"),
    "last element not written": (_patch(lambda y: y.view(-1)[-1:].fill_(math.nan)), "1 of"),
    "last column not written": (_patch(lambda y: y[..., -1].fill_(0)), "outputs are wrong"),
    "no bias": (_conv(lambda x, w, b: (x, w, None)), "outputs are wrong"),
    "bias shifted by one": (_conv(lambda x, w, b: (x, w, b.roll(1))), "outputs are wrong"),
    "transposed taps": (_conv(lambda x, w, b: (x, w.transpose(2, 3), b)), "outputs are wrong"),
    "flipped taps": (_conv(lambda x, w, b: (x, w.flip(2, 3), b)), "outputs are wrong"),
    "channels swapped": (_conv(lambda x, w, b: (x, w.roll(1, 1), b)), "outputs are wrong"),
    "last channel skipped": (_conv(lambda x, w, b: (x[:, :-1], w[:, :-1], b)), "outputs are wrong"),
    "one tap skipped": (
        _conv(lambda x, w, b: (x, w * torch.tensor([1.0] * 8 + [0.0]).view(3, 3), b)),
        "outputs are wrong",
    ),
    "image shifted": (_conv(lambda x, w, b: (x.roll(1, 3), w, b)), "outputs are wrong"),
    "samples swapped": (_conv(lambda x, w, b: (x.roll(1, 0), w, b)), "outputs are wrong"),
    "fp16 operands": (_conv(lambda x, w, b: (_half(x), _half(w), b)), "outputs are wrong"),
    "tf32 operands": (_conv(lambda x, w, b: (_tf32(x), _tf32(w), b)), "outputs are wrong"),
    "split fp16, one scale": (_conv(_split_with_one_scale), "outputs are wrong"),
    "fp16 output": (_after(lambda v, s: _half(_epilogue(v, s))), "outputs are wrong"),
    "two millionths too much": (_after(lambda v, s: _epilogue(v, s) * (1 + 2e-6)), "outputs are wrong"),
    "division after a shift": (_after(lambda v, s: F.leaky_relu(v, s[1]) / (s[0] + 1)), "outputs are wrong"),
    "slope ignored": (_after(lambda v, s: F.relu(v / s[0])), "outputs are wrong"),
    "divisor ignored": (_after(lambda v, s: F.leaky_relu(v, s[1])), "outputs are wrong"),
    "nan lost": (_after(lambda v, s: _epilogue(v.nan_to_num(0.0, math.inf, -math.inf), s)), "nonfinite"),
    "infinities clamped": (_after(lambda v, s: _epilogue(v.clamp(-3e38, 3e38), s)), "nonfinite"),
    "small values flushed": (
        _after(lambda v, s: _epilogue(torch.where(v.abs() < 1e-9, 0.0, v), s)),
        "mixed inputs",
    ),
    "writes past the end": (
        _patch(lambda y: y.as_strided((1,), (1,), y.storage_offset() + y.numel()).fill_(1.0)),
        "wrote outside its output",
    ),
    "writes before the start": (
        _patch(lambda y: y.as_strided((1,), (1,), y.storage_offset() - 1).fill_(1.0)),
        "wrote outside its output",
    ),
    "changes its input": (
        lambda t, n, s: (good(t, n, s), t[0].view(-1)[3:4].add_(1.0)),  # type: ignore[func-returns-value]
        "changed its input x",
    ),
    "changes its weights": (
        lambda t, n, s: (good(t, n, s), t[1].mul_(2.0)),  # type: ignore[func-returns-value]
        "changed its input weight",
    ),
    "another answer each time": (_scratch_state(), "a second run on the same inputs differs in"),
    "a maximum that begins with what lies in its output": (_into_stale(torch.fmax), "a second run"),
    "a minimum that begins with what lies in its output": (_into_stale(torch.fmin), "a second run"),
    "a sum that begins with what lies in its output": (_into_stale(torch.add), "outputs are wrong"),
    "nothing times what lies in its output": (
        _into_stale(lambda y, v: 0 * y + v),
        "outputs are wrong",
    ),
    "reads past the input": (
        _conv(lambda x, w, b: (x.as_strided(x.shape, x.stride(), x.storage_offset() + 1), w, b)),
        "outputs are wrong",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str, device: TorchDevice, checks: tuple[Check, ...]) -> None:
    kernel, reason = MUTANTS[name]
    verdict = verify(device, kernel, lambda _: Launch(), checks)
    assert not verdict.ok
    assert reason in verdict.reason
    assert "\n" not in verdict.reason
    # The checks are as before: the next kernel is not judged on what this one left.
    assert verify(device, good, lambda _: Launch(), checks).ok


@pytest.fixture
def alone(checks: tuple[Check, ...], monkeypatch: pytest.MonkeyPatch) -> tuple[Check, ...]:
    """Every kind of inputs at one shape and the workload, each check run by itself as large ones are."""
    monkeypatch.setattr("coldforge.tuner.examiner.SMALL_ELEMENTS", 0)
    return tuple(check for check in checks if check.problem.dims["H"] in (37, 20))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught_in_a_check_that_is_run_alone(
    name: str, device: TorchDevice, alone: tuple[Check, ...]
) -> None:
    kernel, reason = MUTANTS[name]
    verdict = verify(device, kernel, lambda _: Launch(), alone)
    assert not verdict.ok
    assert reason in verdict.reason
    assert "\n" not in verdict.reason
    again = verify(device, good, lambda _: Launch(), alone)
    assert again.ok, again.reason
    assert again.checks == len(alone) == 10


def test_a_small_leak_is_caught_by_impulses_alone(device: TorchDevice, problem: Problem) -> None:
    def leaking(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        good(tensors, sizes, scalars)
        tensors[-1].add_(1e-30)

    others = [build_check(device, problem, kind, "fp32") for kind in ("normal", "offset", "mixed")]
    assert verify(device, leaking, lambda _: Launch(), others).ok
    impulses = build_check(device, problem, "impulses", "fp32")
    assert not verify(device, leaking, lambda _: Launch(), [impulses]).ok


def test_the_message_names_shape_place_and_values(device: TorchDevice, problem: Problem) -> None:
    check = build_check(device, problem, "normal", "fp32")

    def off(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        good(tensors, sizes, scalars)
        tensors[-1][1, 2, 3, 4] = 7.0

    want = check.expected.reference[1, 2, 3, 4].item()
    verdict = verify(device, off, lambda _: Launch(), [check])
    assert verdict.reason.startswith("normal inputs at N=2 H=20 W=22: 1 of 5760 outputs are wrong; ")
    assert f"worst at [1, 2, 3, 4]: 7 instead of {want:.9g}, " in verdict.reason


def test_workspace_is_poisoned_and_guarded(device: TorchDevice, problem: Problem) -> None:
    check = build_check(device, problem, "normal", "fp32")
    seen = []

    def with_workspace(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        *rest, workspace = tensors
        seen.append(workspace.clone())
        assert workspace.data_ptr() % 128 == 64
        workspace.zero_()
        good(rest, sizes, scalars)

    launch = Launch(workspace_bytes=64)
    assert verify(device, with_workspace, lambda _: launch, [check], workspace=True).ok
    assert [s.unique().tolist() for s in seen] == [[0xFF], [0x7B]]

    def beyond(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        *rest, workspace = tensors
        workspace.as_strided((1,), (1,), workspace.storage_offset() + 64).fill_(0)
        good(rest, sizes, scalars)

    verdict = verify(device, beyond, lambda _: launch, [check], workspace=True)
    assert "wrote outside its workspace" in verdict.reason


@pytest.mark.parametrize("largest", [0, 1 << 20])
@pytest.mark.parametrize("combine", [torch.fmax, torch.fmin])
def test_a_workspace_that_nobody_begins_is_seen(
    largest: int, combine: Callable[..., torch.Tensor], device: TorchDevice, problem: Problem,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("coldforge.tuner.examiner.SMALL_ELEMENTS", largest)
    checks = [build_check(device, problem, kind, "fp32") for kind in ("normal", "offset")]

    def parts(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        *rest, workspace = tensors
        good(rest, sizes, scalars)
        partial = workspace.view(torch.float32)
        partial.copy_(combine(partial, rest[-1].view(-1)[:16]))
        rest[-1].view(-1)[:16] = partial

    launch = Launch(workspace_bytes=64)
    verdict = verify(device, parts, lambda _: launch, checks, workspace=True)
    assert "a second run on the same inputs differs in" in verdict.reason


def test_inputs_lie_at_the_weakest_alignment(device: TorchDevice, problem: Problem) -> None:
    check = build_check(device, problem, "normal", "fp32")
    addresses = [buffer.tensor.data_ptr() for buffer in check.inputs if buffer is not None]
    assert all(address % 32 == 16 for address in addresses)


def test_the_bound_follows_the_class(problem: Problem) -> None:
    drawn = draw(problem, "normal")
    scalars = dict(problem.scalars)
    rounded = {**drawn, "x": _tf32(drawn["x"]), "weight": _tf32(drawn["weight"])}
    output = problem.reference({n: v.double() for n, v in rounded.items()}).float()
    assert judge(output, expect(problem, drawn, scalars, "fp32")).ratio > 10
    assert judge(output, expect(problem, drawn, scalars, "tf32")).ratio < 1
    with pytest.raises(InputError, match="no error bound for precision 'fp8'"):
        expect(problem, drawn, scalars, "fp8")


def test_a_flat_place_of_the_epilogue_leaves_room_for_its_rounding() -> None:
    operator = catalogue().operator("conv2d_mish")
    problem = make_problem(operator, "small", {"N": 1, "C_in": 1, "kernel_size": 1, "padding": 0, "C_out": 1})
    tensors = {
        "x": torch.full((1, 1, 32, 32), -1.1924),
        "weight": torch.ones(1, 1, 1, 1),
        "bias": torch.zeros(1),
    }
    expected = expect(problem, tensors, {}, "fp32")
    relative = (expected.tolerance / expected.reference.abs()).max().item()
    assert 12 * 2**-24 < relative < 14 * 2**-24


def test_cancelling_steps_are_judged_by_what_they_cancel() -> None:
    chain = (EpilogueStep("add", (("value", 1000.0),)), EpilogueStep("sub", (("value", 1000.0),)))
    founding = catalogue().operator("conv2d_divide_leaky_relu")
    operator = replace(founding, epilogue=chain, scalars={})
    problem = replace(make_problem(founding, "small", {"N": 1}), operator=operator, scalars={})
    drawn = draw(problem, "normal")
    expected = expect(problem, drawn, {}, "fp32")
    assert judge(problem.reference(drawn), expected).ratio < 1
    assert judge(problem.reference(drawn) + 5e-4, expected).ratio > 1


def test_expectations_do_not_depend_on_the_chunk(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = draw(problem, "mixed")
    whole = expect(problem, drawn, problem.scalars, "fp32")
    output = problem.reference(drawn)
    judged = judge(output, whole)
    monkeypatch.setattr("coldforge.tuner.bound.CHUNK_ELEMENTS", 3000)
    parts = expect(problem, drawn, problem.scalars, "fp32")
    assert torch.allclose(parts.reference, whole.reference, rtol=1e-13)
    assert torch.allclose(parts.tolerance, whole.tolerance, rtol=1e-6)
    again = judge(output, parts)
    assert again.worst == judged.worst
    assert again.error == pytest.approx(judged.error)


def test_an_operator_that_hides_its_data_is_refused(device: TorchDevice) -> None:
    operator = catalogue().operator("conv2d_divide_leaky_relu")
    hidden = make_problem(operator, "small", {"N": 2, "H": 20, "W": 22}, scalars={"divisor": math.inf})
    with pytest.raises(InputError, match="its output hardly changes when the data do"):
        build_checks(device, hidden, "fp32")


def test_arguments_are_packed_as_the_contract_says() -> None:
    tensor = torch.zeros(4)
    packed = pack_arguments([tensor, None], [3, -1], [0.5])
    words = memoryview(packed).cast("Q")
    assert list(words[:2]) == [tensor.data_ptr(), 0]
    assert list(memoryview(packed).cast("q")[2:4]) == [3, -1]
    assert memoryview(packed).cast("d")[4] == 0.5
