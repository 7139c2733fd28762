# SPDX-License-Identifier: Apache-2.0
"""Clocks, temperature, power and energy of an NVIDIA GPU, read from the driver's management library."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_GPU_TEMPERATURE = 0
_TEXT_BYTES = 96
_OK = 0

READINGS = ("driver", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "throttled")
"""The keys of `readings`."""

# Bits of the reasons why clocks are lower than they could be. Idling and a chosen clock are not among them.
_THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


class Board:
    """One GPU. Kept open, as opening takes far longer than reading. Readings that a board lacks are None.

    Args:
        library: The management library, initialised; shut down with this object.
        handle: Of the device.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle
        weakref.finalize(self, library.nvmlShutdown)

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded. Counted by the board in steps of some milliseconds."""
        found = self._number("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong())
        return None if found is None else found / 1e3

    def power_w(self) -> float | None:
        """Watts: of this moment on some boards, over the last second on others."""
        found = self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint())
        return None if found is None else found / 1e3

    def readings(self) -> dict[str, Any]:
        """What it reads now, under the names of `READINGS`."""
        clock, plain = "nvmlDeviceGetClockInfo", ctypes.c_uint
        bits = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong())
        throttled = None if bits is None else [name for bit, name in _THROTTLES.items() if bits & bit]
        return {
            "driver": self._driver(),
            "sm_clock_mhz": self._number(clock, plain(), _SM_CLOCK),
            "memory_clock_mhz": self._number(clock, plain(), _MEMORY_CLOCK),
            "temperature_c": self._number("nvmlDeviceGetTemperature", plain(), _GPU_TEMPERATURE),
            "power_w": self.power_w(),
            "throttled": throttled,
        }

    def _driver(self) -> str | None:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        status = self._library.nvmlSystemGetDriverVersion(text, _TEXT_BYTES)
        return text.value.decode() if status == _OK else None

    def _number(self, name: str, value: Any, *arguments: int) -> int | None:
        with contextlib.suppress(AttributeError):  # an old library lacks some functions
            if getattr(self._library, name)(self._handle, *arguments, ctypes.byref(value)) == _OK:
                return value.value
        return None


def open_board(pci_bus_id: str) -> Board | None:
    """The GPU at `pci_bus_id` ("00000000:17:00.0"); None where the library, the driver or the GPU is not."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(_LIBRARY)
        if library.nvmlInit_v2() != _OK:
            return None
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(handle)) == _OK:
            return Board(library, handle)
        library.nvmlShutdown()
    return None


def readings(board: Board | None) -> dict[str, Any]:
    """`Board.readings`, each of them None without a board."""
    return dict.fromkeys(READINGS) if board is None else board.readings()
