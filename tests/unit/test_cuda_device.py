# SPDX-License-Identifier: Apache-2.0
"""The CUDA device's judgement of driver answers and launches, with a driver made up for the test."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from coldforge.codegen.space import Launch
from coldforge.codegen.target import cuda_target
from coldforge.tuner.devices import cuda
from coldforge.tuner.devices.base import DeviceFault, LaunchRefused
from coldforge.tuner.devices.cuda import CudaDevice, CudaKernel
from coldforge.tuner.devices.side_streams import StreamGuard


class Status(IntEnum):
    """Driver results, by their real names."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701
    CUDA_ERROR_LAUNCH_TIMEOUT = 702
    CUDA_ERROR_MISALIGNED_ADDRESS = 716
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715


KERNEL = CudaKernel(module="module", function="function", name="variant")
TWO = replace(KERNEL, finish="second")


def nothing() -> None: ...


def _device(**driver: Any) -> CudaDevice:
    device = object.__new__(CudaDevice)
    device.target = cuda_target("sm_90")
    attributes = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK="threads",
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared",
    )
    device._driver = SimpleNamespace(CUfunction_attribute=attributes, **driver)
    device._guard = StreamGuard(device.synchronize, lambda call: 1.0)
    return device


@pytest.mark.parametrize(
    "status",
    [
        Status.CUDA_ERROR_INVALID_VALUE,
        Status.CUDA_ERROR_NO_BINARY_FOR_GPU,
        Status.CUDA_ERROR_NOT_FOUND,
        Status.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
    ],
)
def test_a_no_to_one_kernel_is_a_refusal(status: Status) -> None:
    with pytest.raises(LaunchRefused, match=f"variant: {status.name}"):
        _device()._asked("variant", (status,))


@pytest.mark.parametrize(
    "status",
    [
        Status.CUDA_ERROR_ILLEGAL_ADDRESS,
        Status.CUDA_ERROR_LAUNCH_TIMEOUT,
        Status.CUDA_ERROR_MISALIGNED_ADDRESS,
        Status.CUDA_ERROR_ILLEGAL_INSTRUCTION,
    ],
)
def test_what_breaks_the_context_is_a_fault(status: Status) -> None:
    device = _device(cuCtxSynchronize=lambda: (status,))
    with pytest.raises(DeviceFault, match=status.name):
        device.synchronize()


def test_answers_carry_their_value() -> None:
    device = _device()
    assert device._asked("variant", (Status.CUDA_SUCCESS, 7)) == 7
    assert device._asked("variant", (Status.CUDA_SUCCESS,)) is None


def test_large_shared_memory_is_asked_for_once_it_is_needed() -> None:
    asked: list[tuple[Any, ...]] = []

    def set_attribute(*arguments: Any) -> tuple[Status]:
        asked.append(arguments)
        return (Status.CUDA_SUCCESS,)

    device = _device(
        cuFuncGetAttribute=lambda *_: (Status.CUDA_SUCCESS, 1024), cuFuncSetAttribute=set_attribute
    )
    kernel = replace(TWO, granted={})
    device._allowed(kernel, Launch(grid=1, block=128, shared_bytes=48 * 1024))
    assert asked == []
    device._allowed(kernel, Launch(grid=1, block=128, shared_bytes=100_000))
    assert asked == [("function", "shared", 100_000)]
    second = {"finish_grid": 3, "finish_block": 64, "finish_shared_bytes": 60_000}
    device._allowed(kernel, Launch(grid=1, block=128, **second))
    assert asked[1:] == [("second", "shared", 60_000)]
    # Calls that were bound before need what they asked for: more may be asked, less never.
    device._allowed(kernel, Launch(grid=1, block=128, shared_bytes=60_000))
    assert len(asked) == 2
    device._allowed(kernel, Launch(grid=1, block=128, shared_bytes=110_000))
    assert asked[2:] == [("function", "shared", 110_000)]


@pytest.mark.parametrize(
    ("launch", "numbers"),
    [
        (Launch(grid=0, block=128), "a grid of 0 blocks; 1 to 2147483647"),
        (Launch(grid=2**31, block=128), "a grid of 2147483648 blocks; 1 to 2147483647"),
        (Launch(grid=1, block=288), "288 threads a block; it allows 1 to 256"),
        (Launch(grid=1, block=128, shared_bytes=300_000), "300000 bytes of shared memory.* allows 232448"),
    ],
)
def test_launches_beyond_a_limit_are_refused_with_numbers(launch: Launch, numbers: str) -> None:
    device = _device(cuFuncGetAttribute=lambda *_: (Status.CUDA_SUCCESS, 256))
    with pytest.raises(LaunchRefused, match=f"^variant: {numbers}"):
        device._allowed(TWO, launch)
    second = Launch(
        grid=1,
        block=128,
        finish_grid=launch.grid or -1,
        finish_block=launch.block,
        finish_shared_bytes=launch.shared_bytes,
    )
    numbers = numbers.replace("a grid of 0", "a grid of -1")
    with pytest.raises(LaunchRefused, match=f"^coldforge_finish of variant: {numbers}"):
        device._allowed(TWO, second)


def test_a_launch_is_checked_once_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    device, _ = _recording_device(monkeypatch)
    asked: list[Any] = []

    def attribute(*arguments: Any) -> tuple[Status, int]:
        asked.append(arguments)
        return (Status.CUDA_SUCCESS, 256)

    device._driver.cuFuncGetAttribute = attribute
    kernel, launch = replace(KERNEL, stages={}), Launch(grid=1, block=128)
    for _ in range(3):
        device.bind(kernel, launch, [], [], [])
    device.bind(kernel, replace(launch, grid=2), [], [], [])
    assert len(asked) == 2
    for _ in range(2):  # a refusal is no answer to keep
        with pytest.raises(LaunchRefused, match="288 threads"):
            device.bind(kernel, replace(launch, block=288), [], [], [])
    assert len(asked) == 4


def test_a_refused_launch_says_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Status.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    device, _ = _recording_device(monkeypatch, function=refused)
    call = device.bind(replace(KERNEL, stages={}), Launch(grid=5, block=128, shared_bytes=16), [], [], [])
    words = (
        "^variant, 5 blocks of 128 threads and 16 bytes of shared memory: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES$"
    )
    with pytest.raises(LaunchRefused, match=words):
        call()


def test_a_second_kernel_is_needed_only_where_it_is_asked_for() -> None:
    device = _device(cuFuncGetAttribute=lambda *_: (Status.CUDA_SUCCESS, 1024))
    none = Launch(grid=1, block=128, finish_grid=0, finish_block=64)
    assert [stage.function for stage in device._allowed(KERNEL, none)] == ["function"]
    asked = replace(none, finish_grid=1)
    assert [stage.function for stage in device._allowed(TWO, asked)] == ["function", "second"]
    with pytest.raises(LaunchRefused, match="variant has no kernel coldforge_finish, and its launch asks"):
        device._allowed(KERNEL, asked)


def _recording_device(monkeypatch: pytest.MonkeyPatch, **answers: Status) -> tuple[CudaDevice, list[Any]]:
    """A device whose driver notes what is enqueued."""
    seen: list[Any] = []

    def memset(*arguments: Any) -> tuple[Status]:
        seen.append(("memset", *arguments))
        return (answers.get("memset", Status.CUDA_SUCCESS),)

    def launch(function: str, *rest: Any) -> tuple[Status]:
        *shape, stream, _parameters, _extra = rest
        seen.append((function, shape, stream))
        return (answers.get(function, Status.CUDA_SUCCESS),)

    device = _device(
        cuFuncGetAttribute=lambda *_: (Status.CUDA_SUCCESS, 1024),
        cuMemsetD8Async=memset,
        cuLaunchKernel=launch,
    )
    device.torch_device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=77))
    return device, seen


def _workspace(size: int) -> torch.Tensor:
    whole = torch.zeros(size + 256, dtype=torch.uint8)
    return whole[-whole.data_ptr() % 256 :][:size]


def test_a_call_zeroes_then_launches_then_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    device, seen = _recording_device(monkeypatch)
    workspace = _workspace(64)
    first = Launch(grid=5, block=128, shared_bytes=16, workspace_bytes=64)
    main = ("function", [5, 1, 1, 128, 1, 1, 16], 77)
    memset = ("memset", workspace.data_ptr(), 0, 12, 77)
    finish = ("second", [3, 1, 1, 32, 1, 1, 8], 77)
    second = {"finish_grid": 3, "finish_block": 32, "finish_shared_bytes": 8}
    for launch, wanted in (
        (first, [main]),
        (replace(first, zeroed_bytes=12), [memset, main]),
        (replace(first, **second), [main, finish]),
        (replace(first, zeroed_bytes=12, **second), [memset, main, finish]),
    ):
        call = device.bind(TWO, launch, [None, workspace], [1], [2.0])
        assert seen == []  # nothing before it is called
        for _ in range(2):
            call()
            assert seen == wanted
            seen.clear()


def test_what_is_not_enqueued_stops_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch(grid=1, block=1, workspace_bytes=64, zeroed_bytes=4, finish_grid=1, finish_block=1)
    for part, count in (("memset", 1), ("function", 2), ("second", 3)):
        device, seen = _recording_device(monkeypatch, **{part: Status.CUDA_ERROR_INVALID_VALUE})
        call = device.bind(TWO, launch, [_workspace(64)], [], [])
        with pytest.raises(LaunchRefused, match="CUDA_ERROR_INVALID_VALUE"):
            call()
        assert len(seen) == count


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "the last tensor is no workspace of 64 bytes"),
        ([None], "the last tensor is no workspace of 64 bytes"),
        ([_workspace(63)], "the last tensor is no workspace of 64 bytes"),
        ([_workspace(80)[16:]], "the workspace is not aligned to 256 bytes"),
    ],
)
def test_a_tensor_that_is_no_workspace(
    tensors: list[Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, _ = _recording_device(monkeypatch)
    with pytest.raises(ValueError, match=message):
        device.bind(KERNEL, Launch(grid=1, block=1, workspace_bytes=64), tensors, [], [])


def test_a_binary_may_have_no_second_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def function(_module: Any, symbol: bytes) -> tuple[Any, ...]:
        asked.append(symbol)
        found = symbol in symbols
        return (Status.CUDA_SUCCESS, symbol) if found else (Status.CUDA_ERROR_NOT_FOUND, None)

    unloaded: list[Any] = []
    device = _device(
        cuModuleLoadData=lambda _: (Status.CUDA_SUCCESS, "module"),
        cuModuleGetFunction=function,
        cuModuleUnload=unloaded.append,
    )
    file: Any = SimpleNamespace(name="variant", path=SimpleNamespace(read_bytes=lambda: b"cubin"))
    monkeypatch.setattr(cuda, "kernels", lambda _: tuple(symbol.decode() for symbol in symbols))
    symbols = {b"coldforge_kernel", b"coldforge_finish"}
    assert device.load(file).finish == b"coldforge_finish"
    symbols, asked = {b"coldforge_kernel"}, []
    assert device.load(file).finish is None
    assert asked == [b"coldforge_kernel"]  # what is not there is not asked for
    symbols = {b"coldforge_finish"}
    with pytest.raises(LaunchRefused, match="CUDA_ERROR_NOT_FOUND"):
        device.load(file)
    assert unloaded == ["module"]


def test_samples_are_taken_again_when_the_host_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _device(cuCtxSynchronize=lambda: (Status.CUDA_SUCCESS,))
    device._hold_s_per_call = 0.0
    holds: list[float] = []
    device._guard.trust(nothing)

    def enqueue(calls: Any, count: int, hold_s: float, *, cold: bool) -> tuple[list[Any], bool]:
        holds.append(hold_s)
        event = SimpleNamespace(elapsed_time=lambda _: 1000 * hold_s)
        return [(event, event)] * count, hold_s >= 150e-6 + 2 * 400e-6

    monkeypatch.setattr(device, "_enqueue", enqueue)
    assert device.sample_ms([nothing], 2, cold=False) == pytest.approx([0.95, 0.95])
    assert holds == pytest.approx([150e-6, 350e-6, 550e-6, 950e-6])
    del holds[:]
    device.sample_ms([nothing], 2, cold=False)  # what it learned stays, and is forgotten slowly
    assert holds == pytest.approx([150e-6 + 2 * 360e-6, 150e-6 + 2 * 720e-6])


def test_a_call_that_waits_for_the_device_ends_the_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _device(cuCtxSynchronize=lambda: (Status.CUDA_SUCCESS,))
    device._hold_s_per_call = 100e-6
    holds: list[float] = []
    device._guard.trust(nothing)

    def enqueue(calls: Any, count: int, hold_s: float, *, cold: bool) -> tuple[list[Any], bool]:
        holds.append(hold_s)
        return [], False

    monkeypatch.setattr(device, "_enqueue", enqueue)
    assert device.sample_ms([nothing], 1, cold=False) == []
    assert holds == pytest.approx([250e-6, 350e-6, 550e-6, 950e-6, 1.15e-3])


class Event:
    """An event of a device that begins a sample as soon as it is enqueued, or never before the last is."""

    begun = False

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...

    def query(self) -> bool:
        return self.begun


@pytest.mark.parametrize("begun", [False, True])
def test_a_sample_that_began_too_early_is_seen(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = _device()
    device._events = []
    monkeypatch.setattr(Event, "begun", begun)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: None)
    calls: list[int] = []
    events, ahead = device._enqueue([lambda: calls.append(0), lambda: calls.append(1)], 3, 0.0, cold=False)
    assert calls == [0, 1, 0]
    assert len(events) == 3
    assert ahead is not begun
    again, _ = device._enqueue([lambda: None], 2, 0.0, cold=False)
    assert again == events[:2]  # events are kept
