# SPDX-License-Identifier: Apache-2.0
"""The device's ceilings as the study recorded them, for a roofline.

A study stores the floor of each time: the least time that the traffic needs at the device's bandwidth, and
the arithmetic at the rate of its units. With the problem's bytes and operations these give the ceilings.
"""

from __future__ import annotations

from dataclasses import dataclass

from .declared import Declared
from .material import Material

_NO_ARITHMETIC = "the operator's declaration counts no arithmetic"
_SPAN = 8.0
"""The roof is drawn over intensities from an eighth of the configs' to eight times it."""


@dataclass(frozen=True)
class Roofline:
    """A problem under a device's ceilings.

    Attributes:
        intensity: operations a byte that must move.
        flops: operations of one call.
        bandwidth: bytes a second of this mix of reads and writes; None where the tensors fit the cache.
        rates: what a rate is -> operations a second.
        reason: why there is no roofline; empty when there is one.
    """

    intensity: float = 0.0
    flops: int = 0
    bandwidth: float | None = None
    rates: tuple[tuple[str, float], ...] = ()
    reason: str = ""

    def roofs(self) -> list[dict[str, float | str]]:
        """Points of each ceiling: ``roof`` (its name), ``x`` (operations a byte), ``y`` (GFLOP/s)."""
        low, high = self.intensity / _SPAN, self.intensity * _SPAN
        peak = max((rate for _, rate in self.rates), default=None)
        points: list[dict[str, float | str]] = []
        starts = {}
        for name, rate in self.rates:
            starts[name] = max(low, rate / self.bandwidth) if self.bandwidth else low
            if starts[name] < high:
                points += [{"roof": name, "x": x, "y": rate / 1e9} for x in (starts[name], high)]
        if self.bandwidth:
            end = high if peak is None else min(high, max(low, peak / self.bandwidth))
            name = f"memory, {self.bandwidth / 1e9:.4g} GB/s"
            points += [{"roof": name, "x": x, "y": x * self.bandwidth / 1e9} for x in (low, end)]
        return points


def roofline_of(material: Material, declared: Declared) -> Roofline:
    """The roofline of a study, or the reason why it has none."""
    if not material.timed:
        return Roofline(reason="No config was timed.")
    if declared.problem is None:
        return Roofline(reason=f"Its operations and bytes are not known: {declared.reason}.")
    if declared.flops is None or not declared.bytes_moved:
        return Roofline(reason=f"{_NO_ARITHMETIC[0].upper()}{_NO_ARITHMETIC[1:]}.")
    floor = material.floor
    memory, arithmetic, fma = floor.memory_ms, floor.arithmetic_ms, floor.fma_ms
    if not (memory or arithmetic):
        return Roofline(reason="This study recorded no ceilings of its device.")
    flops, moved = declared.flops, declared.bytes_moved
    rates = []
    if arithmetic:
        rates.append(
            (_rate_name("arithmetic of its error class", flops, arithmetic), 1e3 * flops / arithmetic)
        )
    if fma and abs(fma - arithmetic) > 1e-6 * fma:
        rates.append((_rate_name("fp32 units alone", flops, fma), 1e3 * flops / fma))
    return Roofline(flops / moved, flops, 1e3 * moved / memory if memory else None, tuple(rates))


def no_share(material: Material, declared: Declared) -> str:
    """Why it is not known how near the winner comes to its device's speed; for where it is not."""
    reasons = []
    if material.floor.cache_resident:
        reasons.append("the tensors fit the device's cache, so its memory sets no least time")
        if declared.problem is not None and declared.flops is None:
            reasons.append(_NO_ARITHMETIC)
    return "; ".join(reasons) or "its speed was not recorded"


def _rate_name(name: str, flops: int, ms: float) -> str:
    return f"{name}, {flops / ms / 1e6:.4g} GFLOP/s"
