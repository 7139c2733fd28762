# SPDX-License-Identifier: Apache-2.0
"""``coldforge check``: the configs of CUDA templates executed and judged on a machine without a GPU."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ...codegen.errors import ColdforgeError, InputError
from ...codegen.home import writable_home
from ...codegen.settings import load_settings
from ...codegen.target import cuda_target
from . import options
from .output import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...codegen.operator import Operator
    from ...codegen.problem import Problem
    from ...codegen.space import Config, Space
    from ...codegen.target import Target
    from ..check.run import Checked

SHOWN_PER_CAUSE = 3


@click.command("check", short_help="Execute CUDA kernels on the CPU and look for faults.")
@click.argument("operator", metavar="[OP]", required=False)
@click.option(
    "--all", "every", is_flag=True, help="Every legal config, not a set that covers all pairs of values."
)
@click.option(
    "--ledger",
    is_flag=True,
    help="List the configs that no ledger says were executed; fail if there are any. With --all: execute "
    "these, and record each at once.",
)
@click.option("--gpu", is_flag=True, help="With --all --ledger: on this machine's GPU.")
@click.option(
    "--merge",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --ledger: first add the ledgers that a run elsewhere wrote into DIR.",
)
@click.option("--arch", metavar="A", default="sm_90", show_default=True, help="Architecture.")
@options.template_option
@options.workload_option
@options.shape_option
@options.dtype_option
@click.option(
    "--precision", metavar="P", help="Error class to judge by [default: each that makes other configs legal]."
)
@options.templates_option
@options.json_option
@click.pass_context
def command(
    context: click.Context,
    operator: str | None,
    every: bool,
    ledger: bool,
    gpu: bool,
    merge: Path | None,
    arch: str,
    template: str | None,
    workload: str | None,
    shape: str | None,
    dtype: str,
    precision: str | None,
    templates: tuple[str, ...],
    as_json: bool,
) -> None:
    """Execute the configs of OP's CUDA templates on the CPU and judge them against float64.

    Each runs at small awkward shapes under two sets of checks: out-of-bounds and misaligned accesses and
    undefined behaviour; data races, reads of uninitialised memory, and barriers that not every thread
    reaches. Without OP: the operators of every family.

    The ledger beside a template (ledger.<template>.cuda.jsonl) has a line for each config that was found
    right at the workload seed of its family's first operator, on sm_90: what was executed, by a digest of its
    device code, and where. A run that is stopped goes on where it ended.
    """
    from ..check.instantiations import founders, subjects
    from ..interrupts import Interrupts
    from .check_ledger import run_ledger

    catalogue = (
        options.catalogue_for(operator, templates) if operator else options.catalogue_from_option(templates)
    )
    declared = [catalogue.operator(operator)] if operator else founders(catalogue)
    if every or not ledger:
        writable_home(load_settings().home)
    if ledger:
        _refuse(context, "arch", "workload", "shape", "dtype", "precision")
        found = subjects(catalogue, catalogue.operator(operator) if operator else None, template)
        run_ledger(found, execute=every, gpu=gpu, other=merge, as_json=as_json)
        return
    if gpu or merge is not None:
        raise InputError("--gpu and --merge go with --ledger")
    target, started = cuda_target(arch), time.perf_counter()
    with Interrupts():
        work = []
        for each in declared:
            problem = options.problem_from_options(each, "cuda", workload, shape, dtype)
            spaces = [s for s in catalogue.spaces(each, "cuda", template) if arch in s.archs]
            asked = None if precision is None else problem.in_class(precision)
            work += _work(problem if asked is None else asked, spaces, target, every, asked is not None)
        if not work:
            raise InputError(f"there is no legal config of a CUDA template for {arch} to check")
        done, stopped = _run(work, f"check {operator}" if operator else "check")
    document = _document(declared, target.arch, done, time.perf_counter() - started)
    _report({**document, "chosen": len(work), "stopped": stopped}, as_json)


def _report(document: dict[str, Any], as_json: bool) -> None:
    """Prints it. Raises ColdforgeError where not everything was checked, or not everything is right."""
    if as_json:
        print_json(document)
    else:
        _show(document)
    if document["stopped"]:
        about = f"{document['configs']} of {document['chosen']} configs were checked"
        raise ColdforgeError(f"stopped: {about}, {document['failed'] or 'none'} with faults")
    if document["findings"]:
        raise ColdforgeError(f"{document['failed']} of {document['configs']} configs have faults")


def _work(
    problem: Problem, spaces: Sequence[Space], target: Target, every: bool, one_class: bool
) -> list[Any]:
    """What `check_configs` takes: all legal configs, or a set that covers every pair of values.

    Each is judged by the problem's error class; without `one_class` by the strictest in which it is legal.
    """
    from ..check.cases import build_cases
    from ..check.covering import covering
    from ..check.instantiations import classes_of

    work: list[Any] = []
    cases: dict[str, Any] = {}
    for space in spaces:
        seen: set[Config] = set()
        for judged in (problem,) if one_class else classes_of(space, problem):
            legal = [config for config in space.feasible(judged, target) if config not in seen]
            seen.update(legal)
            default = space.default_for(judged, target)
            first = [] if default is None or default not in legal else [default]
            chosen = legal if every else covering(legal, first)
            if chosen and judged.precision not in cases:
                cases[judged.precision] = build_cases(judged, judged.precision)
            work += [(space, config, target, cases[judged.precision]) for config in chosen]
    return work


def _refuse(context: click.Context, *names: str) -> None:
    """Options that the ledger leaves no choice of."""
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(
                f"--{name} does not go with --ledger: it is about one workload on one architecture"
            )


def _run(work: list[Any], title: str) -> tuple[list[Checked], bool]:
    """Runs everything, with its progress on stderr.

    Returns:
        What was checked; whether an interrupt came before the end.
    """
    from ...codegen.compile import Cache
    from ..check.progress import counting
    from ..check.run import check_configs

    settings = load_settings()
    done: list[Checked] = []
    try:
        with (
            counting(title, len(work)) as tell,
            closing(check_configs(work, Cache(settings.home / "cache"), settings.jobs)) as results,
        ):
            for checked in results:
                done.append(checked)
                tell(checked)
    except KeyboardInterrupt:
        return done, True
    return done, False


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
    count = f"{document['configs']} of {document['chosen']}" if document["stopped"] else document["configs"]
    click.echo(f"{count} configs in {document['seconds']:.0f} s: {faults or 'no'} findings")
