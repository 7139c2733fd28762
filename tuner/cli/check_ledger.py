# SPDX-License-Identifier: Apache-2.0
"""``coldforge check --ledger``: which instantiations were executed already, and executing the others."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...codegen.errors import ColdforgeError, InputError
from ...codegen.settings import load_settings
from .output import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..check.execute import Tally
    from ..check.instantiations import Subject
    from ..check.run import Checked

SHOWN = 3
"""Instantiations of a template that are named."""


def run_ledger(
    found: Sequence[Subject], *, execute: bool, gpu: bool, other: Path | None, as_json: bool
) -> None:
    """Merges, executes and reports, in this order.

    Args:
        found: what there are ledgers of.
        execute: whether what is lacking is executed.
        gpu: on this machine's GPU; else in the emulator.
        other: a folder of another run's ledgers to merge.
        as_json: one JSON document in place of lines.

    Raises:
        InputError: there is nothing to look at, or nothing to merge.
        ColdforgeError: something lacks, or has faults; an interrupt came.
    """
    from ..check.instantiations import merge
    from ..interrupts import Interrupts

    if not found:
        raise InputError("no CUDA template there, so no ledger")
    if other is not None and not merge(found, other):
        raise InputError(f"{other} has no ledger of {', '.join(s.space.name for s in found)}")
    tallies, stopped = [], False
    with Interrupts():
        for subject in found if execute else ():
            tally, stopped = _fill(subject, gpu)
            tallies.append(tally)
            if stopped:
                break
    document = {**_document(found, tallies), "stopped": stopped}
    if as_json:
        print_json(document)
    else:
        _show(document)
    if stopped:
        about = f"{document['executed']} executed, {document['failed'] or 'none'} with faults"
        raise ColdforgeError(f"stopped: {about}; {document['lacking']} are left for the same command")
    if document["findings"]:
        raise ColdforgeError(f"{document['failed']} instantiations have faults")
    if document["lacking"]:
        hint = "" if execute else "; `coldforge check --all --ledger` executes them"
        raise ColdforgeError(f"{document['lacking']} instantiations were never executed{hint}")


def _fill(subject: Subject, gpu: bool) -> tuple[Tally, bool]:
    """What came of one ledger, and whether an interrupt ended it."""
    from ...codegen.target import detect
    from ..check.execute import Tally, fill
    from ..check.ledger import EMULATOR
    from ..check.progress import counting

    device = detect("cuda") if gpu else None
    lacking, started = len(subject.lacking(device.device if device else None)), time.monotonic()
    done: list[Checked] = []
    try:
        with counting(f"check {subject.space.name}", lacking) as show:

            def tell(checked: Checked) -> None:
                done.append(checked)
                show(checked)

            return fill(subject, load_settings(), gpu=device, progress=tell), False
    except KeyboardInterrupt:
        failed = [checked for checked in done if checked.faults]
        place, seconds = device.device if device else EMULATOR, time.monotonic() - started
        return Tally(place, len(done) - len(failed), failed, lacking - len(done), seconds), True


def _document(found: Sequence[Subject], tallies: Sequence[Tally]) -> dict[str, Any]:
    templates = {subject.space.name: _state(subject) for subject in found}
    findings = [
        {"template": checked.space.name, "config": dict(checked.config), **fault.to_dict()}
        for tally in tallies
        for checked in tally.failed
        for fault in checked.faults
    ]
    return {
        "templates": templates,
        "configs": sum(state["configs"] for state in templates.values()),
        "lacking": sum(state["lacking"] for state in templates.values()),
        "executed": sum(tally.passed + len(tally.failed) for tally in tallies),
        "failed": sum(len(tally.failed) for tally in tallies),
        "causes": dict(Counter(finding["cause"] for finding in findings)),
        "findings": findings,
        "seconds": sum(tally.seconds for tally in tallies),
    }


def _state(subject: Subject) -> dict[str, Any]:
    lacking = subject.lacking()
    return {
        "operator": subject.problem.operator.name,
        "workload": subject.problem.workload,
        "arch": subject.target.arch,
        "configs": len(subject.configs),
        "lacking": len(lacking),
        "first": [dict(config) for config in lacking[:SHOWN]],
        "passed": dict(sorted(subject.passed().items())),
    }


def _show(document: dict[str, Any]) -> None:
    for name, state in document["templates"].items():
        places = ", ".join(f"{place} {count}" for place, count in state["passed"].items())
        executed = state["configs"] - state["lacking"]
        about = f"{state['operator']} at {state['workload']}, {state['arch']}"
        click.echo(
            f"{name}: {executed} of {state['configs']} executed ({about}){': ' * bool(places)}{places}"
        )
        for config in state["first"]:
            click.echo("  lacks " + ",".join(f"{key}={value}" for key, value in config.items()))
        if state["lacking"] > len(state["first"]):
            click.echo(f"  and {state['lacking'] - len(state['first'])} more")
    for cause, count in document["causes"].items():
        click.echo(f"{cause}: {count}")
        for finding in [f for f in document["findings"] if f["cause"] == cause][:SHOWN]:
            config = ",".join(f"{key}={value}" for key, value in finding["config"].items())
            click.echo(f"  {finding['template']} {config}\n    {finding['case']} ({finding['build']})")
            click.echo(f"    {finding['text']}")
