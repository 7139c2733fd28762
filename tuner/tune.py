# SPDX-License-Identifier: Apache-2.0
"""The tuning loop: ask, compile, time, record, until enough configs are finished; then the finals.

Outcomes are values: a variant that does not compile, is wrong, hangs or crashes is recorded and the loop
    goes on. Each
outcome is committed at once, so that any end (Ctrl-C, a kill, a power cut) keeps what was finished, and the
same command continues from there.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from ..codegen.compile import Artifact
from ..codegen.errors import CompileError
from .finals import Finals, choose_finalists, decide, keep_provisional
from .interrupts import Interrupts
from .outcome import TrialOutcome, TrialResult
from .plan import Plan
from .progress import Progress, Snapshot
from .search import DEFAULT_SAMPLER, FeasibleSet, Point, Search, sampler_named
from .study import Study, finished_count, tally
from .tools import Compiler, Job, Measurer

DEFAULT_TRIALS = 200
# Outcomes that the machine code decides: the same code has them again. A time limit or a crash may be bad
# luck.
_REPEATABLE = (TrialOutcome.OK, TrialOutcome.WRONG_RESULT)


@dataclass(frozen=True)
class TuneOptions:
    """How far and how to search.

    Attributes:
        trials: the study's total of distinct finished configs; no limit when None.
        time_budget_s: seconds of searching in this run; no limit when None.
        sampler: its name; the default one when None.
        seed: of the sampler's random draws.
        batch: configs asked for and compiled together.
        finalists: configs that are timed again at the end, the defaults not counted.
    """

    trials: int | None = DEFAULT_TRIALS
    time_budget_s: float | None = None
    sampler: str | None = None
    seed: int = 0
    batch: int = 1
    finalists: int = 8


@dataclass
class RunCounts:
    """What this run did.

    Attributes:
        added: finished configs recorded.
        reused: of those, recorded without timing because their machine code was timed before.
        compile_s, measure_s: seconds spent.
    """

    added: int = 0
    reused: int = 0
    compile_s: float = 0.0
    measure_s: float = 0.0


class Tuner:
    """One run on one study. Use `run` once."""

    def __init__(
        self,
        plan: Plan,
        study: Study,
        feasible: FeasibleSet,
        compiler: Compiler,
        measurer: Measurer,
        progress: Progress,
        options: TuneOptions,
        guard: Interrupts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Rebuilds the sampler from the study; touches no compiler and no device.

        Args:
            feasible: the plan's feasible set, fresh; this run marks in it what was seen.
            guard: entered by the caller, and kept until it has said how the run ended.

        Raises:
            UnknownName: no such sampler.
        """
        self.plan, self.study, self.options = plan, study, options
        self.counts = RunCounts()
        self._compiler, self._measurer, self._progress = compiler, measurer, progress
        self._guard, self._clock = guard, clock
        self._started = clock()
        self.feasible = feasible
        self.sampler = options.sampler or DEFAULT_SAMPLER
        self._search = Search(feasible, sampler_named(self.sampler), study.trials(), options.seed)
        self._results = study.results()
        self._by_code = {key: r for r in reversed(self._results) if (key := _code_key(r)) is not None}
        self._provisional: tuple[Job, TrialResult] | None = None  # the best, when this run found it

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return self._clock() - self._started

    @property
    def results(self) -> list[TrialResult]:
        """Every result of the study, this run's included."""
        return self._results

    def run(self) -> str:
        """Searches, holds the finals, and stores the winner.

        Returns:
            ``ok``, ``stopped`` (interrupted) or ``failed`` (no variant works).

        Raises:
            ColdforgeError: not a variant but the machine is at fault (no compiler, no device, full disk).
        """
        try:
            self.study.touch()
            self._search_all()
            if self._best() is None:
                return "failed"
            self._finals()
            return "ok"
        except KeyboardInterrupt:
            with self._guard.shielded():
                if self._provisional is not None:
                    keep_provisional(self.plan, self.study, *self._provisional)
            return "stopped"
        finally:
            self._progress.close()

    def _search_all(self) -> None:
        candidates = self._candidates()
        try:
            for index, candidate in candidates:
                self._show("timing")
                began = self._clock()
                result = self._judge(candidate)
                self.counts.measure_s += self._clock() - began
                with self._guard.shielded():
                    self._record(index, result, candidate)
                self._show("timing")
                if self._out_of_time():
                    break
        finally:
            candidates.close()

    def _candidates(self) -> Generator[tuple[int, Job | TrialResult], None, None]:
        """The points to judge, each compiled, or with the result that spared it.

        A batch is compiled whole before any of it is yielded, so that no compiler disturbs a timing.
        Overlapping the two is a change of this function alone.
        """
        while (wanted := self._wanted()) > 0:
            batch = self._search.ask(wanted)
            if not batch:
                return
            compiled: dict[int, Job | TrialResult] = {}
            try:
                self._show("compiling")
                compiled = self._compile(batch)
                for index in list(batch):
                    yield index, compiled[index]
                    batch.remove(index)
            finally:
                for index in batch:
                    if index in self._search.pending:
                        self._search.withdraw(index)

    def _wanted(self) -> int:
        """How many points the next batch has."""
        if self._out_of_time():
            return 0
        self._catch_up()
        if self.options.trials is None:
            return self.options.batch
        return min(self.options.batch, self.options.trials - finished_count(self._results))

    def _catch_up(self) -> None:
        """Takes in what another run on this study stored meanwhile, so that the two share the work."""
        trials = self.study.trials()
        if len(trials) > len(self._results):
            self._search.learn(trials)
            self._results = self.study.results()

    def _out_of_time(self) -> bool:
        budget = self.options.time_budget_s
        return budget is not None and self.seconds >= budget

    def _compile(self, batch: list[int]) -> dict[int, Job | TrialResult]:
        began = self._clock()
        points = [self.feasible.points[index] for index in batch]
        sources = [self.plan.source(point) for point in points]
        done: dict[int, Job | TrialResult] = {}
        for position, answer in self._compiler.compile(sources):
            point = points[position]
            if isinstance(answer, Artifact):
                done[batch[position]] = Job(point, sources[position], answer)
            else:
                done[batch[position]] = _not_compiled(point, answer)
        self.counts.compile_s += self._clock() - began
        return done

    def _judge(self, candidate: Job | TrialResult) -> TrialResult:
        if isinstance(candidate, TrialResult):
            return candidate
        artifact, point = candidate.artifact, candidate.point
        launch = self.plan.launch(point).to_dict()
        facts = {"launch": launch, "compile_s": artifact.seconds, "source_digest": candidate.source.digest}
        probe = TrialResult(TrialOutcome.OK, code_digest=artifact.code_digest, details=facts)
        key = _code_key(probe)
        known = self._by_code.get(key) if key else None
        if known is not None:
            self.counts.reused += 1
            same = Point(known.template, known.config).key
            details = {**known.details, **facts, "same_code_as": known.details.get("same_code_as", same)}
            return dataclasses.replace(
                known, template=point.template, config=point.config, seconds=0.0, details=details
            )
        best = self._best()
        result = self._measurer.measure(candidate, best.time_ms if best else None)
        return dataclasses.replace(
            result,
            template=point.template,
            config=point.config,
            code_digest=artifact.code_digest,
            resources=artifact.resources.to_dict(),
            details={**result.details, **facts},
        )

    def _record(self, index: int, result: TrialResult, candidate: Job | TrialResult) -> None:
        seconds = result.seconds + float(result.details.get("compile_s", 0.0))
        # Said of each: a result that came by its machine code has the details of another config.
        details = {**result.details, "default": index in self.feasible.defaults}
        result = dataclasses.replace(result, details=details)
        point = self.feasible.points[index]
        self.study.record(point, result, self.feasible.distributions_of(index), seconds)
        self._search.tell(index, result.time_ms if result.ok else None)
        self._results.append(result)
        self.counts.added += result.outcome is not TrialOutcome.ILLEGAL
        key = _code_key(result)
        if key is not None:
            self._by_code.setdefault(key, result)
        if isinstance(candidate, Job) and result is self._best():
            self._provisional = (candidate, result)

    def _best(self) -> TrialResult | None:
        timed = [r for r in self._results if r.ok and r.time_ms is not None]
        return min(timed, key=lambda r: r.time_ms or 0.0, default=None)

    def _finals(self) -> None:
        """Times the best again and stores the winner; nothing to do when no trial came since the last
        finals.
        """
        self._catch_up()
        if self.study.winner_is_current(len(self._results)):
            return
        self._show("finals")
        chosen = choose_finalists(self._results, self.plan, self.options.finalists)
        began = self._clock()
        jobs = self._finalist_jobs(chosen)
        self.counts.compile_s += self._clock() - began
        began = self._clock()
        finals = Finals(jobs, self._measurer.finals(jobs))
        self.counts.measure_s += self._clock() - began
        with self._guard.shielded():
            decide(self.plan, self.study, finals, len(self._results))

    def _finalist_jobs(self, points: list[Point]) -> list[Job]:
        """Compiled again through the cache: some may be from an earlier run."""
        sources = [self.plan.source(point) for point in points]
        compiled: dict[int, Job] = {}
        for position, answer in self._compiler.compile(sources):
            if isinstance(answer, CompileError):
                continue  # it compiled before; leave it out rather than lose the finals
            compiled[position] = Job(points[position], sources[position], answer)
        return [compiled[position] for position in sorted(compiled)]

    def _show(self, phase: str) -> None:
        best = self._best()
        snapshot = Snapshot(
            phase=phase,
            done=finished_count(self._results),
            total=self._total(),
            added=self.counts.added,
            seconds=self.seconds,
            budget_s=self.options.time_budget_s,
            best=best,
            outcomes=tally(self._results),
        )
        self._progress.update(snapshot)

    def _total(self) -> int:
        limit = self.options.trials
        total = len(self.feasible) if limit is None else min(limit, len(self.feasible))
        return max(total, finished_count(self._results))  # an earlier run may have gone further

    def numbers(self) -> dict[str, Any]:
        """Counts and rates of this run, for the JSON."""
        counts, seconds = self.counts, self.seconds
        return {
            "seconds": round(seconds, 3),
            "added": counts.added,
            "reused_code": counts.reused,
            "finished": finished_count(self._results),
            "feasible_configs": len(self.feasible),
            "compile_seconds": round(counts.compile_s, 3),
            "measure_seconds": round(counts.measure_s, 3),
            "trials_per_minute": round(60.0 * counts.added / seconds, 2) if seconds > 0 else 0.0,
        }


def _not_compiled(point: Point, error: CompileError) -> TrialResult:
    reason = " ".join(str(error).split())
    return TrialResult(TrialOutcome.COMPILE_ERROR, reason, template=point.template, config=point.config)


def _code_key(result: TrialResult) -> tuple[Any, ...] | None:
    """What decides a result: machine code and launch geometry. None where the result would not repeat."""
    launch = result.details.get("launch")
    if result.outcome not in _REPEATABLE or not result.code_digest or not launch:
        return None
    return (result.code_digest, *sorted(launch.items()))
