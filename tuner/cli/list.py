# SPDX-License-Identifier: Apache-2.0
"""``coldforge list``: what is declared, and how large each feasible space is."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...codegen.catalogue import Catalogue
from ...codegen.errors import InputError
from ...codegen.operator import Operator
from ...codegen.problem import make_problem
from ...codegen.space import Space
from ...codegen.target import Target, cpu_target, cuda_target, detect
from . import options
from .output import print_json


@click.command("list")
@options.templates_option
@options.json_option
def command(templates: tuple[str, ...], as_json: bool) -> None:
    """List operators, families, targets, templates, parameters and the size of each feasible space."""
    catalogue = options.catalogue_from_option(templates)
    targets = {"cuda": _cuda(), "cpu": cpu_target()}
    rows = [_describe(catalogue, operator, targets) for _, operator in sorted(catalogue.operators.items())]
    if as_json:
        print_json(
            {"operators": rows, "targets": {kind: target.to_dict() for kind, target in targets.items()}}
        )
    else:
        _print_tables(rows, targets)


def _cuda() -> Target:
    found = detect("auto")
    return found if found.kind == "cuda" else cuda_target("sm_90")


def _describe(catalogue: Catalogue, operator: Operator, targets: dict[str, Target]) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for kind, target in targets.items():
        spaces = [s for s in catalogue.spaces(operator, kind) if target.arch in s.archs]
        counts = {s.template: _feasible(operator, s, target) for s in spaces}
        described[kind] = {
            "arch": target.arch,
            "templates": [s.template for s in spaces],
            "feasible_configs": sum(counts.values()),
            "feasible_by_template": counts,
            "parameters": {s.template: {p.name: list(p.values) for p in s.parameters} for s in spaces},
        }
    return {
        "name": operator.name,
        "summary": operator.summary,
        "family": operator.family.name,
        "workloads": list(operator.workloads),
        "targets": described,
    }


def _feasible(operator: Operator, space: Space, target: Target) -> int:
    """Feasible configs at the target's default workload (the first declared one where that is missing)."""
    try:
        problem = make_problem(operator, options.default_workload(operator, target.kind))
    except InputError:  # a family may refuse a workload; a space that cannot be enumerated is a mistake
        return 0
    return len(space.feasible(problem, target))


def _print_tables(rows: list[dict[str, Any]], targets: dict[str, Target]) -> None:
    console = Console(highlight=False)
    for row in rows:
        console.print(f"[bold]{row['name']}[/bold]  {escape(row['summary'])}")
        console.print(f"  family {row['family']}; workloads {', '.join(row['workloads'])}")
        for kind, described in row["targets"].items():
            counts = described["feasible_by_template"].items()
            templates = ", ".join(f"{name} ({count} feasible configs)" for name, count in counts) or "none"
            console.print(f"  {kind} {targets[kind].arch}: {templates}")
        console.print()
    for space, parameters in _spaces(rows).items():
        table = Table(title=f"template {space}", title_justify="left", box=None, show_header=False)
        for name, values in parameters.items():
            table.add_row(name, ", ".join(map(str, values)))
        console.print(table)
        console.print()


def _spaces(rows: list[dict[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """The parameters of each space, once, under ``family/template/kind``."""
    return {
        f"{row['family']}/{template}/{kind}": parameters
        for row in rows
        for kind, described in row["targets"].items()
        for template, parameters in described["parameters"].items()
    }
