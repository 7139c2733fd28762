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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..codegen.atomic import write_text
from ..codegen.plain import INTEGER, NUMBER, TEXT, Each, Maybe, fault, parse_json

if TYPE_CHECKING:
    from ..codegen.problem import Problem
    from .devices.base import Call, Device

IMPOSSIBLE = 0.95
"""A cold time below this share of the least possible is refused."""


_STORED = {
    **dict.fromkeys(("read", "write"), NUMBER),
    "copy": Maybe(NUMBER),
    "flops": Each(NUMBER),
    "cache_bytes": INTEGER,
    "source": TEXT,
}
PROBE_BYTES = 64 << 20, 1 << 30
"""Limits on the buffers that a probe streams; between them, PROBE_CACHES times the last cache."""
PROBE_CACHES = {"cuda": 16, "cpu": 4}
SIDES = {"cuda": 4096, "cpu": 1024}
"""Of the matrices that a probe multiplies."""


@dataclass(frozen=True)
class Ceilings:
    """What a device can do at best.

    Attributes:
        read, write: Bytes a second, when nothing else is done.
        copy: Bytes a second read and written, half of each; 0 where it is not known.
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
    copy: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "read": self.read,
            "write": self.write,
            "copy": self.copy,
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
        rates = data["read"], data["write"], flops
        return cls(*rates, data["cache_bytes"], data["source"], data.get("copy") or 0.0)


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


# Measured: copies, streaming writes, and reads by the fastest kernel seen (1,074 MB summed in 0.2387 ms, its
# launches included: 4.50e12; `torch.sum` reaches 4.34e12; the pins carry 4.8e12). Arithmetic: the vendor's
# dense peak rates, as nothing may pass for faster.
_TABLE = {
    "NVIDIA H200": Ceilings(
        *(4.55e12, 4.67e12, {"fma": 66.9e12, "tf32": 494.7e12, "fp16": 989.4e12}),
        *(60 * 2**20, "table", 4.27e12),
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
    """The device's ceilings: from the table, else what a probe measured."""
    return _TABLE.get(device.target.device) or probed(device, home)


def probed(device: Device, home: Path) -> Ceilings:
    """What PyTorch's own kernels reach on the device: the stored probe, else it is probed now and stored. Of
    a device that the table knows this is for the record alone."""
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
    device.settle()
    attributes = device.target.attributes
    cache = attributes.get("l2_bytes", attributes.get("llc_bytes", 0))
    least, most = PROBE_BYTES
    count = min(max(PROBE_CACHES[device.kind] * cache, least), most) // 4
    read, write, copy = _streams(device, count)
    # The faster of a pure and a mixed stream: a ceiling must not be under what some kernel can reach.
    return Ceilings(max(read, copy), max(write, copy), _rates(device), cache, "probe", copy)


def _best_ms(device: Device, call: Call, *, cold: bool) -> float:
    device.sample_ms([call], 1, cold=cold)
    return min(device.sample_ms([call], 9, cold=cold))


def _streams(device: Device, count: int) -> tuple[float, float, float]:
    """Bytes a second of reading, of writing and of copying so many floats; the cache is flushed before, where
    times are taken so: what it holds would be read for nothing."""
    import torch

    on, cold = device.torch_device, device.cold_headline
    source, target = torch.ones(count, device=on), torch.empty(count, device=on)
    result = torch.zeros((), device=on)
    read = 4e3 * count / _best_ms(device, lambda: torch.sum(source, dim=0, out=result), cold=cold)
    write = 4e3 * count / _best_ms(device, lambda: target.fill_(1.0), cold=cold)
    return read, write, 8e3 * count / _best_ms(device, lambda: target.copy_(source), cold=cold)


def _rates(device: Device) -> dict[str, float]:
    """Operations a second of matrix products, by unit: fma, and on a GPU the matrix units."""
    import torch

    on, side = device.torch_device, SIDES[device.kind]
    units = {"tf32" if mode.suffix else "fma": (torch.float32, mode) for mode in device.math_modes("fp32")}
    if device.kind == "cuda":  # a CPU's half precision is no faster way to fp32 results
        units["fp16"] = (torch.float16, device.math_modes("fp16")[0])
    rates = {}
    for unit, (dtype, mode) in units.items():
        a, b = (torch.ones(side, side, dtype=dtype, device=on) for _ in range(2))
        out = torch.empty(side, side, dtype=dtype, device=on)
        with mode.enter():
            best_ms = _best_ms(device, partial(torch.mm, a, b, out=out), cold=False)
        rates[unit] = 2e3 * side**3 / best_ms
    return rates
