# SPDX-License-Identifier: Apache-2.0
"""The tables that the charts read, as compact JSON: the page unfolds them.

``trials`` has a row for each trial, its config as one list of texts; the page makes ``config`` and the fields
``p0``, ``p1``, ... of it, and ``positions`` for the parallel coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..outcome import TrialResult
from .material import Axis, Material
from .roofline import Roofline
from .verdict import Finalist
from .words import changes_text, config_text

TRIALS, POSITIONS, FINALS, ROOFS = "trials", "positions", "finals", "roofs"
COLUMNS = (
    *("number", "t", "outcome", "ms", "best", "share", "reason", "role", "rank"),
    *("registers", "spills", "occupancy", "values"),
)
_RANK = {"other": 0, "finalist": 1, "default": 2, "winner": 3}
_REASON = 180


def tables(material: Material, found: Sequence[Finalist], roofs: Roofline) -> dict[str, Any]:
    """All of them, plain JSON.

    Returns:
        ``columns`` and ``rows`` of the trials; ``templates``: for each its name, the numbers of its
        parameters in ``parameters`` and the axes of its parallel coordinates; ``finals``; ``roofs``.
    """
    number_of = {name: number for number, name in enumerate(material.parameters)}
    templates = []
    for name in material.templates:
        axes = material.axes(name)
        varying = [axis for axis in axes if axis.varies]
        templates.append(
            {
                "name": name,
                "parameters": [number_of[axis.name] for axis in axes],
                "axes": [
                    {"name": axis.name, "parameter": number_of[axis.name], "values": axis.texts}
                    for axis in varying
                ],
                "time": time_field(varying),
            }
        )
    return {
        "columns": list(COLUMNS),
        "rows": _rows(material),
        "parameters": material.parameters,
        "templates": templates,
        FINALS: [_final(number, finalist, found[0]) for number, finalist in enumerate(found)],
        ROOFS: roofs.roofs() if not roofs.reason else [],
    }


def time_field(axes: Sequence[Axis]) -> str:
    """The name of the last of the parallel axes: none of the parameters' names."""
    name = "time"
    while name in {axis.name for axis in axes}:
        name += " "
    return name


def _rows(material: Material) -> list[list[Any]]:
    rows, best = [], None
    names = {name: [axis.name for axis in material.axes(name)] for name in material.templates}
    for number, result in enumerate(material.results, start=1):
        time = result.time_ms if result.ok else None
        if time is not None:
            best = time if best is None else min(best, time)
        role = material.role(result)
        rows.append(
            [
                number,
                material.templates.index(result.template),
                result.outcome.value,
                _rounded(time),
                _rounded(best),
                _rounded(_share(result)),
                " ".join(result.reason.split())[:_REASON] or None,
                role,
                _RANK[role],
                *_resources(material, result),
                [str(result.config.get(name, "")) for name in names[result.template]],
            ]
        )
    return rows


def _resources(material: Material, result: TrialResult) -> list[Any]:
    if not material.on_gpu or not result.resources.get("registers"):
        return [None, None, None]
    resources = result.resources
    filled = material.occupancy(result)
    spills = resources.get("spill_store_bytes", 0) + resources.get("spill_load_bytes", 0)
    return [resources["registers"], spills, _rounded(filled.share) if filled else None]


def _share(result: TrialResult) -> float | None:
    floor = result.details.get("floor_ms")
    if not result.ok or not result.time_ms or not isinstance(floor, int | float) or not floor:
        return None
    return float(floor) / result.time_ms


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _mj(joules: float | None) -> float | None:
    return None if joules is None else _rounded(1e3 * joules)


def _final(number: int, finalist: Finalist, winner: Finalist) -> dict[str, Any]:
    label = finalist.role
    if label == "finalist":
        same = finalist.template == winner.template
        label = changes_text(finalist.config, winner.config, 2) if same else finalist.template
    return {
        "name": f"{number + 1}. {label}",
        "order": number,
        "ms": finalist.time_ms,
        "low": finalist.low_ms,
        "high": finalist.high_ms,
        "mj": _mj(finalist.energy_j),
        "low_mj": _mj(finalist.low_j),
        "high_mj": _mj(finalist.high_j),
        "role": finalist.role,
        "standing": finalist.standing,
        "template": finalist.template,
        "config": config_text(finalist.config),
    }
