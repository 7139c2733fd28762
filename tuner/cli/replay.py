# SPDX-License-Identifier: Apache-2.0
"""``coldforge replay``: search strategies against recorded spaces, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import options
from .output import print_json


@click.command("replay")
@click.argument("data", metavar="DATA...", nargs=-1, required=True)
@click.option(
    "--sampler", "samplers", metavar="NAME", multiple=True, help="As of `tune`; may be repeated, or `all`."
)
@click.option("--seeds", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Runs of each.")
@click.option(
    "--budget",
    type=click.IntRange(1, 100_000),
    default=200,
    show_default=True,
    help="Distinct configs that a run may evaluate.",
)
@options.json_option
def command(data: tuple[str, ...], samplers: tuple[str, ...], seeds: int, budget: int, as_json: bool) -> None:
    """Run a sampler against recorded spaces (CSV, T4 or `coldforge export`; may be gzipped) and tell how many
    configs it evaluates until it is within 5% and 1% of the best.

    No kernel is compiled or run. Seeds are 0, 1, ...; a run that never gets there counts as twice the budget.
    """
    from rich.console import Console

    from ..replay.recorded import read_recorded
    from ..replay.run import replay
    from ..replay.table import overall, row_of
    from ..search import DEFAULT_SAMPLER, SAMPLERS, sampler_named

    names = list(dict.fromkeys(samplers)) or [DEFAULT_SAMPLER]
    names = list(SAMPLERS) if names == ["all"] else names
    factories = {name: sampler_named(name) for name in names}
    spaces = [read_recorded(Path(path)) for path in data]
    rows = []
    with Console(stderr=True).status("") as status:
        for recorded in spaces:
            for name, factory in factories.items():
                runs = []
                for seed in range(seeds):
                    status.update(f"{recorded.name}: {name}, run {seed + 1} of {seeds}")
                    runs.append(replay(recorded, factory, seed, budget))
                rows.append(row_of(recorded, name, runs, budget))
    found = {"budget": budget, "seeds": seeds, "rows": rows, "overall": overall(rows)}
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    budget = found["budget"]
    title = f"evaluations of at most {budget}, over {found['seeds']} seeds"
    table = Table(title=title, title_justify="left")
    table.add_column("space")
    table.add_column("sampler")
    heads = ("to 5%", "p90", "runs", "to 1%", "p90", "runs", "best / optimum", "repeats", "ask ms")
    for head in heads:
        table.add_column(head, justify="right")
    for row in found["rows"]:
        cells = []
        for name in ("5pct", "1pct"):
            for figure in ("median", "p90"):
                count = row[f"to_{name}_{figure}"]
                cells.append(f"{count:.0f}" if count <= budget else f"> {budget}")
            cells.append(f"{100 * row[f'to_{name}_share']:.0f}%")
        ratios = ("-" if ratio is None else f"{ratio:.3f}" for ratio in row["ratio_at"].values())
        cells += [" ".join(ratios), f"{row['repeats_mean']:.0f}", f"{row['ask_ms']:.1f}"]
        table.add_row(row["space"], row["sampler"], *cells)
    console = Console()
    console.print(table)
    for total in found["overall"] if len({row["space"] for row in found["rows"]}) > 1 else ():
        console.print(
            f"{total['sampler']}: {100 * total['to_5pct_share']:.0f}% of runs within 5% "
            f"(geometric mean {total['to_5pct_geomean']:.0f}), {100 * total['to_1pct_share']:.0f}% within 1% "
            f"({total['to_1pct_geomean']:.0f})",
            highlight=False,
        )
