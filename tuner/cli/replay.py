# SPDX-License-Identifier: Apache-2.0
"""``coldforge replay``: search strategies against recorded spaces, offline."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .output import print_json

if TYPE_CHECKING:
    from ..replay.begun import Beginning
    from ..replay.recorded import Recorded


@click.command("replay", short_help="Try search strategies on recorded spaces, offline.")
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
@click.option(
    "--warm-start",
    metavar="DATA",
    help="Another recorded space: each run is made twice, the second time begun with what a study of that "
    "one found.",
)
@click.option(
    "--warm-trials",
    default="200",
    show_default=True,
    metavar="N|all",
    help="How many configs that study has, chosen by the same sampler; or it knows them all.",
)
@options.json_option
def command(
    data: tuple[str, ...],
    samplers: tuple[str, ...],
    seeds: int,
    budget: int,
    warm_start: str | None,
    warm_trials: str,
    as_json: bool,
) -> None:
    """Run a sampler against recorded spaces (CSV, T4 or `coldforge export`; may be gzipped) and tell how many
    configs it evaluates until it is within 5% and 1% of the best.

    No kernel is compiled or run. Seeds are 0, 1, ...; a run that never gets there counts as twice the budget.
    With --warm-start, a space is compared with itself, without and with another study to begin with.
    """
    from ..replay.begun import Beginning, trials_of
    from ..replay.recorded import read_recorded
    from ..search import DEFAULT_SAMPLER, SAMPLERS, sampler_named

    names = list(dict.fromkeys(samplers)) or [DEFAULT_SAMPLER]
    names = list(SAMPLERS) if names == ["all"] else names
    for name in names:
        sampler_named(name)
    known = trials_of(warm_trials)
    spaces = [read_recorded(Path(path)) for path in data]
    beginning = None if warm_start is None else Beginning(read_recorded(Path(warm_start)), known)
    if beginning is not None:
        for recorded in spaces:
            beginning.check(recorded)
    found = {"budget": budget, "seeds": seeds, **_run_all(spaces, names, seeds, budget, beginning)}
    if beginning is not None:
        found |= {"warm_start": beginning.source.name, "warm_trials": known or "all"}
    if as_json:
        print_json(found)
    else:
        _show(found)


def _run_all(
    spaces: list[Recorded], names: list[str], seeds: int, budget: int, beginning: Beginning | None
) -> dict[str, Any]:
    """The rows, what they come to together, and what the beginning was good for."""
    from rich.console import Console

    from ..replay.run import replay
    from ..replay.table import compared, overall, row_of
    from ..search import sampler_named

    rows, pairs = [], []
    kinds = (None,) if beginning is None else (None, beginning)
    with Console(stderr=True).status("") as status:
        for recorded, name in itertools.product(spaces, names):
            for kind in kinds:
                runs = []
                for seed in range(seeds):
                    status.update(f"{recorded.name}: {name}, run {seed + 1} of {seeds}")
                    if kind is None:
                        runs.append(replay(recorded, sampler_named(name), seed, budget))
                    else:
                        runs.append(kind.replay(recorded, name, seed, budget))
                rows.append(row_of(recorded, name, runs, budget, kind and kind.source.name))
            if beginning is not None:
                pairs.append(compared(*rows[-2:]))
    return {"rows": rows, "overall": overall(rows)} | ({"compared": pairs} if pairs else {})


def _reached(row: dict[str, Any], name: str, budget: int) -> str:
    """After how many evaluations: median, 90th percentile, and the share of the runs that got there."""
    counts = [row[f"to_{name}_{figure}"] for figure in ("median", "p90")]
    shown = [f"{count:.0f}" if count <= budget else f">{budget}" for count in counts]
    return f"{' '.join(shown)} {100 * row[f'to_{name}_share']:.0f}%"


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    budget = found["budget"]
    title = f"evaluations of at most {budget}, over {found['seeds']} seeds"
    table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False)
    for name in ("space", "sampler"):
        table.add_column(name)
    for name in ("to 5%", "to 1%", "best / optimum", "repeats", "ask ms"):
        table.add_column(name, justify="right")
    for row in found["rows"]:
        cells = [_reached(row, name, budget) for name in ("5pct", "1pct")]
        ratios = ("-" if ratio is None else f"{ratio:.3f}" for ratio in row["ratio_at"].values())
        begun = f", begun with {row['warm_start']}" if row["warm_start"] else ""
        cells += [" ".join(ratios), f"{row['repeats_mean']:.0f}", f"{row['ask_ms']:.1f}"]
        table.add_row(row["space"], row["sampler"] + begun, *cells)
    console = Console()
    console.print(table)
    after = ", ".join(found["rows"][0]["ratio_at"])
    console.print(
        f"To 5% and 1%: median, 90th percentile, runs that got there. Best / optimum: after {after}.",
        highlight=False,
    )
    for pair in found.get("compared", ()):
        console.print(
            f"{pair['space']}, {pair['sampler']}: begun with {pair['warm_start']}, "
            f"{pair['fewer_5pct_median']:.2f} times fewer evaluations to 5% "
            f"(geometric mean {pair['fewer_5pct_geomean']:.2f}), {pair['fewer_1pct_median']:.2f} to 1% "
            f"({pair['fewer_1pct_geomean']:.2f})",
            highlight=False,
        )
    for total in found["overall"] if len({row["space"] for row in found["rows"]}) > 1 else ():
        begun = f", begun with {total['warm_start']}" if total["warm_start"] else ""
        console.print(
            f"{total['sampler']}{begun}: {100 * total['to_5pct_share']:.0f}% of runs within 5% "
            f"(geometric mean {total['to_5pct_geomean']:.0f}), {100 * total['to_1pct_share']:.0f}% within 1% "
            f"({total['to_1pct_geomean']:.0f})",
            highlight=False,
        )
