# SPDX-License-Identifier: Apache-2.0
"""Results that need no device: of configs whose machine code was timed before, or that a rule leaves out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..codegen.compile import Resources
from ..codegen.emulator.lines import quoted
from ..codegen.errors import ColdforgeError, CompileError, DeclarationError
from ..codegen.render import KernelSource
from .accounts import RunCounts
from .outcome import TrialOutcome, TrialResult
from .plan import Plan
from .search import Point
from .study import SPILLED
from .tools import Job

# Outcomes that the machine code decides: the same code has them again. A time limit, a crash, and memory that
# lacks, may be bad luck.
_REPEATABLE = (TrialOutcome.OK, TrialOutcome.WRONG_RESULT)
_SUSPECT = "the tuner ended twice while it ran"

Facts = Mapping[str, Any]
"""Of a compiled config: ``launch``, ``compile_s``, ``source_digest``."""


class KnownCode:
    """Results by machine code and launch geometry, of everything that was judged."""

    def __init__(self, results: Iterable[TrialResult] = ()) -> None:
        self._by_code: dict[tuple[Any, ...], TrialResult] = {}
        for result in results:
            self.learn(result)

    def learn(self, result: TrialResult) -> None:
        """Remembers a result, the first of each code."""
        key = _key(result.code_digest, result.details.get("launch"))
        if key is not None and result.outcome in _REPEATABLE:
            self._by_code.setdefault(key, result)

    def result_for(self, job: Job, facts: Facts) -> TrialResult | None:
        """The result that a config shares with one of the same machine code; None when there is none."""
        key = _key(job.artifact.code_digest, facts["launch"])
        known = None if key is None else self._by_code.get(key)
        if known is None:
            return None
        same = Point(known.template, known.config).key
        details = {**known.details, **facts, "same_code_as": known.details.get("same_code_as", same)}
        point = job.point
        return dataclasses.replace(
            known, template=point.template, config=point.config, seconds=0.0, details=details
        )


def _key(code_digest: str, launch: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
    return (code_digest, *sorted(launch.items())) if code_digest and launch else None


def heavy_spill(resources: Resources, limit_bytes: int | None) -> TrialResult | None:
    """The result of a kernel that spills too much to be run; None when it may be."""
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    if limit_bytes is None or spilled <= limit_bytes:
        return None
    reason = f"not run: its registers spill {spilled} bytes a thread (stores and loads), over {limit_bytes}"
    return TrialResult(TrialOutcome.RESOURCE_LIMIT, reason, details={SPILLED: spilled})


def not_compiled(point: Point, error: ColdforgeError | str) -> TrialResult:
    """The result of a config whose source does not render or does not compile."""
    reason = " ".join(str(error).split())
    return TrialResult(TrialOutcome.COMPILE_ERROR, reason, template=point.template, config=point.config)


def given_up(point: Point) -> TrialResult:
    """The result of a config that is not tried again, as tuners died of it."""
    return TrialResult(TrialOutcome.CRASH, _SUSPECT, template=point.template, config=point.config)


def completed(result: TrialResult, job: Job, facts: Facts) -> TrialResult:
    """A result with all that is known of its config."""
    return dataclasses.replace(
        result,
        template=job.point.template,
        config=job.point.config,
        code_digest=job.artifact.code_digest,
        resources=job.artifact.resources.to_dict(),
        details={**result.details, **facts},
    )


class Shortcuts:
    """Results of compiled configs that need not run.

    Args:
        plan: the study's subject.
        defaults: indices of configs that run whatever they spill.
        spill_limit_bytes: a config whose kernel spills more is not run; every one is when None.
        counts: of the run.

    Attributes:
        known: results by machine code; takes in those of the study and of the run.
    """

    def __init__(
        self,
        plan: Plan,
        defaults: Collection[int],
        spill_limit_bytes: int | None,
        counts: RunCounts,
    ) -> None:
        self._plan, self._defaults, self._counts = plan, defaults, counts
        self._limit_bytes = spill_limit_bytes
        self.known = KnownCode()

    def result_for(self, index: int, job: Job) -> TrialResult | None:
        """The result of a config that need not run; None when it must.

        Args:
            index: of the config in the feasible set.
        """
        try:
            facts = self.facts(job)
        except DeclarationError as error:
            return not_compiled(job.point, error)
        known = self.known.result_for(job, facts)
        if known is not None:
            self._counts.reused += 1
            return known
        if index in self._defaults:
            return None
        skipped = heavy_spill(job.artifact.resources, self._limit_bytes)
        if skipped is None:
            return None
        self._counts.skipped_spilling += 1
        return completed(skipped, job, facts)

    def refused(self, point: Point, source: KernelSource | None, error: CompileError) -> TrialResult:
        """The result of a config that the compiler refused, in the lines of its template."""
        if source is None:
            return not_compiled(point, error)
        return not_compiled(point, quoted(error, source, self._plan.spaces[point.template].file)[0])

    def facts(self, job: Job) -> dict[str, Any]:
        """What is known of a compiled config before it runs."""
        return {
            "launch": self._plan.launch(job.point).to_dict(),
            "compile_s": job.artifact.seconds,
            "source_digest": job.source.digest,
        }
