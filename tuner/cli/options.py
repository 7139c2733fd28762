# SPDX-License-Identifier: Apache-2.0
"""Option types and option groups that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ...codegen.catalogue import Catalogue, catalogue
from ...codegen.errors import InputError
from ...codegen.operator import Operator
from ...codegen.problem import Problem, make_problem
from ...codegen.settings import load_settings
from ...codegen.target import Target, cuda_devices

DEFAULT_WORKLOADS = {"cuda": "seed", "cpu": "small"}


def parse_shape(text: str | None) -> dict[str, int]:
    """``N=1,H=32`` as a mapping.

    Raises:
        InputError: a part is not NAME=INTEGER, or a name stands twice.
    """
    shape: dict[str, int] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = part.strip().partition("=")
        digits = value.strip().removeprefix("-")
        if not equals or not name.strip() or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
            raise InputError(f"--shape {part.strip()!r:.80}: expected NAME=INTEGER, as in --shape N=1,H=32")
        if name.strip() in shape:
            raise InputError(f"--shape gives {name.strip()} twice")
        shape[name.strip()] = int(value)
    return shape


def parse_settings(items: tuple[str, ...]) -> dict[str, int | str]:
    """``--set NAME=VALUE`` items as a mapping; a whole number becomes an int.

    Raises:
        InputError: an item is not NAME=VALUE, or a name stands twice.
    """
    chosen: dict[str, int | str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise InputError(f"--set {item!r:.80}: expected NAME=VALUE, as in --set TILE_X=32")
        if name in chosen:
            raise InputError(f"--set gives {name} twice")
        digits = value.removeprefix("-")
        chosen[name] = int(value) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else value
    return chosen


def problem_from_options(
    operator: Operator,
    kind: str,
    workload: str | None,
    shape: str | None,
    dtype: str,
    precision: str | None = None,
) -> Problem:
    """The problem that ``--workload``, ``--shape``, ``--dtype`` and ``--precision`` describe; the default
    workload depends on the target kind."""
    problem = make_problem(operator, workload or default_workload(operator, kind), parse_shape(shape), dtype)
    return problem if precision is None else problem.in_class(precision)


def default_workload(operator: Operator, kind: str) -> str:
    """The target's usual workload, or the operator's first where it has none of that name."""
    usual = DEFAULT_WORKLOADS[kind]
    return usual if usual in operator.workloads else next(iter(operator.workloads))


def catalogue_from_option(templates: tuple[str, ...]) -> Catalogue:
    """The declarations, with those of the folders of ``--templates``."""
    return catalogue(*(Path(folder).absolute() for folder in templates))


def catalogue_for(operator: str, templates: tuple[str, ...], storage: str | None = None) -> Catalogue:
    """The same, with the folders that the operator was tuned from where nothing else declares it."""
    from ..roots import declared_for

    return declared_for(operator, catalogue_from_option(templates), storage, load_settings().home)


def target_option(*choices: str, default: str) -> Callable[[Any], Any]:
    """``--target`` with the given words."""
    return click.option(
        "--target", type=click.Choice(choices), default=default, show_default=True, help="Kind of device."
    )


def devices_of(target: Target, text: str) -> tuple[Target, tuple[str, ...]]:
    """The device of this process, which from now on sees no other one, and for each further one that
    ``--devices`` means what a child is told that is to see it alone.

    Args:
        target: the kind's first device.

    Raises:
        InputError: there is no such device, or the target is a CPU, which is one.
    """
    from ..crew import ALL, chosen_devices, see_only, visible_as

    if target.kind == "cpu":
        if text not in (ALL, "0"):
            raise InputError(f"--devices {text:.80}: a CPU is one device; leave the option out")
        return target, ()
    devices = cuda_devices()
    first, *others = chosen_devices(text, devices)
    words = tuple(visible_as(number) for number in others)
    if len(devices) > 1:
        see_only(first)
    return devices[first], words


devices_option = click.option(
    "--devices",
    default="all",
    metavar="all|0,1",
    show_default=True,
    help="Which of this machine's GPUs to use, one process each; all: those that are like the first one.",
)
workload_option = click.option(
    "--workload", metavar="W", help="Named workload [default: seed on cuda, small on cpu]."
)
shape_option = click.option(
    "--shape",
    metavar="N=1,H=32",
    help="Override fields of the workload, as `coldforge list OP` names them.",
)
dtype_option = click.option(
    "--dtype", default="fp32", show_default=True, metavar="D", help="Type of the tensors: fp32, fp16, bf16."
)
precision_option = click.option(
    "--precision", metavar="P", help="Error class: fp32, tf32, fp16, bf16 [default: the dtype's own]."
)
template_option = click.option("--template", metavar="T", help="Only this template.")
templates_option = click.option(
    "--templates",
    multiple=True,
    metavar="DIR",
    help="Declarations of your own: a family's folder, or one laid out like templates/. May be repeated.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout; progress stays on stderr."
)
