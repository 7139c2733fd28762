# SPDX-License-Identifier: Apache-2.0
"""The floor: no correct kernel is faster, because the bytes must move and the multiplications be done.

A device's ceilings come from a table of measured models, or from a short probe that is run once and
stored. The floor is shown beside every time; a time that lies clearly under it is a timing error and is
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..codegen.atomic import write_text
from ..codegen.plain import INTEGER, NUMBER, TEXT, Each, fault, parse_json

if TYPE_CHECKING:
    from ..codegen.problem import Problem
    from .devices.base import Device

IMPOSSIBLE = 0.95
"""A cold time below this share of the least possible is refused."""


_STORED = {"read": NUMBER, "write": NUMBER, "flops": Each(NUMBER), "cache_bytes": INTEGER, "source": TEXT}


@dataclass(frozen=True)
class Ceilings:
    """What a device can do at best.

    Attributes:
        read, write: Bytes a second.
        flops: Operations a second by unit: fma (fp32), tf32 and fp16 (matrix units).
        cache_bytes: The last cache; 0 where it is not known.
        source: 'table' or 'probe'. A probe's arithmetic rates are what a library reaches, not what the unit
            can do, so they are shown but refuse nothing.
    """

    read: float
    write: float
    flops: Mapping[str, float] = field(default_factory=dict)
    cache_bytes: int = 0
    source: str = "table"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "read": self.read,
            "write": self.write,
            "flops": dict(self.flops),
            "cache_bytes": self.cache_bytes,
            "source": self.source,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ceilings:
        """The inverse of `to_dict`.

        Raises:
            ValueError: a field is missing, or cannot be.
        """
        wrong = fault(data, _STORED)
        if wrong or not min(data["read"], data["write"], *data["flops"].values(), 1) > 0:
            raise ValueError(wrong or "a rate is not positive")
        flops = {str(name): float(rate) for name, rate in data["flops"].items()}
        return cls(data["read"], data["write"], flops, data["cache_bytes"], data["source"])


@dataclass(frozen=True)
class Floor:
    """The least time of a problem on a device.

    Attributes:
        time_ms: The larger of the two below.
        memory_ms: Every input read and every output written once; 0 where all of it may stay in the cache.
        arithmetic_ms: On the fastest unit that can meet the error class; 0 where no rate is known.
        fma_ms: The same on the fp32 units alone.
        cache_resident: The working set is under twice the cache.
    """

    time_ms: float
    memory_ms: float
    arithmetic_ms: float
    fma_ms: float
    cache_resident: bool

    @property
    def limit(self) -> str:
        """Which bound applies."""
        return "memory" if self.memory_ms >= self.arithmetic_ms else "arithmetic"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**vars(self), "limit": self.limit}


# Measured: streaming writes, and reads by the fastest kernel seen (1,074 MB summed in 0.2387 ms, its launches
# included: 4.50e12; `torch.sum` reaches 4.34e12; the pins carry 4.8e12). Arithmetic: the vendor's dense peak
# rates, as nothing may pass for faster.
_TABLE = {
    "NVIDIA H200": Ceilings(
        4.55e12, 4.67e12, {"fma": 66.9e12, "tf32": 494.7e12, "fp16": 989.4e12}, 60 * 2**20, "table"
    ),
}

# What a multiply-add of the class costs at best on each unit. Three fp16 products make one of fp32 class.
_UNITS = {
    "fp32": {"fma": 1.0, "fp16": 3.0},
    "tf32": {"fma": 1.0, "tf32": 1.0, "fp16": 1.0},
    "fp16": {"fma": 1.0, "tf32": 1.0, "fp16": 1.0},
    "bf16": {"fma": 1.0, "tf32": 1.0, "fp16": 1.0},
}


def floor_of(problem: Problem, ceilings: Ceilings, precision: str, *, cold: bool) -> Floor:
    """The floor of a problem.

    Args:
        problem: Gives bytes and operations.
        ceilings: Of the device.
        precision: The error class.
        cold: Whether times are taken with the cache flushed: then even a small input is read from memory.
    """
    seconds = problem.bytes_read / ceilings.read + problem.bytes_written / ceilings.write
    resident = problem.bytes_read + problem.bytes_written < 2 * ceilings.cache_bytes
    memory = 1e3 * seconds if cold or not resident else 0.0
    arithmetic = 1e3 * problem.flops / rate if (rate := _best_rate(ceilings, precision)) else 0.0
    fma = 1e3 * problem.flops / ceilings.flops["fma"] if ceilings.flops.get("fma") else 0.0
    return Floor(max(memory, arithmetic), memory, arithmetic, fma, resident)


def _best_rate(ceilings: Ceilings, precision: str) -> float:
    units = _UNITS.get(precision, {"fma": 1.0})
    return max((ceilings.flops.get(unit, 0.0) / cost for unit, cost in units.items()), default=0.0)


def impossible(time_ms: float, problem: Problem, ceilings: Ceilings, precision: str, *, cold: bool) -> str:
    """Why a time cannot be true; empty when it can.

    What was written may still sit in the cache when a kernel ends, so only the writes beyond its size
    count. A warm time, or a working set that fits the cache, refuses nothing.
    """
    if not cold or problem.bytes_read + problem.bytes_written < 2 * ceilings.cache_bytes:
        return ""
    moved = problem.bytes_read + max(0, problem.bytes_written - ceilings.cache_bytes)
    least = 1e3 * moved / max(ceilings.read, ceilings.write)
    rate = _best_rate(ceilings, precision) if ceilings.source == "table" else 0.0
    if rate:
        least = max(least, 1e3 * problem.flops / rate)
    if time_ms >= IMPOSSIBLE * least:
        return ""
    return f"timing error: {time_ms:.4g} ms, but the device needs at the very least {least:.4g} ms"


def ceilings_of(device: Device, home: Path) -> Ceilings:
    """The device's ceilings: from the table, else from the stored probe, else probed now and stored."""
    if device.target.device in _TABLE:
        return _TABLE[device.target.device]
    try:
        return Ceilings.from_dict(parse_json(_record(device, home).read_bytes()))
    except (OSError, ValueError):
        pass  # never probed, or not readable: probe (again)
    return store(device, home, probe(device))


def store(device: Device, home: Path, ceilings: Ceilings) -> Ceilings:
    """Keeps a device's ceilings for later runs, and returns them."""
    write_text(_record(device, home), json.dumps(ceilings.to_dict(), indent=2) + "\n")
    return ceilings


def _record(device: Device, home: Path) -> Path:
    name = f"{device.kind} {device.target.device} {device.target.attributes.get('threads', 0)}"
    return home / "devices" / f"{re.sub('[^A-Za-z0-9]+', '-', name).strip('-')}.json"


def raised(ceilings: Ceilings, floor: Floor, time_ms: float) -> Ceilings:
    """Probed ceilings after a verified kernel took less time than their floor: it proves them too low.

    A probe on a busy machine measures what was left of it. The rates that set the floor are raised until it
    is the time that was seen.
    """
    memory = max(1.0, floor.memory_ms / time_ms)
    arithmetic = max(1.0, floor.arithmetic_ms / time_ms)
    return replace(
        ceilings,
        read=ceilings.read * memory,
        write=ceilings.write * memory,
        flops={unit: rate * arithmetic for unit, rate in ceilings.flops.items()},
    )


def probe(device: Device) -> Ceilings:
    """Measures the ceilings in a second or so with PyTorch's own kernels, by the fastest sample of each."""
    import torch

    on = device.torch_device
    attributes = device.target.attributes
    cache = attributes.get("l2_bytes", attributes.get("llc_bytes", 0))
    count = min(max(4 * cache, 64 << 20), 512 << 20) // 4
    source, target = torch.ones(count, device=on), torch.empty(count, device=on)

    def best_ms(call: Any) -> float:
        device.sample_ms([call], 1, cold=False)
        return min(device.sample_ms([call], 9, cold=False))

    # The faster of a pure and a mixed stream: a ceiling must not be under what some kernel can reach.
    copy = 2 * 4e3 * count / best_ms(lambda: target.copy_(source))
    read = max(copy, 4e3 * count / best_ms(lambda: torch.sum(source)))
    write = max(copy, 4e3 * count / best_ms(lambda: target.fill_(1.0)))
    side = 4096 if device.kind == "cuda" else 1024
    rates = {}
    for unit, dtype in (("fma", torch.float32), ("fp16", torch.float16)):
        if unit == "fp16" and device.kind != "cuda":
            continue  # a CPU's half precision is no faster way to fp32 results
        a, b = (torch.ones(side, side, dtype=dtype, device=on) for _ in range(2))
        out = torch.empty(side, side, dtype=dtype, device=on)
        rates[unit] = 2e3 * side**3 / best_ms(lambda a=a, b=b, out=out: torch.mm(a, b, out=out))
    return Ceilings(read, write, rates, cache, "probe")
