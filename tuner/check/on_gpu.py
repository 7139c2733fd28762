# SPDX-License-Identifier: Apache-2.0
"""Executes many instantiations on this machine's GPU: compiled on all cores, verified one at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...codegen.compile import Artifact, Cache
from ...codegen.compile.pool import CompilePool, CompileRequest
from ...codegen.errors import CompileError, TargetUnavailable
from ..client import WorkerClient
from ..request import trial_request
from ..shapes import elements, ragged_problems
from .instantiations import Instantiation, Subject
from .run import Checked, Fault, refused

if TYPE_CHECKING:
    from ...codegen.settings import Settings
    from ...codegen.target import Target

CHECK_LIMIT_S = 60.0
"""For all launches of one variant at small shapes: a hang, not a slow kernel."""
_WAITING_PER_JOB = 2


@dataclass(frozen=True)
class _Compiled:
    one: Instantiation
    result: Artifact | CompileError


def execute_on_gpu(
    subject: Subject, todo: Iterable[Instantiation], gpu: Target, settings: Settings
) -> Generator[tuple[Instantiation, Checked]]:
    """Compiles and verifies instantiations, and gives each as it is done, in no order.

    Each is verified like a tuned variant: every kind of inputs at every ragged shape, poisoned and guarded
    memory, a second run that must agree; not at the workload, and not timed. One that crashes or hangs costs
    its worker process.

    Args:
        subject: What they are of.
        todo: Rendered as they are asked for; when it ends early, so does the work.
        gpu: This machine's (`detect`).
        settings: How many to compile at once.

    Raises:
        TargetUnavailable: The GPU is of another architecture.
        ColdforgeError: No compiler; no worker.
    """
    if gpu.arch != subject.target.arch:
        raise TargetUnavailable(
            f"{subject.space.name}: its instantiations are for {subject.target.arch}, this GPU is {gpu.arch}"
        )
    # The worker's study is of a small shape: the checks of that are all that is wanted.
    shapes = {p.precision: max(ragged_problems(p), key=elements) for p in subject.classes}
    with WorkerClient(gpu, settings) as client, closing(_compiled(subject, todo, settings)) as ready:
        for compiled in ready:
            started = time.perf_counter()
            one, faults = compiled.one, ()
            if isinstance(compiled.result, CompileError):
                faults = (refused(compiled.result, one.source, subject.space, gpu.device),)
            else:
                small = shapes[subject.problem_of(one.config).precision]
                request = trial_request(
                    subject.space, small, one.config, compiled.result, roots=subject.roots
                )
                result = client.check(request, CHECK_LIMIT_S)
                if not result.ok:
                    faults = (Fault(result.outcome.value, result.reason, gpu.device, "verifying"),)
            yield one, Checked(subject.space, one.config, time.perf_counter() - started, faults)


def _compiled(subject: Subject, todo: Iterable[Instantiation], settings: Settings) -> Generator[_Compiled]:
    """Compiles in a thread of its own, so that the processes never wait for a verification."""
    ready: queue.Queue[_Compiled | BaseException | None] = queue.Queue(_WAITING_PER_JOB * settings.jobs)
    stop = threading.Event()
    feeder = threading.Thread(target=_feed, args=(subject, todo, settings, ready, stop), daemon=True)
    feeder.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        while feeder.is_alive():  # it may be waiting for room
            try:
                ready.get(timeout=0.1)
            except queue.Empty:
                continue


def _feed(
    subject: Subject,
    todo: Iterable[Instantiation],
    settings: Settings,
    ready: queue.Queue[_Compiled | BaseException | None],
    stop: threading.Event,
) -> None:
    taken: list[Instantiation] = []

    def requests() -> Iterator[CompileRequest]:
        for one in todo:
            if stop.is_set():
                return
            taken.append(one)
            yield CompileRequest(one.source, subject.target)

    try:
        with CompilePool(Cache(settings.home / "cache"), settings.jobs) as pool:
            for index, result in pool.compile(requests()):
                ready.put(_Compiled(taken[index], result))
                if stop.is_set():
                    break
        ready.put(None)
    except BaseException as error:
        ready.put(error)
