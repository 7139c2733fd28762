# SPDX-License-Identifier: Apache-2.0
"""Clocks, temperature and power of an NVIDIA GPU, from the driver's management library. Reads only."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_GPU_TEMPERATURE = 0
_TEXT_BYTES = 96


def readings(pci_bus_id: str) -> dict[str, Any]:
    """What the GPU at `pci_bus_id` ("00000000:17:00.0") reads now.

    Returns:
        driver (version text), sm_clock_mhz, memory_clock_mhz, temperature_c, power_w; None for each that
        cannot be read.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("driver", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w")
    )
    # The library is absent without a driver, and some readings are on some boards only.
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2() != 0:
            return found
        try:
            _read(library, pci_bus_id, found)
        finally:
            library.nvmlShutdown()
    return found


def _read(library: Any, pci_bus_id: str, found: dict[str, Any]) -> None:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    if library.nvmlSystemGetDriverVersion(text, _TEXT_BYTES) == 0:
        found["driver"] = text.value.decode()
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(handle)) != 0:
        return
    value = ctypes.c_uint()
    if library.nvmlDeviceGetClockInfo(handle, _SM_CLOCK, ctypes.byref(value)) == 0:
        found["sm_clock_mhz"] = value.value
    if library.nvmlDeviceGetClockInfo(handle, _MEMORY_CLOCK, ctypes.byref(value)) == 0:
        found["memory_clock_mhz"] = value.value
    if library.nvmlDeviceGetTemperature(handle, _GPU_TEMPERATURE, ctypes.byref(value)) == 0:
        found["temperature_c"] = value.value
    if library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(value)) == 0:
        found["power_w"] = value.value / 1000
