# SPDX-License-Identifier: Apache-2.0
"""Executes what a ledger lacks, in the emulator or on a GPU, and records each pass at once."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...codegen.compile import Cache
from ...codegen.compile.process import Leash
from ...codegen.emulator.build import kernel_library, runner
from .cases import Case, build_cases
from .instantiations import Instantiation, Subject
from .ledger import EMULATOR
from .run import BUILDS, Checked, check_config

if TYPE_CHECKING:
    from ...codegen.settings import Settings
    from ...codegen.target import Target

Progress = Callable[[Checked], None]


@dataclass
class Tally:
    """What one run over a ledger came to.

    Attributes:
        place: where it ran.
        passed: how many were recorded.
        failed: those with faults, which are not recorded.
        remaining: how many the time did not suffice for.
        seconds: how long it took.
        worked_seconds: the time of each, added up.
    """

    place: str
    passed: int = 0
    failed: list[Checked] = field(default_factory=list)
    remaining: int = 0
    seconds: float = 0.0
    worked_seconds: float = 0.0

    def __str__(self) -> str:
        done = self.passed + len(self.failed)
        each = f", {self.worked_seconds / done:.3f} s each" if done else ""
        parts = [f"{self.passed} passed ({self.place}, {self.seconds / 60:.1f} min{each})"]
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        parts += [f"{self.remaining} remain to be executed"] if self.remaining else []
        return ", ".join(parts)


def fill(
    subject: Subject,
    settings: Settings,
    *,
    gpu: Target | None = None,
    everywhere: bool = False,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Tally:
    """Executes instantiations that the ledger lacks and records those that pass.

    A kill loses what was in flight; the next run goes on from there.

    Args:
        subject: the ledger's.
        settings: how many to compile or run at once.
        gpu: this machine's GPU, to run there; None: the emulator.
        everywhere: also those that passed at another place.
        seconds: none is begun after that; None: no limit.
        progress: is told of each.
    """
    started = time.monotonic()
    tally = Tally(gpu.device if gpu else EMULATOR)
    lacking = subject.lacking(tally.place if everywhere or gpu else None)
    begun, first = 0, time.monotonic()

    def in_time() -> Iterator[Instantiation]:
        nonlocal begun
        for config in lacking:
            if seconds is not None and time.monotonic() - first > seconds:
                return
            begun += 1
            yield subject.instantiation(config)

    if lacking:
        if gpu:
            results = _on_gpu(gpu, subject, in_time(), settings)
        else:
            results = _emulated(subject, in_time(), settings)
        try:
            with closing(results):
                for one, checked in results:
                    tally.worked_seconds += checked.seconds
                    if checked.faults:
                        tally.failed.append(checked)
                    else:
                        subject.ledger.record(one.config, one.digest, tally.place)
                        tally.passed += 1
                    if progress is not None:
                        progress(checked)
        finally:
            subject.ledger.tidy(subject.digests)
    tally.remaining, tally.seconds = len(lacking) - begun, time.monotonic() - started
    return tally


def _on_gpu(
    gpu: Target, subject: Subject, todo: Iterable[Instantiation], settings: Settings
) -> Generator[tuple[Instantiation, Checked]]:
    from .on_gpu import execute_on_gpu

    return execute_on_gpu(subject, todo, gpu, settings)


def _emulated(
    subject: Subject, todo: Iterable[Instantiation], settings: Settings
) -> Generator[tuple[Instantiation, Checked]]:
    """In the emulator, as many at once as there are jobs: compilers and kernels are processes of their own,
    so threads are enough; leaving early kills them."""
    cases: dict[str, tuple[Case, ...]] = {}
    running: dict[Future[Checked], Instantiation] = {}
    leash = Leash()

    def cases_of(one: Instantiation) -> tuple[Case, ...]:
        problem = subject.problem_of(one.config)
        if problem.precision not in cases:
            cases[problem.precision] = build_cases(problem, problem.precision)
        return cases[problem.precision]

    def finished() -> list[tuple[Instantiation, Checked]]:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        return [(running.pop(future), future.result()) for future in done]

    with (
        _passing_cache(Cache(settings.home / "cache")) as cache,
        ThreadPoolExecutor(max_workers=settings.jobs, initializer=leash.take) as pool,
    ):
        try:
            for one in todo:
                job = pool.submit(_emulate_one, subject, one, cases_of(one), cache)
                running[job] = one
                if len(running) >= settings.jobs:
                    yield from finished()
            while running:
                yield from finished()
        finally:
            leash.pull()
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _passing_cache(lasting: Cache) -> Generator[Cache]:
    """A cache for thousands of libraries that are used once: only the emulator itself is worth a place in the
    user's."""
    with tempfile.TemporaryDirectory(prefix="coldforge-check-") as folder:
        cache = Cache(Path(folder))
        for build in BUILDS:
            entry = runner(build, lasting).path.parent
            here = cache.entry_path(entry.name)
            here.parent.mkdir(exist_ok=True)
            here.symlink_to(entry)
        yield cache


def _emulate_one(subject: Subject, one: Instantiation, cases: Sequence[Case], cache: Cache) -> Checked:
    checked = check_config(subject.space, one.config, subject.target, cases, cache)
    for build in BUILDS if not checked.faults else ():
        shutil.rmtree(kernel_library(one.source, build, cache).path.parent, ignore_errors=True)
    return checked
