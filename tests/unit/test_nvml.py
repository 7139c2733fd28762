# SPDX-License-Identifier: Apache-2.0
"""What is read of a GPU, from a management library made up for the test; and the meters of energy."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from coldforge.tuner.devices import nvml
from coldforge.tuner.devices.meters import board_meter, cpu_meter
from coldforge.tuner.devices.nvml import READINGS, open_board, readings

NOT_SUPPORTED = 3


class Library:
    """Answers as the management library does: a status, and values through pointers."""

    def __init__(self, **values: int | None) -> None:
        plain = {"nvmlDeviceGetTotalEnergyConsumption": 5_000_250, "nvmlDeviceGetPowerUsage": 431_500}
        self.values: dict[str, int | None] = {
            **plain,
            "nvmlDeviceGetTemperature": 45,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x01 | 0x04 | 0x40,
            **values,
        }
        self.opened = self.closed = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in self.values:
            raise AttributeError(name)

        def answer(handle: ctypes.c_void_p, *rest: Any) -> int:
            assert handle.value == 77
            if self.values[name] is None:
                return NOT_SUPPORTED
            rest[-1]._obj.value = self.values[name]
            return 0

        return answer

    def nvmlInit_v2(self) -> int:
        self.opened += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.closed += 1
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, place: bytes, handle: Any) -> int:
        if place != b"00000000:17:00.0":
            return NOT_SUPPORTED
        handle._obj.value = 77
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:
        text.value = b"580.159.04"[:size]
        return 0

    def nvmlDeviceGetClockInfo(self, handle: Any, domain: int, value: Any) -> int:
        value._obj.value = {1: 1980, 2: 3201}[domain]
        return 0


Open = Callable[..., tuple[Library, Any]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Open:
    def make(**values: int | None) -> tuple[Library, Any]:
        library = Library(**values)
        monkeypatch.setattr(nvml.ctypes, "CDLL", lambda _: library)
        return library, open_board("00000000:17:00.0")

    return make


def test_what_a_board_reads(opened: Open) -> None:
    library, board = opened()
    assert readings(board) == {
        "driver": "580.159.04",
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "temperature_c": 45,
        "power_w": 431.5,
        "throttled": ["power cap", "hardware thermal"],
    }
    assert tuple(readings(board)) == READINGS
    assert board.energy_j() == 5000.25
    assert (library.opened, library.closed) == (1, 0)
    del board
    gc.collect()
    assert library.closed == 1


def test_what_a_board_lacks_is_none(opened: Open) -> None:
    _, board = opened(nvmlDeviceGetTemperature=None, nvmlDeviceGetPowerUsage=None)
    assert board.readings()["temperature_c"] is None
    assert board.power_w() is None
    library, board = opened()
    for name in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        del library.values[name]  # an old library
    assert board.energy_j() is None
    assert board.readings()["throttled"] is None
    assert board.readings()["sm_clock_mhz"] == 1980


def test_there_may_be_no_board(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    library = opened()[0]
    assert open_board("ffffffff:ff:1f.0") is None
    gc.collect()
    assert library.closed == library.opened == 2

    def missing(_: str) -> Any:
        raise OSError("no such library")

    monkeypatch.setattr(nvml.ctypes, "CDLL", missing)
    assert open_board("00000000:17:00.0") is None
    assert readings(None) == dict.fromkeys(READINGS)


def test_a_board_is_metered_by_its_counter_else_by_its_power(opened: Open) -> None:
    library, board = opened()
    meter = board_meter(board)
    assert meter is not None
    assert (meter.source, meter.counts, meter.read()) == ("nvml energy counter", True, 5000.25)
    library.values["nvmlDeviceGetTotalEnergyConsumption"] = None
    meter = board_meter(board)
    assert meter is not None
    assert (meter.source, meter.counts, meter.read()) == ("nvml power", False, 431.5)
    assert meter.ahead_s > 1.0, "it may be a mean over the last second"
    library.values["nvmlDeviceGetPowerUsage"] = None
    assert board_meter(board) is None
    assert board_meter(None) is None


def _zone(folder: Path, name: str, kind: str, energy_uj: int) -> Path:
    zone = folder / name
    zone.mkdir(parents=True)
    (zone / "name").write_text(kind + "\n")
    (zone / "max_energy_range_uj").write_text("1000000\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    return zone


def test_packages_are_added_and_counters_begin_anew(tmp_path: Path) -> None:
    first = _zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    _zone(tmp_path, "intel-rapl:1", "package-1", 100_000)
    _zone(tmp_path, "intel-rapl:2", "psys", 5)
    _zone(tmp_path, "intel-rapl:0:0", "core", 7)  # a part of the first
    meter = cpu_meter(tmp_path)
    assert meter is not None
    assert meter.source == "rapl"
    assert meter.read() == pytest.approx(1.0)
    (first / "energy_uj").write_text("50000")
    assert meter.read() == pytest.approx(1.15)
    (first / "energy_uj").write_text("60000")
    assert meter.read() == pytest.approx(1.16)


def test_a_cpu_may_tell_nothing(tmp_path: Path) -> None:
    assert cpu_meter(tmp_path / "none") is None
    zone = _zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (zone / "energy_uj").unlink()  # as for one who may not read it
    assert cpu_meter(tmp_path) is None
