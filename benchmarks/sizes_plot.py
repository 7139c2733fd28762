# SPDX-License-Identifier: Apache-2.0
"""The plot of `sizes.py`: time and share of the floor over the batch and over the image's side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes

INK, MUTED, GRID = "#222222", "#6b6b6b", "#e4e4e4"
TIME, WARM, FLOOR, STEEP = "#1f5fbf", "#d9822b", "#7a7a7a", "#c0262d"
_AXES = {"batch": "batch size", "image": "side of the image, pixels"}


def draw(operator: str, measured: Mapping[str, Any], about: Mapping[str, Any], path: Path) -> None:
    """Writes the SVG file of one operator.

    Args:
        operator: Its name.
        measured: Its part of the JSON document: rows and cliffs.
        about: The document: device, dtype, workload.
        path: The file.
    """
    matplotlib.rcParams.update({"font.size": 9, "axes.edgecolor": MUTED, "svg.hashsalt": "coldforge"})
    figure, panels = pyplot.subplots(2, 2, figsize=(9, 6), layout="constrained", sharex="col")
    for column, axis in enumerate(_AXES):
        rows = [r for r in measured["rows"] if r["axis"] == axis and r["time_ms"] is not None]
        if not rows:
            continue
        steep = {cliff["size"] for cliff in measured["cliffs"] if cliff["axis"] == axis}
        _times(panels[0][column], rows)
        _shares(panels[1][column], rows, steep)
        panels[1][column].set_xlabel(_AXES[axis])
    for panel in panels.flat:
        panel.grid(color=GRID, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(colors=MUTED)
    panels[0][0].legend(frameon=False, labelcolor=INK)
    title = f"{operator}, {about['dtype']}, around workload {about['workload']}, {about['device']}"
    figure.suptitle(title, color=INK, fontsize=11)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _times(panel: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    sizes = [row["size"] for row in rows]
    panel.loglog(sizes, [row["time_ms"] for row in rows], "o-", color=TIME, ms=4, label="cold cache")
    panel.loglog(sizes, [row["warm_ms"] for row in rows], "s-", color=WARM, ms=3, lw=1, label="warm cache")
    graphs = [(row["size"], row["graph_warm_ms"]) for row in rows if row.get("graph_warm_ms")]
    if graphs:
        panel.loglog(
            *zip(*graphs, strict=True), "^:", color=WARM, ms=3, lw=1, label="warm, one of a graph's 20"
        )
    panel.loglog(sizes, [row["floor_ms"] for row in rows], "--", color=FLOOR, lw=1, label="floor")
    panel.set_ylabel("ms", color=INK)


def _shares(panel: Axes, rows: Sequence[Mapping[str, Any]], steep: set[int]) -> None:
    sizes = [row["size"] for row in rows]
    panel.semilogx(sizes, [row["fraction"] for row in rows], "o-", color=TIME, ms=4)
    exact = [row for row in rows if row["exact"]]
    panel.plot(
        [r["size"] for r in exact], [r["fraction"] for r in exact], "o", mfc="white", mec=TIME, ms=9, zorder=0
    )
    for row in exact:
        panel.annotate(
            "tuned",
            (row["size"], row["fraction"]),
            (0, 9),
            textcoords="offset points",
            color=INK,
            ha="center",
        )
    for row in rows:
        if row["size"] in steep:
            place = (row["size"], row["fraction"])
            panel.annotate(
                f"cliff at {row['size']}",
                place,
                (0, -14),
                textcoords="offset points",
                color=STEEP,
                ha="center",
            )
            panel.plot(*place, "o", color=STEEP, ms=6)
    panel.set_ylim(0, max(1.0, 1.1 * max(row["fraction"] for row in rows)))
    ticks = [size for size in sizes if size & (size - 1) == 0]
    panel.set_xticks(ticks, [str(size) for size in ticks])
    panel.minorticks_off()
    panel.set_ylabel("share of the floor", color=INK)
