# SPDX-License-Identifier: Apache-2.0
"""``coldforge worker``: joins a study that `tune` began, here or on another machine."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ...codegen.errors import ColdforgeError
from ...codegen.home import writable_home
from ...codegen.settings import load_settings
from ...codegen.target import Target, detect
from . import options
from .output import print_json
from .running import Tools, run_study, tools_for, worker_words

if TYPE_CHECKING:
    from ...codegen.catalogue import Catalogue
    from ..joining import Request
    from ..study import Study
    from ..tune import Tuner


@click.command("worker")
@click.option(
    "--storage",
    metavar="URL",
    help="Where the study is, as for tune [default: under COLDFORGE_HOME].",
)
@click.option("--study", metavar="STUDY", help="Which study [default: the one that was worked on last].")
@options.devices_option
@click.option(
    "--warm-start",
    metavar="STUDY|auto",
    help="As for tune: begin with what another study found, of another device for instance.",
)
@options.templates_option
@click.option("--attached", type=int, hidden=True, metavar="PID", help="End with this process.")
@options.json_option
def command(
    storage: str | None,
    study: str | None,
    devices: str,
    warm_start: str | None,
    templates: tuple[str, ...],
    attached: int | None,
    as_json: bool,
) -> int:
    """Take part in a study that `tune` began.

    Takes configs until the study's trials are done or its time is over; what to do is in the study. The
    finals are held by `tune`. A device that is not the study's makes a study of its own beside it, with the
    same aims.
    """
    if attached is not None:
        _attach(attached)
    from ..joining import declarations, read_request, study_to_join
    from ..storage import open_storage, storage_faults

    settings = load_settings()
    writable_home(settings.home)
    opened = open_storage(storage, settings.home, create=False)
    with storage_faults(opened):
        joined = study_to_join(opened, study)
        catalogue = declarations(joined, options.catalogue_from_option(templates), bool(templates))
        kind = joined.about["target"]["kind"]
        request = read_request(joined)
    assert opened is not None
    target, others = options.devices_of(detect(kind), devices)
    settings = replace(settings, jobs=max(1, settings.jobs // (1 + len(others))))
    with tools_for(target, settings, opened) as tools:
        from ..crew import Crew

        told = worker_words(joined, storage, warm_start, templates)
        with Crew(others, told, settings.jobs):
            run = _work(tools, catalogue, joined, request, target, warm_start, attached is not None)
    if as_json:
        print_json(run)
    else:
        missing = "" if run["finals_held"] else "; its finals are held by coldforge tune"
        click.echo(
            f"{run['status']}: {run['added']} configs of {run['study']}, which has {run['finished']}{missing}"
        )
    return 0 if run["status"] == "ok" else 1


def _attach(parent: int) -> None:
    """Ties the life of this process to that of the one that started it."""
    from ...codegen.spawn import die_with_parent

    for tie in (lambda: None, die_with_parent):  # it may end between the question and the tie
        tie()
        if os.getppid() != parent:
            raise ColdforgeError(f"process {parent}, which this worker is to end with, did not start it")


def _work(
    tools: Tools,
    catalogue: Catalogue,
    joined: Study,
    request: Request,
    target: Target,
    warm_start: str | None,
    attached: bool,
) -> dict[str, Any]:
    """Runs until nothing is asked any more: `tune` may have been given more while this worked."""
    from ..joining import clock_of, plan_here, read_request
    from ..progress import NoProgress, open_progress
    from ..study import open_study
    from ..warm_start import Beginnings

    added = 0
    while True:
        plan = plan_here(joined, catalogue, target, request)
        own = joined if plan.inputs().name == joined.name else open_study(tools.storage, plan.inputs())
        if own.name != joined.name:
            _tell_of_another(own, joined, target)
        feasible = plan.feasible()
        begin = Beginnings(tools.storage, warm_start)
        begin.check(plan, feasible)
        given = begin.options(plan, feasible, request.options(clock_of(tools.storage)))
        progress = NoProgress() if attached else open_progress(f"worker on {own.name}")
        status, tuner = run_study(tools, catalogue, plan, own, feasible, given, progress)
        added += tuner.accounts.counts.added
        now = read_request(joined)
        if status != "ok" or now == request:
            return {**_said(status, own, tuner), "joined": joined.name, "added": added}
        request = now


def _said(status: str, study: Study, tuner: Tuner) -> dict[str, Any]:
    about = study.about
    where = {"operator": about["operator"], "target": about["target"]["kind"]}
    where |= {"device": about["target"]["device"], "workload": about["workload"], "study": study.name}
    numbers = tuner.numbers()
    finals_held = study.winner_is_current(numbers["finished"])
    return {"status": status, **where, "finals_held": finals_held, **numbers}


def _tell_of_another(own: Study, joined: Study, target: Target) -> None:
    theirs = joined.about["target"]["device"]
    device = target.device if target.device != theirs else "another kind of it"
    print(
        f"{joined.name} is of {theirs}, and this machine has {device}: it works on {own.name}, whose finals "
        "coldforge tune holds here",
        file=sys.stderr,
    )
