# SPDX-License-Identifier: Apache-2.0
"""The finals for a person: each finalist's time with its interval, and who won, by proof or by rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .limits import ENERGY
from .ranking import LEADER, LEVEL, NEAR, SLOWER, TIED, too_few_rounds

_ORDER = {LEADER: 0, TIED: 1, SLOWER: 2}
_SIZES = {"registers": "regs", "code_bytes": "code"}


def finals_parts(document: Mapping[str, Any]) -> list[RenderableType]:
    """What to print of a study's finals: nothing before they are held, and of those of an older version.

    Args:
        document: As `summary.summarise` makes it.
    """
    rows = [row for row in document.get("finals") or () if row.get("standing")]
    if not document.get("finals_held") or not rows:
        return []
    return [Text(verdict_line(document), style="bold"), _table(rows)]


def verdict_line(document: Mapping[str, Any]) -> str:
    """Who won, in one line."""
    ties = len(document["ties"])
    energy = document.get("objective") == ENERGY
    if document["declared"]:
        rows = sum(row.get("standing") != "failed" for row in document["finals"])
        if rows == 1:
            return "finals: one config alone"
        which = "surely takes the least energy" if energy else "is surely the fastest"
        return f"finals: the winner {which} of {rows} ({100 * LEVEL:.0f}% intervals, corrected)"
    if ties:
        near = f"chosen among those within {100 * (NEAR - 1):g}%"
        which = "take the least energy" if energy else "be the fastest"
        few = sum(map(too_few_rounds, document["finals"]))
        unsure = f" (of {few} too few independent rounds were taken to say)" if few else ""
        return f"finals: {ties} configs may {which}{unsure}; {near}: {document['rule']}"
    return "finals: the configs were not timed side by side; the fastest median was taken"


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Each finalist, and how its config differs from the winner's, which stands in full elsewhere."""
    table = Table(box=None)
    energy = any(row.get("energy_ci95_j") for row in rows)
    heads = ["mJ (95%)"] if energy else []
    for name in ("finalist", "ms (95%)", *heads, "of the leader's (95%)"):
        table.add_column(name, no_wrap=True)
    sized = [name for name in _SIZES if any((row.get("resources") or {}).get(name) for row in rows)]
    for name in sized:
        table.add_column(_SIZES[name], justify="right", no_wrap=True)
    table.add_column("where it differs")
    winner = next((row for row in rows if row.get("chosen")), None)
    figure = "energy_j" if energy else "time_ms"
    for row in sorted(rows, key=lambda row: (_ORDER.get(row["standing"], 3), row[figure] or 0.0)):
        standing = "chosen" if row is winner else row["standing"]
        standing += ", few rounds" if too_few_rounds(row) else ""
        sizes = [str((row.get("resources") or {}).get(name, "-")) for name in sized]
        cells = [Text(cell) for cell in (standing, *_figures(row, energy), *sizes, differs(row, winner))]
        table.add_row(*cells, style="bold" if row is winner else "")
    return table


def differs(row: Mapping[str, Any], winner: Mapping[str, Any] | None) -> str:
    """What a config has otherwise than the winner's: in full where that is of another template."""
    if row is winner:
        return "(the best)"
    same = winner is not None and row["template"] == winner["template"]
    base = winner["config"] if same and winner is not None else {}
    changed = [f"{name}={value}" for name, value in row["config"].items() if base.get(name) != value]
    return " ".join(changed if same else [row["template"], *changed])


def _figures(row: Mapping[str, Any], energy: bool) -> list[str]:
    """A row's time, its energy where that decided, and its ratio, each with its interval."""
    if row["time_ms"] is None or not row.get("ci95_ms"):
        return [row["outcome"], "", *([""] if energy else [])]
    figures = [f"{row['time_ms']:.4g} ({_interval(row['ci95_ms'], '.4g')})"]
    if energy and row.get("energy_j") is not None and row.get("energy_ci95_j"):
        ends = [1e3 * end for end in row["energy_ci95_j"]]
        figures.append(f"{1e3 * row['energy_j']:.4g} ({_interval(ends, '.4g')})")
    elif energy:
        figures.append("")
    if row.get("ratio") is None or not row.get("ratio_ci95"):
        return [*figures, "1" if row["standing"] == LEADER else ""]
    return [*figures, f"{row['ratio']:.3f} ({_interval(row['ratio_ci95'], '.3f')})"]


def _interval(ends: Sequence[float], form: str) -> str:
    return "-".join(format(end, form) for end in ends)
