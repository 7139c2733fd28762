# SPDX-License-Identifier: Apache-2.0
"""What `tune` and `worker` share: the tools of a command, and one run with them on one study."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...codegen.settings import Settings
from ...codegen.target import Target

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from ...codegen.catalogue import Catalogue
    from ..backends import PoolCompiler
    from ..client import WorkerClient
    from ..equipment import TuneOptions
    from ..interrupts import Interrupts
    from ..plan import Plan
    from ..progress import Progress
    from ..search import FeasibleSet
    from ..study import Study
    from ..tune import Tuner


@dataclass(frozen=True)
class Tools:
    """What all runs of a command work with."""

    settings: Settings
    storage: BaseStorage
    compiler: PoolCompiler
    client: WorkerClient
    guard: Interrupts


@contextlib.contextmanager
def tools_for(target: Target, settings: Settings, storage: BaseStorage) -> Iterator[Tools]:
    """The tools, put away at the end; faults of the storage are one line.

    Raises:
        ColdforgeError: the storage failed.
    """
    from ..backends import PoolCompiler
    from ..client import WorkerClient
    from ..interrupts import Interrupts
    from ..storage import storage_faults

    with Interrupts() as guard, storage_faults(storage):
        compiler = PoolCompiler(target, settings)
        hush, unhush = compiler.hush, compiler.unhush
        client = WorkerClient(target, settings, spare=True, hush=hush, unhush=unhush)
        try:
            yield Tools(settings, storage, compiler, client, guard)
        finally:
            with guard.shielded():
                client.close()
                compiler.close()


def run_study(
    tools: Tools,
    catalogue: Catalogue,
    plan: Plan,
    study: Study,
    feasible: FeasibleSet,
    options: TuneOptions,
    progress: Progress,
) -> tuple[str, Tuner]:
    """One run: its status (see `Tuner.run`), and the tuner that knows the rest.

    Raises:
        ColdforgeError: see `Tuner.run`.
    """
    from ..backends import WorkerMeasurer
    from ..equipment import Equipment
    from ..records import sharing
    from ..tune import Tuner

    measurer = WorkerMeasurer(tools.client, plan, catalogue.roots[1:])
    with sharing(tools.storage, tools.settings.home, study, feasible, tools.guard) as (shared, record):
        equipment = Equipment(tools.compiler, measurer, progress, tools.guard, record)
        tuner = Tuner(plan, shared, feasible, equipment, options)
        return tuner.run(), tuner


def worker_words(
    study: Study, storage: str | None, warm_start: str | None, templates: Sequence[str] = ()
) -> list[str]:
    """The arguments of `coldforge worker` for this machine's other devices."""
    from ..shared.url import plain_url

    words = ["--study", study.name]
    words += [] if storage is None else ["--storage", plain_url(storage)]
    words += [] if warm_start is None else ["--warm-start", warm_start]
    return words + [word for folder in templates for word in ("--templates", os.path.abspath(folder))]
