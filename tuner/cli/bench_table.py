# SPDX-License-Identifier: Apache-2.0
"""What ``bench`` found, for a person. It stays readable in 80 columns, which is what a pipe has: figures that
stand beside the times then have a table of their own, and text that may be long stands below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..speed import fraction_of_floor, is_highest, percent, speed_name

_MAIN = ("ms (95%)", "frozen faster by (95%)", "L2 error")
_BESIDE = {"warm ms": "warm_ms", "graph ms": "graph_ms", "mJ": "energy_j"}
"""Columns that stand where some row has the figure: a warm cache, a captured graph's launch, energy."""


def print_bench(found: dict[str, Any]) -> None:
    """Prints the document of ``bench --json`` as tables and sentences."""
    console = Console(highlight=False)
    cache = "cold" if found["cold"] else "warm"
    console.print(Text(f"{found['operator']} {found['workload']} on {found['device']} ({cache} cache)"))
    rows = found["rows"]
    main = {row["name"]: _cells(row, found) for row in rows}
    beside = {head: key for head, key in _BESIDE.items() if any(row.get(key) for row in rows)}
    more = {row["name"]: [_figure(row, key) for key in beside.values()] for row in rows}
    together = _table([*_MAIN, *beside], {name: [*main[name], *more[name]] for name in main})
    room = console.options.update(max_width=10_000)  # a measure is never wider than this
    if Measurement.get(console, room, together).maximum <= console.width:
        console.print(together)
    else:
        console.print(_table(_MAIN, main))
        if beside:
            console.print(_table([*beside], more))
    for sentence in _sentences(found):
        console.print(Text(sentence))


def _table(heads: Sequence[str], rows: dict[str, list[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for name, cells in rows.items():
        table.add_row(Text(name), *map(Text, cells))
    return table


def _cells(row: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """A row's columns after its name."""
    if row["reason"]:
        return ["-", "-", "-"]
    low, high = row["ci95_ms"]
    error = f"{row['error']:.1e}" if row["error"] is not None else "yardstick"
    faster = ""
    if row["name"] in found["speedup"]:
        least, most = found["speedup_ci95"][row["name"]]
        faster = f"{found['speedup'][row['name']]:.2f}x ({least:.2f}-{most:.2f})"
    return [f"{_ms(row['time_ms'])} ({_ms(low)}-{_ms(high)})", faster, error]


def _ms(time_ms: float) -> str:
    return f"{time_ms:.4g}" if time_ms < 9999.5 else f"{time_ms:.0f}"


def _figure(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None:
        return "-"
    return f"{1e3 * value:.4g}" if key == "energy_j" else _ms(value)


def _sentences(found: dict[str, Any]) -> list[str]:
    """What is said below the tables, a line each."""
    said = [f"{row['name']} was not timed: {row['reason']}" for row in found["rows"] if row["reason"]]
    said += [f"frozen: {found['variant']}", _speed(found)]
    if aside := [row["name"] for row in found["rows"] if row.get("side_streams")]:
        said.append(
            f"{', '.join(aside)}: left work on other streams; timed until all streams were done, with what "
            "the host takes to launch."
        )
    if any(_noisy(interval) for interval in found["speedup_ci95"].values()):
        said.append(
            "This machine was busy: the times swing. 'Faster by' is the median of the ratios within each "
            "round, which a busy machine disturbs least; repeat on an idle one."
        )
    return said


def _speed(found: dict[str, Any]) -> str:
    """How near the frozen kernel comes to what the device can do."""
    entry = {"time_ms": found["rows"][0]["time_ms"], "floor_ms": found["floor_ms"]}
    name, share = speed_name((found.get("floor") or {}).get("limit")), fraction_of_floor(entry)
    if share is None:
        return "The tensors fit the device's cache, so its memory sets no least time."
    allows = f"The device's {name} allows {found['floor_ms']:.4g} ms at best"
    if is_highest(entry):
        return f"{allows}, as far as it was probed; the frozen kernel is as fast as that, or faster."
    return f"{allows}; the frozen kernel reaches {percent(share)} of that speed."


def _noisy(interval: Sequence[float]) -> bool:
    """Whether a ratio's interval is too wide to compare kernels by: over a tenth of itself."""
    return interval[1] - interval[0] > 0.1 * interval[0]
