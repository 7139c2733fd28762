# SPDX-License-Identifier: Apache-2.0
"""``coldforge render``: one variant's source on stdout."""

from __future__ import annotations

import click

from ...codegen.render import render
from ...codegen.target import cpu_target, cpu_target_for, cuda_target
from . import options
from .output import print_json


@click.command("render", short_help="Print the source of one variant.")
@click.argument("operator", metavar="OP")
@options.template_option
@options.target_option("cuda", "cpu", default="cuda")
@click.option(
    "--arch", metavar="A", help="Architecture [default: sm_90 on cuda, this machine's level on cpu]."
)
@options.workload_option
@options.shape_option
@options.dtype_option
@options.precision_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A tunable's value; the rest keep the default.",
)
@options.templates_option
@options.json_option
def command(
    operator: str,
    template: str | None,
    target: str,
    arch: str | None,
    workload: str | None,
    shape: str | None,
    dtype: str,
    precision: str | None,
    settings: tuple[str, ...],
    templates: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the source of one variant of OP. Needs no GPU and no compiler."""
    catalogue = options.catalogue_for(operator, templates)
    declared = catalogue.operator(operator)
    problem = options.problem_from_options(declared, target, workload, shape, dtype, precision)
    if target == "cuda":
        device = cuda_target(arch or "sm_90")
    else:
        device = cpu_target_for(arch) if arch else cpu_target()
    space = catalogue.space(declared, device, template, problem)
    config = space.config(options.parse_settings(settings), space.default_for(problem, device))
    space.require(problem, config, device)
    source = render(space, problem, config, device)
    if not as_json:
        click.echo(source.text, nl=False)
        return
    print_json(
        {
            "operator": operator,
            "name": source.name,
            "symbol": source.symbol,
            "digest": source.digest,
            "template": space.template,
            "target": device.to_dict(),
            "problem": problem.to_dict(),
            "config": dict(config),
            "launch": space.launch(problem, config, device).to_dict(),
            "source": source.text,
        }
    )
