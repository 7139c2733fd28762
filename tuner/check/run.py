# SPDX-License-Identifier: Apache-2.0
"""Executes configs in the emulator, several at a time, and says what is wrong with each."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from ...codegen.compile import Cache
from ...codegen.compile.process import Leash
from ...codegen.emulator import Call, Emulation, Finding, Place, emulate_calls, unset_reads, variant_call
from ...codegen.emulator.lines import LineMap, quoted
from ...codegen.errors import CompileError
from ...codegen.render import KernelSource, render
from ...codegen.space import Config, Space
from ...codegen.target import Target
from ..bound import judge
from .cases import Case

BUILDS = ("asan", "race")
MOST_THREADS = 700_000
"""Of a config's launches together: a thread takes about a microsecond beside its arithmetic."""
ALWAYS = 3
"""Launches of a config that are made whatever they cost: the smallest in each order of threads."""


@dataclass(frozen=True)
class Fault:
    """Something wrong with a config.

    Attributes:
        cause: a kind of finding (`emulator.findings.MEANINGS`), "wrong_result" or "compile_error".
        text: one line.
        build: the emulator's build that saw it.
        case: the shape, inputs and order, or what else was being done.
        finding: of the emulator; None for the two other causes.
        refused_at: where a compiler refused it; None where that is not known, and for other causes.
    """

    cause: str
    text: str
    build: str
    case: str
    finding: Finding | None = None
    refused_at: Place | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        place = self.finding.place if self.finding else self.refused_at
        where = (
            {} if place is None else {"file": place.file, "line": place.line, "rendered": place.rendered_line}
        )
        return {"cause": self.cause, "text": self.text, "build": self.build, "case": self.case, **where}


@dataclass(frozen=True)
class Checked:
    """A config that was executed.

    Attributes:
        faults: empty when it is right.
        seconds: what compiling and running took.
    """

    space: Space
    config: Config
    seconds: float
    faults: tuple[Fault, ...] = field(default=())


def check_config(
    space: Space, config: Config, target: Target, cases: Sequence[Case], cache: Cache
) -> Checked:
    """Runs every case of one config in each of BUILDS."""
    started = time.perf_counter()
    source = render(space, cases[0].problem, config, target)
    calls = [
        variant_call(space, case.problem, config, case.device(target), case.tensors, order=case.order)
        for case in cases
    ]
    cases, calls = _affordable(cases, calls)
    faults: list[Fault] = []
    try:
        faults += _unset(source, space)
    except CompileError as error:
        faults.append(refused(error, source, space, "static"))
        return Checked(space, config, time.perf_counter() - started, tuple(faults))
    for build in BUILDS:
        try:
            results = emulate_calls(source, calls, build=build, cache=cache, template=space.file)
        except CompileError as error:
            faults.append(refused(error, source, space, build))
            break
        for case, result in zip(cases, results, strict=True):
            faults += _faults(case, result, build)
    return Checked(space, config, time.perf_counter() - started, tuple(faults))


def _unset(source: KernelSource, space: Space) -> list[Fault]:
    """What may be read before it is set, at the line of the template or header."""
    found = []
    for said in unset_reads(source, space.file):
        text, place = LineMap(source.text, space.file).told(said, said)
        found.append(Fault("uninitialised", text, "static", "compiling", refused_at=place))
    return found


def refused(error: CompileError, source: KernelSource, space: Space, build: str) -> Fault:
    """What a compiler said, at the line of the template or header."""
    text, place = quoted(error, source, space.file)
    return Fault("compile_error", text, build, "compiling", refused_at=place)


def _affordable(cases: Sequence[Case], calls: Sequence[Call]) -> tuple[list[Case], list[Call]]:
    """Leaves out the largest launches where all would take seconds, but never the smallest ALWAYS."""
    kept: list[int] = []
    threads = 0
    for index in sorted(range(len(calls)), key=lambda index: _threads(calls[index])):
        threads += _threads(calls[index])
        if len(kept) < ALWAYS or threads <= MOST_THREADS:
            kept.append(index)
    return [cases[index] for index in sorted(kept)], [calls[index] for index in sorted(kept)]


def _threads(call: Call) -> int:
    launch = call.launch
    return launch.grid * launch.block + launch.finish_grid * launch.finish_block


def _faults(case: Case, result: Emulation, build: str) -> list[Fault]:
    found = [Fault(f.kind, str(f), build, case.name, f) for f in result.findings]
    output = result.outputs.get(case.problem.output.name)
    if output is None:
        return found
    judgement = judge(output, case.expected)
    if judgement.wrong:
        text = (
            f"{judgement.wrong} of {output.numel()} outputs are wrong; worst at {list(judgement.worst)}: "
            f"{judgement.got:.9g} instead of {judgement.want:.9g}"
        )
        found.append(Fault("wrong_result", text, build, case.name))
    return found


def check_configs(
    work: Sequence[tuple[Space, Config, Target, Sequence[Case]]], cache: Cache, jobs: int
) -> Generator[Checked]:
    """Checks configs, `jobs` at a time, and gives each as it is done. Compilers and kernels are processes of
    their own, so threads are enough to keep them busy; leaving early (`close`, Ctrl-C) kills them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # what is judged is small, and the cores are taken
    leash = Leash()
    pool = ThreadPoolExecutor(max_workers=max(1, jobs), initializer=leash.take)
    try:
        pending = [pool.submit(check_config, *each, cache) for each in work]
        for done in as_completed(pending):
            yield done.result()
    finally:
        leash.pull()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(before)
