# SPDX-License-Identifier: Apache-2.0
"""The figures that stand beside a headline time: a warm cache, one launch of a captured graph, energy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .energy import details, energy_in_rounds
from .measure import warm_ms

if TYPE_CHECKING:
    from .devices.base import Call, Device


def figures_beside(
    device: Device, contestants: Sequence[Sequence[Call]], energy_rounds: int = 0
) -> list[dict[str, Any]]:
    """Of each contestant, where the device has them, as plain JSON:

    * ``warm_ms``: with a warm cache, where the headline is with a cold one;
    * ``graph_ms``: one launch of the call captured as a graph, warm; None with ``graph_reason`` where it
      cannot be captured;
    * ``side_streams``: true where it left work on other streams, so that its times are of all streams and
      hold what the host takes to launch;
    * what `energy.details` says, when rounds are asked for.

    Args:
        device: Where they run.
        contestants: For each the calls that are taken in rotation.
        energy_rounds: Energy readings of each, taken in turns.
    """
    found: list[dict[str, Any]] = []
    for calls in contestants:
        warm = warm_ms(device, calls)
        found.append({} if warm is None else {"warm_ms": warm})
        if any(device.works_aside(call) for call in calls):
            found[-1]["side_streams"] = True
    # After all the other times: a capture that fails may leave the libraries in another state.
    for figures, calls in zip(found, contestants, strict=True):
        if graph := device.graph_time(calls):
            figures["graph_ms"] = graph.time_ms
            figures |= {"graph_reason": graph.reason} if graph.reason else {}
    readings = energy_in_rounds(device, contestants, energy_rounds)
    return [{**figures, **details(of)} for figures, of in zip(found, readings, strict=True)]
