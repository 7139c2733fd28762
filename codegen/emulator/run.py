# SPDX-License-Identifier: Apache-2.0
"""Running a compiled kernel in a process of its own, and reading what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compile.cache import Cache
from ..compile.process import Ended, run_group
from ..errors import ColdforgeError, InputError
from ..settings import load_settings
from ..space import Launch
from .build import kernel_library, runner
from .findings import Actor, Finding
from .job import Array, Call, encode, from_bytes
from .lines import LineMap, frames
from .source import defined_entries

if TYPE_CHECKING:
    from ..render import KernelSource

SPARE_S, SPARE_FACTOR = 20.0, 5.0
"""The time limits count processor time; a busy machine may take this much more."""


@dataclass(frozen=True)
class Emulation:
    """What one call came to.

    Attributes:
        outputs: by name, the arrays of role "output" and "updated", as the kernel left them; empty when it
            was stopped.
        findings: what was found, in order.
        seconds: what the kernels took; 0 when they were stopped.
    """

    outputs: dict[str, Any]
    findings: tuple[Finding, ...]
    seconds: float


def emulate(
    source: KernelSource,
    launch: Launch,
    arrays: Sequence[Array | None],
    sizes: Sequence[int] = (),
    scalars: Sequence[float] = (),
    *,
    build: str = "asan",
    order: str = "forward",
    time_limit_s: float = 20.0,
    cache: Cache | None = None,
) -> Emulation:
    """Runs one call of a CUDA variant on the CPU; see `emulate_calls`."""
    call = Call(launch, arrays, sizes, scalars, order, time_limit_s)
    return emulate_calls(source, [call], build=build, cache=cache)[0]


def emulate_calls(
    source: KernelSource,
    calls: Sequence[Call],
    *,
    build: str = "asan",
    cache: Cache | None = None,
    template: Path | None = None,
) -> list[Emulation]:
    """Runs calls of a CUDA variant on the CPU, several in one process.

    Args:
        source: The text that NVRTC would get.
        calls: One after another; what a call finds does not keep the others from running.
        build: "plain", "asan" or "race": what is looked for (`build.BUILDS`).
        cache: Where compiled kernels are kept; the settings' home when not given.
        template: The template's file, for its line numbers.

    Returns:
        What each call came to, in order.

    Raises:
        ColdforgeError: The emulator itself failed.
        CompileError: g++ refused the text.
        InputError: A launch that asks for a kernel which the source lacks; an unknown build.
        ToolMissing: There is no g++.
    """
    entries = defined_entries(source.text)
    for call in calls:
        wanted = ("coldforge_kernel", *(("coldforge_finish",) if call.launch.finish_grid else ()))
        for name in wanted:
            if name not in entries:
                raise InputError(f"{source.name} has no kernel {name}, and its launch asks for it")
    where = cache or Cache(load_settings().home / "cache")
    library = kernel_library(source, build, where, template=template).path
    program = runner(build, where).path
    results: list[Emulation] = []
    while len(results) < len(calls):
        results += _run(program, library, calls[len(results) :])
    return _with_places(results, library, LineMap(source.text, template))


def _run(program: Path, library: Path, calls: Sequence[Call]) -> list[Emulation]:
    """Runs calls in one process until one is stopped; at least one result comes back."""
    limit_s = SPARE_FACTOR * sum(call.time_limit_s for call in calls) + SPARE_S
    started = time.perf_counter()
    try:
        ended = run_group([str(program)], library.parent, limit_s, feed=encode(str(library), calls))
    except OSError as error:
        raise ColdforgeError(f"cannot run the emulator: {error.strerror or error}") from error
    if ended.status == 2:
        raise ColdforgeError(ended.errors.decode("utf-8", "replace").strip() or "the emulator failed")
    results, rest, stopped = _read(ended.output, calls)
    if len(results) < len(calls):
        found = rest if stopped else (*rest, _abnormal(ended, time.perf_counter() - started))
        results.append(Emulation({}, found, 0.0))
    return results


def _read(reply: bytes, calls: Sequence[Call]) -> tuple[list[Emulation], tuple[Finding, ...], bool]:
    """The finished calls; the findings of the unfinished one; whether it was stopped in good order."""
    results: list[Emulation] = []
    findings: list[Finding] = []
    outputs: dict[str, Any] = {}
    position = 0
    while (end := reply.find(b"\n", position)) >= 0:
        word, _, rest = reply[position:end].decode().partition(" ")
        position = end + 1
        if word == "finding":
            findings.append(_finding(json.loads(rest)))
        elif word == "array":
            index, count = (int(number) for number in rest.split())
            array = calls[len(results)].present[index]
            outputs[array.name] = from_bytes(reply[position : position + count], array.value)
            position += count
        elif word == "done":
            results.append(Emulation(outputs, tuple(findings), float(rest)))
            findings, outputs = [], {}
        elif word == "stopped":
            return results, tuple(findings), True
    return results, tuple(findings), False


def _abnormal(ended: Ended, seconds: float) -> Finding:
    kind = "time_limit" if ended.status is None else "crash"
    lines = ended.errors.decode("utf-8", "replace").strip().splitlines()
    detail = f"the emulator ended with status {ended.status} after {seconds:.1f} s"
    return Finding(kind, "; ".join((detail, *lines[:1])), "", "", 0, 0, 0, False, Actor(-1, -1))


@dataclass(frozen=True)
class _RawActor(Actor):
    """An actor whose place is not looked up yet.

    Attributes:
        pc: an address in the library; -1 where file and line are known.
    """

    pc: int = -1
    file: str = ""
    line: int = 0


def _finding(raw: dict[str, Any]) -> Finding:
    other = _actor(raw.pop("other")) if "other" in raw else None
    return Finding(actor=_actor(raw.pop("actor")), other=other, **raw)


def _actor(raw: dict[str, Any]) -> _RawActor:
    return _RawActor(raw["block"], raw["thread"], (), raw["pc"], raw["file"], raw["line"])


def _with_places(results: list[Emulation], library: Path, lines: LineMap) -> list[Emulation]:
    """Addresses replaced by the lines that they stand for."""
    actors = [a for r in results for f in r.findings for a in (f.actor, f.other) if isinstance(a, _RawActor)]
    known = frames(library, (actor.pc for actor in actors if actor.pc >= 0))

    def placed(actor: Actor | None) -> Actor | None:
        if not isinstance(actor, _RawActor):
            return actor
        own = ((actor.file, actor.line),) if actor.file else known.get(actor.pc, ())
        return Actor(actor.block, actor.thread, tuple(lines.place(*each) for each in own))

    def finished(finding: Finding) -> Finding:
        return replace(finding, actor=placed(finding.actor), other=placed(finding.other))

    return [replace(r, findings=tuple(finished(f) for f in r.findings)) for r in results]
