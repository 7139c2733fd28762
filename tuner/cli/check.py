# SPDX-License-Identifier: Apache-2.0
"""``coldforge check``: the configs of CUDA templates executed and judged on a machine without a GPU."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ...codegen.errors import ColdforgeError, InputError
from ...codegen.settings import load_settings
from ...codegen.target import cuda_target
from . import options
from .output import print_json

if TYPE_CHECKING:
    from ...codegen.operator import Operator
    from ..check.run import Checked

SHOWN_PER_CAUSE = 3


@click.command("check")
@click.argument("operator", metavar="[OP]", required=False)
@click.option(
    "--all", "every", is_flag=True, help="Every legal config, not a set that covers all pairs of values."
)
@click.option("--arch", metavar="A", default="sm_90", show_default=True, help="Architecture.")
@options.template_option
@options.workload_option
@options.shape_option
@options.dtype_option
@options.templates_option
@options.json_option
def command(
    operator: str | None,
    every: bool,
    arch: str,
    template: str | None,
    workload: str | None,
    shape: str | None,
    dtype: str,
    templates: tuple[str, ...],
    as_json: bool,
) -> None:
    """Execute the configs of OP's CUDA templates on the CPU and judge them against float64.

    Each runs at small awkward shapes under two sets of checks: out-of-bounds and misaligned accesses and
    undefined behaviour; data races, reads of uninitialised memory, and barriers that not every thread
    reaches. Without OP: the operators of every family.
    """
    from ..check.cases import build_cases
    from ..check.covering import covering

    catalogue = (
        options.catalogue_for(operator, templates) if operator else options.catalogue_from_option(templates)
    )
    declared = [catalogue.operator(operator)] if operator else _one_a_family(catalogue.operators.values())
    target, started = cuda_target(arch), time.perf_counter()
    work = []
    for each in declared:
        problem = options.problem_from_options(each, "cuda", workload, shape, dtype)
        spaces = [s for s in catalogue.spaces(each, "cuda", template) if arch in s.archs]
        cases = build_cases(problem, problem.dtype.name) if spaces else ()
        for space in spaces:
            legal = space.feasible(problem, target)
            chosen = legal if every else covering(legal, [space.default] if space.default in legal else [])
            work += [(space, config, target, cases) for config in chosen]
    if not work:
        raise InputError(f"there is no legal config of a CUDA template for {arch} to check")
    done = _run(work)
    document = _document(declared, target.arch, done, time.perf_counter() - started)
    if as_json:
        print_json(document)
    else:
        _show(document)
    if document["findings"]:
        raise ColdforgeError(f"{document['failed']} of {document['configs']} configs have faults")


def _one_a_family(operators: Any) -> list[Operator]:
    """The first declared operator of each family."""
    return list({operator.family.name: operator for operator in reversed(list(operators))}.values())[::-1]


def _run(work: list[Any]) -> list[Checked]:
    """Runs everything, with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ...codegen.compile import Cache
    from ..check.run import check_configs

    settings = load_settings()
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    done: list[Checked] = []
    with Progress(*columns, TextColumn("{task.fields[faults]}"), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(work), faults="")
        for checked in check_configs(work, Cache(settings.home / "cache"), settings.jobs):
            done.append(checked)
            failed = sum(1 for each in done if each.faults)
            progress.update(task, advance=1, faults=f"{failed} with faults" if failed else "no faults")
    return done


def _document(operators: list[Operator], arch: str, done: list[Checked], seconds: float) -> dict[str, Any]:
    findings = [
        {"template": each.space.name, "config": dict(each.config), **fault.to_dict()}
        for each in done
        for fault in each.faults
    ]
    return {
        "operators": [operator.name for operator in operators],
        "arch": arch,
        "configs": len(done),
        "failed": sum(1 for each in done if each.faults),
        "templates": dict(Counter(each.space.name for each in done)),
        "causes": dict(Counter(finding["cause"] for finding in findings)),
        "findings": findings,
        "seconds": seconds,
    }


def _show(document: dict[str, Any]) -> None:
    for template, count in document["templates"].items():
        click.echo(f"{template}: {count} configs for {document['arch']}")
    for cause, count in document["causes"].items():
        click.echo(f"{cause}: {count}")
        shown = [finding for finding in document["findings"] if finding["cause"] == cause][:SHOWN_PER_CAUSE]
        for finding in shown:
            config = ",".join(f"{name}={value}" for name, value in finding["config"].items())
            click.echo(f"  {finding['template']} {config}\n    {finding['case']} ({finding['build']})")
            click.echo(f"    {finding['text']}")
    faults = len(document["findings"])
    click.echo(f"{document['configs']} configs in {document['seconds']:.0f} s: {faults or 'no'} findings")
