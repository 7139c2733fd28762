# SPDX-License-Identifier: Apache-2.0
"""The CUDA device's judgement of driver answers and launches, with a driver made up for the test."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
from coldforge.codegen.space import Launch
from coldforge.codegen.target import cuda_target
from coldforge.tuner.devices.base import DeviceFault, LaunchRefused
from coldforge.tuner.devices.cuda import CudaDevice, CudaKernel
from coldforge.tuner.devices.nvml import readings


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


def _device(**driver: Any) -> CudaDevice:
    device = object.__new__(CudaDevice)
    device.target = cuda_target("sm_90")
    attributes = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK="threads",
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared",
    )
    device._driver = SimpleNamespace(CUfunction_attribute=attributes, **driver)
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
    device._allow(KERNEL, Launch(grid=1, block=128, shared_bytes=48 * 1024))
    assert asked == []
    device._allow(KERNEL, Launch(grid=1, block=128, shared_bytes=100_000))
    assert asked == [("function", "shared", 100_000)]


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
    with pytest.raises(LaunchRefused, match=numbers):
        device._allow(KERNEL, launch)


def test_readings_are_none_without_a_gpu() -> None:
    found = readings("ffffffff:ff:1f.0")
    assert set(found) == {"driver", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w"}
    assert found["sm_clock_mhz"] is None
