# SPDX-License-Identifier: Apache-2.0
"""``coldforge bench``: the frozen kernel against PyTorch eager, torch.compile and the peers that its family
declares, timed in turns."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...codegen.errors import ColdforgeError, InputError
from ...codegen.home import writable_home
from ...codegen.settings import load_settings
from ...codegen.target import detect
from . import options
from .output import print_json


@click.command("bench")
@click.argument("operator", metavar="OP")
@options.target_option("auto", "cuda", "cpu", default="auto")
@options.workload_option
@options.shape_option
@options.dtype_option
@options.precision_option
@click.option("--package", metavar="NAME", help="A package of `freeze --package`, not generated/.")
@click.option("--out", metavar="DIR", help="The folder that holds NAME [default: it is on PYTHONPATH].")
@options.templates_option
@options.json_option
def command(
    operator: str,
    target: str,
    workload: str | None,
    shape: str | None,
    dtype: str,
    precision: str | None,
    package: str | None,
    out: str | None,
    templates: tuple[str, ...],
    as_json: bool,
) -> None:
    """Time the frozen kernel of OP against PyTorch eager and torch.compile, interleaved.

    Its family may declare further peers. Every row's error is against float64; a yardstick, such as reading
    the data once, has none. A peer that cannot run is a row with a reason.
    """
    from rich.console import Console

    from ..bench import bench

    catalogue = options.catalogue_for(operator, templates)
    declared = catalogue.operator(operator)
    device = detect(target)
    problem = options.problem_from_options(declared, device.kind, workload, shape, dtype, precision)
    settings = load_settings()
    writable_home(settings.home)
    console = Console(stderr=True)
    with console.status(f"timing {operator} on {device.device}: frozen, eager, compile"):
        found = bench(
            problem,
            device,
            settings,
            precision=problem.precision,
            package=_importable(package, out),
            roots=catalogue.roots[1:],
        )
    if as_json:
        print_json(found)
    else:
        _show(found)
    if found["status"] != "ok":
        ratio = found["rows"][0]["bound_ratio"]
        raise ColdforgeError(f"the frozen kernel is wrong: {ratio:.3g} times its bound")


def _importable(package: str | None, out: str | None) -> str:
    """The package's import name; its folder is put on the path, which the worker inherits.

    Raises:
        InputError: there is no such package.
    """
    if package is None:
        if out is not None:
            raise InputError("--out DIR says where a package is; name it with --package NAME")
        return "coldforge.generated"
    if not package.isidentifier():
        raise InputError(f"--package {package!r} is no package name")
    if out is None:
        spec = importlib.util.find_spec(package)
        place = Path(spec.origin).parent if spec is not None and spec.origin else None
        if place is None:
            raise InputError(
                f"no package {package!r} is on PYTHONPATH; say --out DIR, the folder that holds it"
            )
    else:
        place = Path(out).absolute() / package
        sys.path.insert(0, str(place.parent))
    if not (place / "manifest.json").is_file():
        raise InputError(f"{place} is not a package of frozen kernels")
    return package


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    cache = "cold" if found["cold"] else "warm"
    title = f"{found['operator']} {found['workload']} on {found['device']} ({cache} cache)"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    beside = {head: key for head, key in _BESIDE.items() if any(row.get(key) for row in found["rows"])}
    for name in ("median ms", "95% interval", "frozen faster by", "95% interval", "rel. L2 error", *beside):
        table.add_column(name, justify="right")
    for row in found["rows"]:
        table.add_row(row["name"], *_cells(row, found), *(_figure(row, key) for key in beside.values()))
    console.print(table)
    floor = "unknown: all of it fits the cache"
    if found["floor_ms"]:
        share = 100 * found["floor_ms"] / found["rows"][0]["time_ms"]
        limit = f" (set by {found['floor']['limit']})" if found.get("floor") else ""
        floor = f"{found['floor_ms']:.4g} ms{limit}, of which the frozen kernel reaches {share:.0f}%"
    console.print(f"{found['variant']}, floor {floor}", highlight=False, soft_wrap=True)
    if aside := [row["name"] for row in found["rows"] if row.get("side_streams")]:
        console.print(
            f"{', '.join(aside)}: left work on other streams; timed until all streams were done, with what "
            "the host takes to launch.",
            highlight=False,
        )
    if any(_noisy(interval) for interval in found["speedup_ci95"].values()):
        console.print(
            "This machine was busy: the times swing. 'Faster by' is the median of the ratios within each "
            "round, which a busy machine disturbs least; repeat on an idle one.",
            highlight=False,
        )


_BESIDE = {"warm ms": "warm_ms", "graph ms": "graph_ms", "mJ": "energy_j"}
"""Columns that stand where some row has the figure: a warm cache, a captured graph's launch, energy."""


def _figure(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None:
        return "-"
    return f"{1e3 * value:.4g}" if key == "energy_j" else f"{value:.4f}"


def _cells(row: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """A row's columns after its name."""
    if row["reason"]:
        return ["-", "-", "-", "-", row["reason"]]
    low, high = row["ci95_ms"]
    error = f"{row['error']:.1e}" if row["error"] is not None else "yardstick"
    cells = [f"{row['time_ms']:.4f}", f"{low:.4f}-{high:.4f}", "", "", error]
    if row["name"] in found["speedup"]:
        least, most = found["speedup_ci95"][row["name"]]
        cells[2:4] = [f"{found['speedup'][row['name']]:.2f}x", f"{least:.2f}-{most:.2f}"]
    return cells


def _noisy(interval: Sequence[float]) -> bool:
    """Whether a ratio's interval is too wide to compare kernels by: over a tenth of itself."""
    return interval[1] - interval[0] > 0.1 * interval[0]
