# SPDX-License-Identifier: Apache-2.0
"""How many warps of a kernel a CUDA multiprocessor holds at once, from what the compiler reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WARP = 32
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": resident blocks a
# multiprocessor. Registers are given to warps 256 at a time and to four warps at once; shared memory in
# pieces of 128 bytes, and the system takes 1 KiB of each block's (compute capability 8.0 and later).
_BLOCKS = {80: 32, 86: 16, 89: 24, 90: 32, 100: 32, 120: 24}
_REGISTER_UNIT, _WARP_UNIT, _SHARED_UNIT, _SHARED_SYSTEM = 256, 4, 128, 1024


@dataclass(frozen=True)
class Occupancy:
    """What fits.

    Attributes:
        share: resident warps over those that the multiprocessor could hold, 0 to 1.
        blocks: resident blocks.
        warps: resident warps.
        limit: what keeps another block out: ``registers``, ``shared memory``, ``threads`` or ``blocks``.
    """

    share: float
    blocks: int
    warps: int
    limit: str


def occupancy_of(
    resources: Mapping[str, int], launch: Mapping[str, Any], attributes: Mapping[str, Any]
) -> Occupancy | None:
    """The occupancy of one multiprocessor, enough blocks given.

    Args:
        resources: as the compiler reports them (``registers`` a thread, static ``shared_bytes`` a block).
        launch: ``block`` (threads) and ``shared_bytes`` (dynamic) of the launch.
        attributes: of the target.

    Returns:
        None where a figure is missing, or a block does not fit at all.
    """
    names = ("sm", "max_threads_per_sm", "registers_per_sm", "shared_bytes_per_sm")
    figures = [launch.get("block"), resources.get("registers"), *(attributes.get(name) for name in names)]
    if not all(isinstance(figure, int) and figure > 0 for figure in figures) or figures[2] not in _BLOCKS:
        return None
    threads, registers, sm, threads_per_sm, registers_per_sm, shared_per_sm = (int(f or 0) for f in figures)
    warps = _up(threads, _WARP) // _WARP
    by_registers = _down(registers_per_sm // _up(registers * _WARP, _REGISTER_UNIT), _WARP_UNIT) // warps
    dynamic = launch.get("shared_bytes")
    shared = resources.get("shared_bytes", 0) + (dynamic if isinstance(dynamic, int) else 0) + _SHARED_SYSTEM
    limits = {
        "registers": by_registers,
        "shared memory": shared_per_sm // _up(shared, _SHARED_UNIT),
        "threads": threads_per_sm // (warps * _WARP),
        "blocks": _BLOCKS[sm],
    }
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    if blocks < 1:
        return None
    return Occupancy(blocks * warps * _WARP / threads_per_sm, blocks, blocks * warps, limit)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _down(value: int, unit: int) -> int:
    return value // unit * unit
