# SPDX-License-Identifier: Apache-2.0
"""How near a time comes to what its device can do, in the same words wherever a person reads it.

A result's ``floor_ms`` is the least time in which the device could move the tensors once, or do the
arithmetic, whichever takes longer: a kernel of twice that time runs at 50% of the device's memory speed, or
of its arithmetic speed. Where a kernel beats what a probe of the device found, its speed is the highest one
seen, and no more is known: then the words say that, and not 100%.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HIGHEST = 0.999
"""From this share on a kernel has set the mark itself: the tuner raises a probe's rates to its time."""


def fraction_of_floor(entry: Mapping[str, Any] | None) -> float | None:
    """floor / time, at most about 1; None where either is unknown."""
    if not entry or not entry.get("time_ms") or not entry.get("floor_ms"):
        return None
    return float(entry["floor_ms"]) / float(entry["time_ms"])


def is_highest(entry: Mapping[str, Any] | None) -> bool:
    """Whether no higher speed of its device is known than this entry's."""
    share = fraction_of_floor(entry)
    return share is not None and share >= _HIGHEST


def speed_name(limit: str | None) -> str:
    """``memory speed``, ``arithmetic speed``, or ``speed`` where the limit is not known."""
    return f"{limit} speed" if limit in ("memory", "arithmetic") else "speed"


def speed_text(entry: Mapping[str, Any] | None) -> str:
    """``50% of the device's memory speed``; empty where it is not known.

    Args:
        entry: with ``time_ms``, ``floor_ms`` and, where it is known, ``limit``.
    """
    share = fraction_of_floor(entry)
    if entry is None or share is None:
        return ""
    name = speed_name(entry.get("limit"))
    if is_highest(entry):
        return f"the highest {name} seen on the device"
    return f"{percent(share)} of the device's {name}"


def percent(share: float) -> str:
    """``50%``; never 0%, which no time is."""
    return "under 1%" if share < 0.01 else f"{100 * share:.0f}%"
