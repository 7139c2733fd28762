# SPDX-License-Identifier: Apache-2.0
"""``coldforge tune``: search, finals, and what came of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from ...codegen.catalogue import Catalogue
from ...codegen.dtypes import precision_named
from ...codegen.errors import InputError
from ...codegen.home import writable_home
from ...codegen.problem import Problem, make_problem
from ...codegen.settings import load_settings
from ...codegen.target import Target, detect
from ..limits import DEFAULT_TRIALS, ENERGY, OBJECTIVES, SPILL_LIMIT_BYTES, TIME
from . import options
from .output import print_json
from .running import Tools, run_study, tools_for, worker_words

if TYPE_CHECKING:
    from ..client import WorkerClient
    from ..equipment import TuneOptions
    from ..plan import Plan
    from ..search import FeasibleSet
    from ..warm_start import Beginnings


@dataclass(frozen=True)
class _Command:
    """The command line, read.

    Attributes:
        others: the devices beside this process's own, as `Crew` takes them.
    """

    catalogue: Catalogue
    target: Target
    precision: str | None
    template: str | None
    trials: int | None
    time_budget: float | None
    sampler: str | None
    seed: int
    spill_limit: int | None
    objective: str
    storage: str | None
    warm_start: str | None
    others: tuple[str, ...] = ()


class _Seconds(click.FloatRange):
    """A span of time. A range alone lets NaN through, which is never used up."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a finite number of seconds.", param, ctx)
        return seconds


class _Bytes(click.ParamType):
    """A number of bytes, or "off" for no limit (None)."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == "off":
            return None
        if not str(value).isascii() or not str(value).isdigit():
            self.fail(f"{value!r} is neither a number of bytes nor off.", param, ctx)
        return int(value)


@click.command("tune", short_help="Search for the fastest right variant of an operator.")
@click.argument("operator", metavar="OP")
@options.target_option("auto", "cuda", "cpu", default="auto")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    metavar="W",
    help="Named workload [default: seed on cuda, small on cpu]; several make one study each. `coldforge list "
    "OP` has them, with their sizes.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="N=1,H=32",
    help="Override fields of the workload, as `coldforge list OP` names them; several make one study each, "
    "of each workload.",
)
@options.dtype_option
@options.precision_option
@options.template_option
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="The study's total of distinct finished configs [default: 200, or no limit with --time-budget].",
)
@click.option(
    "--time-budget",
    type=_Seconds(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop searching then.",
)
@click.option(
    "--sampler",
    metavar="NAME",
    help="gp (default), densities, local, tpe, random or exhaustive; docs/search.md compares them.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the sampler.")
@click.option(
    "--spill-limit",
    type=_Bytes(),
    default=str(SPILL_LIMIT_BYTES),
    show_default=True,
    metavar="BYTES|off",
    help="Do not run a config whose kernel spills more bytes of registers a thread (stores and loads, as the "
    "compiler reports them): it is recorded as resource_limit. A template's default runs anyway.",
)
@click.option(
    "--storage",
    metavar="URL",
    help="Where studies are kept [default: under COLDFORGE_HOME]. On postgresql://user@host/name many "
    "machines work on one; the password comes from PGPASSWORD, ~/.pgpass or a service file.",
)
@options.devices_option
@click.option(
    "--warm-start",
    metavar="STUDY|auto",
    help="Begin with what another study found: of another shape, precision or device, or of an older one of "
    "the same. auto: the one that is most like this one, if there is any.",
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default=TIME,
    show_default=True,
    help="What decides the finals: time, or joules a launch (warm cache, idle power included; needs a device "
    "that reports its energy). The search goes by time in both: an energy reading takes half a second and "
    "more, a time some milliseconds. Both objectives share one study; its winner is that of the last run.",
)
@options.templates_option
@options.json_option
def command(
    operator: str,
    target: str,
    workloads: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str,
    devices: str,
    templates: tuple[str, ...],
    as_json: bool,
    **search: Any,
) -> int:
    """Search for the fastest right variant of OP on this machine's device, or for one that takes little
    energy.

    The same command again continues its study and runs only what is missing. Ctrl-C keeps everything. On
    several GPUs of one kind it works with all of them; `coldforge worker` adds those of other machines.
    """
    catalogue = options.catalogue_for(operator, templates, search["storage"])
    declared = catalogue.operator(operator)
    parsed = [options.parse_shape(shape) for shape in dict.fromkeys(shapes)] or [{}]
    device, others = options.devices_of(detect(target), devices)
    chosen = _Command(catalogue, device, **search, others=others)
    names = list(dict.fromkeys(workloads)) or [options.default_workload(declared, device.kind)]
    problems = [make_problem(declared, name, shape, dtype) for name in names for shape in parsed]
    runs = _tune_all(chosen, problems)
    if as_json:
        print_json(runs[0] if max(len(workloads), len(shapes)) <= 1 else {"runs": runs})
    else:
        _print(runs)
    return 0 if all(run["status"] == "ok" for run in runs) else 1


def _refuse_unmetered(client: WorkerClient, target: Target) -> None:
    if client.facts()["energy_source"] is None:
        where = "NVML reports neither its energy nor its power"
        if target.kind == "cpu":
            where = "its counters under /sys/class/powercap are not there, or only root may read them"
        raise InputError(f"--objective energy: {target.device} tells no energy ({where}); give time")


def _tune_all(chosen: _Command, problems: list[Problem]) -> list[dict[str, Any]]:
    """One run a problem, with one compiler pool and one worker for all; stops after an interrupted one."""
    from ..backends import toolchain_of
    from ..plan import plan_study
    from ..search import sampler_named
    from ..storage import open_storage, storage_faults
    from ..warm_start import Beginnings

    settings = load_settings()
    writable_home(settings.home)
    sampler_named(chosen.sampler)
    toolchain = toolchain_of(chosen.target)
    common = (chosen.target, toolchain, chosen.template)
    plans = [
        plan_study(chosen.catalogue, problem, precision_named(chosen.precision, problem.dtype), *common)
        for problem in problems
    ]
    storage = open_storage(chosen.storage, settings.home)
    assert storage is not None
    # All of the input is checked before the first run begins.
    work = [(plan, plan.feasible()) for plan in plans]
    begin = Beginnings(storage, chosen.warm_start)
    with storage_faults(storage):
        for plan, feasible in work:
            begin.check(plan, feasible)
    settings = replace(settings, jobs=max(1, settings.jobs // (1 + len(chosen.others))))
    runs: list[dict[str, Any]] = []
    with tools_for(chosen.target, settings, storage) as tools:
        if chosen.objective == ENERGY:
            _refuse_unmetered(tools.client, chosen.target)
        for plan, feasible in work:
            runs.append(_tune_one(chosen, tools, plan, feasible, begin))
            if runs[-1]["status"] == "stopped":
                break
    return runs


def _limits(chosen: _Command) -> TuneOptions:
    from ..equipment import TuneOptions

    trials = DEFAULT_TRIALS if chosen.trials is None and chosen.time_budget is None else chosen.trials
    limits = TuneOptions(trials, chosen.time_budget, chosen.sampler, chosen.seed)
    return replace(limits, spill_limit_bytes=chosen.spill_limit, objective=chosen.objective)


def _tune_one(
    chosen: _Command, tools: Tools, plan: Plan, feasible: FeasibleSet, begin: Beginnings
) -> dict[str, Any]:
    from ..crew import Crew
    from ..joining import clock_of, request_of
    from ..progress import open_progress
    from ..show import causes_of
    from ..study import open_study
    from ..summary import summarise

    study = open_study(tools.storage, plan.inputs())
    if not chosen.catalogue.is_builtin(plan.problem.operator):
        study.remember_roots([str(root) for root in chosen.catalogue.roots[1:]])
    limits = begin.options(plan, feasible, _limits(chosen))
    study.ask_for(request_of(limits, chosen.template, clock_of(tools.storage)).to_dict())
    progress = open_progress(f"{plan.problem.operator.name} {plan.problem.workload}")
    with Crew(chosen.others, worker_words(study, chosen.storage, chosen.warm_start), tools.settings.jobs):
        status, tuner = run_study(tools, chosen.catalogue, plan, study, feasible, limits, progress)
    search = {"sampler": tuner.sampler, "seed": chosen.seed, "objective": chosen.objective}
    search["warm_start"] = None if limits.sibling is None else limits.sibling.name
    found = {**summarise(study, tuner.results), "failures": causes_of(tuner.results)}
    return {"status": status, **found, **tuner.numbers(), **search, "devices": 1 + len(chosen.others)}


def _print(runs: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from ..show import result_tables

    console = Console()
    for run in runs:
        console.print(result_tables(run))
