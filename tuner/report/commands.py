# SPDX-License-Identifier: Apache-2.0
"""The commands that make a study again, and go on from it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from .declared import Declared
from .material import Material


@dataclass(frozen=True)
class Step:
    """A command and what it does."""

    what: str
    command: str


def commands_of(material: Material, declared: Declared, *, shared: bool) -> tuple[list[Step], list[str]]:
    """The commands, and what they leave open.

    A path of this machine is never among them, nor a database's address: a report travels.

    Args:
        shared: the study is in a database of its own, which some commands have to be told.
    """
    summary, notes = material.summary, list[str]()
    operator, target = summary["operator"], summary["target"]
    which = _problem_options(material, declared, notes)
    own = [] if declared.builtin else ["--templates", "DIR"]
    if own:
        notes.append("DIR is the folder with the operator's declarations.")
    kept = ["--storage", "URL"] if shared else []
    if kept:
        notes.append("URL is the database that holds the study.")
    only = _template_option(material, declared)
    tune = ["tune", operator, "--target", target, *which, *only, "--trials", str(summary["finished"]), *own]
    steps = [Step("Tune: a study of these trials, on such a device", _line(tune))]
    steps.append(Step("Look at the study on the terminal", _line(["show", summary["study"], *kept])))
    if best := material.best:
        chosen = [word for name, value in best["config"].items() for word in ("--set", f"{name}={value}")]
        place = ["--target", target, "--arch", summary["arch"], "--template", best["template"]]
        render = ["render", operator, *place, *which, *own, *chosen]
        steps.append(Step("Print the winner's source", _line(render)))
        package = [] if declared.builtin else ["--package", "my_kernels", "--out", "build"]
        steps.append(Step("Freeze the winner", _line(["freeze", operator, *package, *kept])))
        bench = ["bench", operator, "--target", target, *which, *own, *package]
        steps.append(Step("Time the frozen kernel against PyTorch", _line(bench)))
    notes.append("The sampler's seed is no part of a study: another run may try other configs.")
    return steps, notes


def _problem_options(material: Material, declared: Declared, notes: list[str]) -> list[str]:
    problem = material.about["problem"]
    workload = str(material.summary["workload"])
    # Named even where it is the default one: which that is may change, and hangs on the target.
    options = ["--workload", workload.rstrip("+")] if workload.rstrip("+") else []
    overrides = declared.overrides()
    if overrides is None and (workload.endswith("+") or declared.problem is not None):
        notes.append("The study's sizes are not those of the named workload; they stand at the top.")
    if overrides:
        options += ["--shape", ",".join(f"{name}={size}" for name, size in overrides.items())]
    if problem["dtype"] != "fp32":
        options += ["--dtype", problem["dtype"]]
    if material.summary["precision"] != problem["dtype"]:
        options += ["--precision", material.summary["precision"]]
    return options


def _template_option(material: Material, declared: Declared) -> list[str]:
    spanned = material.summary["templates"]
    return ["--template", spanned[0]] if len(spanned) == 1 and declared.templates() != spanned else []


def _line(words: list[str]) -> str:
    return shlex.join(["coldforge", *words])
