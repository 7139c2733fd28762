# SPDX-License-Identifier: Apache-2.0
"""``coldforge list``: what is declared, and how large each feasible space is."""

from __future__ import annotations

import textwrap
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from ...codegen.catalogue import Catalogue
from ...codegen.errors import InputError
from ...codegen.operator import Operator, shape_words
from ...codegen.problem import make_problem
from ...codegen.space import Space
from ...codegen.target import Target, cpu_target, cuda_target, detect
from ..labels import fields_of, written
from . import options
from .output import print_json

_Read = tuple[object, ...]
"""A space, and all that it reads of a problem."""


@click.command("list", short_help="What can be tuned: operators, templates, parameters.")
@click.argument("operators", metavar="[OP]...", nargs=-1)
@click.option(
    "--target", type=click.Choice(("cuda", "cpu")), help="Only this kind of device [default: both]."
)
@options.templates_option
@options.json_option
def command(
    operators: tuple[str, ...], target: str | None, templates: tuple[str, ...], as_json: bool
) -> None:
    """List operators, families, targets, templates, parameters (what each one means and may be) and the size
    of each feasible space: all of them, or those of OP, with each workload's sizes and the fields of --shape.
    """
    kinds = {"cuda": _cuda, "cpu": cpu_target}
    targets = {kind: found() for kind, found in kinds.items() if target in (None, kind)}
    known: dict[_Read, int] = {}
    rows = [
        _describe(catalogue, operator, targets, known)
        for catalogue, operator in _declared(operators, templates)
    ]
    if as_json:
        print_json(
            {"operators": rows, "targets": {kind: target.to_dict() for kind, target in targets.items()}}
        )
    else:
        _print(rows, targets, in_full=bool(operators))


def _cuda() -> Target:
    found = detect("auto")
    return found if found.kind == "cuda" else cuda_target("sm_90")


def _declared(names: tuple[str, ...], templates: tuple[str, ...]) -> list[tuple[Catalogue, Operator]]:
    """The operators of these names; all that are declared when there is none."""
    if names:
        catalogues = {name: options.catalogue_for(name, templates) for name in dict.fromkeys(names)}
        return [(catalogue, catalogue.operator(name)) for name, catalogue in catalogues.items()]
    catalogue = options.catalogue_from_option(templates)
    return [(catalogue, operator) for _, operator in sorted(catalogue.operators.items())]


def _describe(
    catalogue: Catalogue, operator: Operator, targets: dict[str, Target], known: dict[_Read, int]
) -> dict[str, Any]:
    described: dict[str, Any] = {}
    for kind, target in targets.items():
        spaces = [s for s in catalogue.spaces(operator, kind) if target.arch in s.archs]
        counts = {s.template: _feasible(operator, s, target, known) for s in spaces}
        described[kind] = {
            "arch": target.arch,
            "workload": options.default_workload(operator, kind),
            "templates": [s.template for s in spaces],
            "feasible_configs": sum(counts.values()),
            "feasible_by_template": counts,
            "parameters": {s.template: {p.name: list(p.values) for p in s.parameters} for s in spaces},
            "help": {s.template: {p.name: p.help for p in s.parameters} for s in spaces},
        }
    return {
        "name": operator.name,
        "summary": operator.summary,
        "family": operator.family.name,
        "workloads": list(operator.workloads),
        "workload_fields": {name: fields_of(operator, name) for name in operator.workloads},
        "shape_fields": list(shape_words(operator)),
        "optional_tensors": list(operator.optional_tensors),
        "targets": described,
    }


def _feasible(operator: Operator, space: Space, target: Target, known: dict[_Read, int]) -> int:
    """Feasible configs at the target's default workload, or at the first one where that is missing.

    Args:
        known: what was found before. Operators of one family often agree in all that a space reads of them:
            then it is enumerated once.
    """
    try:
        problem = make_problem(operator, options.default_workload(operator, target.kind))
    except InputError:  # a family may refuse a workload; a space that cannot be enumerated is a mistake
        return 0
    read = (item for item in problem.values.items() if space.reads(item[0]))
    key = (space.file, space.name, *read)
    if key not in known:
        known[key] = len(space.feasible(problem, target))
    return known[key]


def _print(rows: list[dict[str, Any]], targets: dict[str, Target], *, in_full: bool) -> None:
    console = Console(highlight=False)
    for row in rows:
        console.print(f"[bold]{row['name']}[/bold]  {escape(row['summary'])}")
        about = f"family {row['family']}"
        about += "" if in_full else f"; workloads {', '.join(row['workloads'])}"
        console.print(_indented(about, console.width))
        if in_full:
            _print_sizes(row, console)
        for kind, described in row["targets"].items():
            console.print(_indented(f"{kind} {targets[kind].arch}: {_sizes_text(described)}", console.width))
        console.print()
    for space, parameters in _spaces(rows).items():
        console.print(f"[bold]template {space}[/bold]")
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(max_width=24)
        table.add_column()
        for name, (values, meaning) in parameters.items():
            table.add_row(name, ", ".join(map(str, values)), "" if meaning == name else escape(meaning))
        console.print(Padding.indent(table, 2))
        console.print()


def _print_sizes(row: dict[str, Any], console: Console) -> None:
    """Each workload with its sizes, and what ``--shape`` may change of them."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, fields in row["workload_fields"].items():
        table.add_row(escape(name), escape(written(fields).replace(",", ", ")))
    console.print("  workloads (--workload):")
    console.print(Padding.indent(table, 4))
    given = ", ".join(row["shape_fields"])
    left_out = "".join(f"; {name}=0 leaves {name} out" for name in row["optional_tensors"])
    console.print(_indented(f"fields of --shape: {given}{left_out}", console.width))


def _indented(text: str, width: int) -> str:
    return escape(textwrap.fill(text, width, initial_indent="  ", subsequent_indent="  "))


def _sizes_text(described: dict[str, Any]) -> str:
    """How many configs are feasible, and of which templates: "60 feasible configs (collapsed)"."""
    fitting = {name: count for name, count in described["feasible_by_template"].items() if count}
    if len(fitting) <= 1:
        parts = ", ".join(fitting)
    else:
        parts = ", ".join(f"{name} {count}" for name, count in fitting.items())
    total = described["feasible_configs"]
    return f"{total} feasible configs at workload {described['workload']}" + (f" ({parts})" if parts else "")


def _spaces(rows: list[dict[str, Any]]) -> dict[str, dict[str, tuple[list[Any], str]]]:
    """The parameters of each space, once, under ``family/template/kind``: values, and what they mean."""
    return {
        f"{row['family']}/{template}/{kind}": {
            name: (values, described["help"][template][name]) for name, values in parameters.items()
        }
        for row in rows
        for kind, described in row["targets"].items()
        for template, parameters in described["parameters"].items()
    }
