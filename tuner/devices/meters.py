# SPDX-License-Identifier: Apache-2.0
"""What the energy of a device is read from: a counter of joules where there is one, else the power of now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .nvml import Board

POWERCAP = Path("/sys/class/powercap")
"""Where Linux shows the energy counters of x86 CPUs (RAPL)."""


@dataclass(frozen=True)
class Meter:
    """A way to read energy.

    Attributes:
        source: What is read, for records.
        read: Joules since some moment, or watts now. One thread at a time may call it.
        counts: Whether it reads joules.
        ahead_s: How long the device must have been at work before a reading is of that work alone.
    """

    source: str
    read: Callable[[], float]
    counts: bool = True
    ahead_s: float = 0.1


def board_meter(board: Board | None) -> Meter | None:
    """The GPU's energy counter (of the whole board: memory, fans, what idling takes), else its power, which
    some boards tell as a mean over a second; None where it tells neither."""
    if board is None:
        return None
    if board.energy_j() is not None:
        return Meter("nvml energy counter", lambda: board.energy_j() or 0.0)
    if board.power_w() is not None:
        return Meter("nvml power", lambda: board.power_w() or 0.0, counts=False, ahead_s=1.2)
    return None


def cpu_meter(folder: Path = POWERCAP) -> Meter | None:
    """The energy counters of all CPU packages, with whatever else runs on them; None where they cannot be
    read (many systems show them to root alone, virtual machines to nobody)."""
    zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1]
    try:
        packages = [z for z in zones if (z / "name").read_text().startswith("package")]
        counters = [_Counter.open(zone) for zone in packages]
    except (OSError, ValueError):
        return None
    return Meter("rapl", lambda: _joules(counters)) if counters else None


class _Counter:
    """One package's counter, which begins anew at its range."""

    def __init__(self, path: Path, range_uj: int) -> None:
        self._path, self._range_uj = path, range_uj
        self._last_uj, self._rounds = self._read(), 0

    @classmethod
    def open(cls, zone: Path) -> _Counter:
        return cls(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()))

    def _read(self) -> int:
        return int(self._path.read_text())

    def joules(self) -> float:
        now = self._read()
        self._rounds += now < self._last_uj
        self._last_uj = now
        return (now + self._rounds * self._range_uj) / 1e6


def _joules(counters: Sequence[_Counter]) -> float:
    return sum(counter.joules() for counter in counters)
