# SPDX-License-Identifier: Apache-2.0
"""What a run is told and given: how far to search, and what with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for_any

from .interrupts import Interrupts
from .limits import DEFAULT_TRIALS, SPILL_LIMIT_BYTES, TIME
from .progress import Progress
from .search import Sibling
from .stream import Wait
from .tools import Compiler, Measurer, NoRecord, Record


@dataclass(frozen=True)
class TuneOptions:
    """How far and how to search.

    Attributes:
        trials: the study's total of distinct finished configs; no limit when None.
        time_budget_s: seconds of searching in this run; no limit when None.
        sampler: its name; the default one when None.
        seed: of the sampler's random draws.
        finalists: configs that are timed again at the end, the defaults not counted.
        objective: what the finals are decided by.
        spill_limit_bytes: a config whose kernel spills more is not run; every one is when None.
        sibling: what another study found, to begin with.
        first: points to try first, after the defaults.
        finals: whether to hold them when the search has ended.
        salt: what tells this run's random draws from those of others with the same seed.
    """

    trials: int | None = DEFAULT_TRIALS
    time_budget_s: float | None = None
    sampler: str | None = None
    seed: int = 0
    finalists: int = 8
    objective: str = TIME
    spill_limit_bytes: int | None = SPILL_LIMIT_BYTES
    sibling: Sibling | None = None
    first: tuple[int, ...] = ()
    finals: bool = True
    salt: tuple[int, ...] = ()


@dataclass(frozen=True)
class Equipment:
    """What a run works with.

    Attributes:
        guard: entered by the caller, and kept until it has said how the run ended.
        record: of what is being tried.
        clock: seconds.
        wait: for compiler and measurer.
    """

    compiler: Compiler
    measurer: Measurer
    progress: Progress
    guard: Interrupts
    record: Record = field(default_factory=NoRecord)
    clock: Callable[[], float] = time.monotonic
    wait: Wait = wait_for_any
