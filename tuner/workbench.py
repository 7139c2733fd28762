# SPDX-License-Identifier: Apache-2.0
"""The worker's hands: verify, time, verify again. Keeps the checks and timed inputs of the current study."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..codegen.catalogue import catalogue
from ..codegen.compile import Artifact
from ..codegen.errors import ColdforgeError, InputError
from ..codegen.problem import Problem
from ..codegen.space import Launch
from .beside import figures_beside
from .bound import judge
from .devices.base import Call, Device, LaunchRefused
from .examiner import Examiner
from .figures import CERTAIN, summed
from .floor import Ceilings, Floor, ceilings_of, floor_of, impossible, probed, raised, store
from .measure import INPUT_SETS, Timing, in_rounds, time_variant, warm_ms
from .outcome import TrialOutcome, TrialResult
from .request import TrialRequest
from .shapes import describe
from .timed_sets import TimedSet, run_on_other_inputs
from .verify import Checks, Verdict, abi_scalars, abi_sizes, build_checks

Quiet = Callable[[], AbstractContextManager[object]]
"""Makes the context in which something is timed."""


@dataclass(frozen=True)
class Study:
    """What all variants of one study share.

    Attributes:
        problem, precision: What is tuned.
        checks: All checks.
        examiner: Runs a variant through all of them.
        after: Runs it through those that follow a timing.
        timed: The inputs and outputs of timed calls.
    """

    problem: Problem
    precision: str
    checks: Checks
    examiner: Examiner
    after: Examiner
    timed: tuple[TimedSet, ...]


class Phases:
    """Seconds by phase of a trial."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Counts what its block takes under a name."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def to_dict(self) -> dict[str, float]:
        """Plain JSON, to a hundredth of a millisecond."""
        return {name: round(seconds, 5) for name, seconds in self.seconds.items()}


class Variant:
    """A loaded variant. Use as a context manager: it is unloaded at the end."""

    def __init__(self, device: Device, request: TrialRequest) -> None:
        self._device, self._request = device, request
        self._launches: dict[tuple[Any, ...], Launch] = {}
        self._kernel = device.load(Artifact.from_dict(request.artifact))

    def __enter__(self) -> Variant:
        return self

    def __exit__(self, *_: object) -> None:
        self._device.unload(self._kernel)

    def verify(self, study: Study, *, after_timing: bool = False) -> Verdict:
        """Runs the checks: all of them, or those that follow a timing."""
        examiner = study.after if after_timing else study.examiner
        return examiner.examine(self._kernel, self._launch_at, workspace=self._request.has_workspace)

    def calls(self, study: Study) -> list[Call]:
        """The variant bound to each timed set."""
        launch = self._launch_at(study.problem)
        found = []
        for one in study.timed:
            one.output.fill_(math.nan)  # what the last variant left must not pass for this one's answer
            arguments = [*one.inputs, one.output]
            if self._request.has_workspace:
                size = launch.workspace_bytes
                scratch = torch.empty(size, dtype=torch.uint8, device=self._device.torch_device)
                arguments.append(scratch if size else None)
            sizes, scalars = abi_sizes(study.problem), abi_scalars(study.problem)
            found.append(self._device.bind(self._kernel, launch, arguments, sizes, scalars))
        return found

    def _launch_at(self, problem: Problem) -> Launch:
        key = tuple(problem.values.items())
        if key not in self._launches:
            self._launches[key] = self._request.launch_at(problem, self._device.target)
        return self._launches[key]


class Workbench:
    """Judges requests on one device. Failures of a variant are results; a DeviceFault goes through.

    Args:
        device: The opened device.
        home: Where ceilings are stored.
        quiet: Entered around everything that is timed: whoever makes noise on this machine pauses in it.
    """

    def __init__(self, device: Device, home: Path, quiet: Quiet = nullcontext) -> None:
        self.device = device
        self.quiet = quiet
        self._home = home
        self._ceilings: Ceilings | None = None
        self._studies: dict[tuple[Any, ...], Study] = {}

    @property
    def ceilings(self) -> Ceilings:
        """The device's ceilings, probed on first use where no table has them."""
        if self._ceilings is None:
            with self.quiet():
                self._ceilings = ceilings_of(self.device, self._home)
        return self._ceilings

    @property
    def probe(self) -> Ceilings:
        """What a probe measured on the device, whether or not a table has its ceilings; kept with records."""
        with self.quiet():
            return probed(self.device, self._home)

    def study(self, request: TrialRequest) -> Study:
        """The checks and timed inputs for a request, built when they are not those at hand.

        Raises:
            InputError: The problem cannot be verified (see `build_checks`) or does not fit the memory, its
                operator is not declared, or is declared otherwise than where the request was made.
        """
        found = self._studies.get(request.study_key)
        if found is None:
            self._studies.clear()  # one study at a time: references of a large workload take gigabytes
            roots = tuple(Path(root) for root in request.roots)
            problem = catalogue(*roots).problem_from_dict(request.problem)
            if request.operator_digest not in ("", problem.operator.digest):
                raise InputError(
                    f"the declaration of {problem.operator.name} was changed while it was tuned; the same "
                    "command starts a new study"
                )
            try:
                with self.device.memory():
                    found = self._made(problem, request)
            except LaunchRefused as error:
                raise InputError(_too_large(problem, error)) from None
            self._studies[request.study_key] = found
        return found

    def _made(self, problem: Problem, request: TrialRequest) -> Study:
        checks = build_checks(self.device, problem, request.precision, request.seed)
        kind = checks.workload[0].kind
        seeds = range(request.seed, request.seed + INPUT_SETS)
        timed = tuple(TimedSet.make(self.device, problem, kind, seed) for seed in seeds)
        examiner = Examiner(self.device, checks.all())
        after = Examiner(self.device, checks.after_timing(), examiner.outputs)
        return Study(problem, request.precision, checks, examiner, after, timed)

    def trial(self, request: TrialRequest) -> TrialResult:
        """Verifies a variant, times it, verifies it again."""
        study = self.study(request)
        started, phases = time.perf_counter(), Phases()
        try:
            with self.device.memory():
                result = self._trial(study, request, phases)
        except LaunchRefused as error:
            result = _refused(error)
        result = replace(result, details={**result.details, "phase_s": phases.to_dict()})
        return replace(_signed(result, request), seconds=time.perf_counter() - started)

    def _trial(self, study: Study, request: TrialRequest, phases: Phases) -> TrialResult:
        with ExitStack() as stack:
            with phases("load"):
                variant = stack.enter_context(Variant(self.device, request))
            with phases("verify"):
                verdict = variant.verify(study)
            if not verdict.ok:
                return _wrong(verdict, verdict.reason)
            with phases("bind"):
                calls = variant.calls(study)
                run_on_other_inputs(calls[0], study.timed, study.checks.workload[0])
            timing, warm = self._time(study, calls, request.best_ms, phases)
            state = self.device.state()
            with phases("after"):
                after = judge_timed(study) or variant.verify(study, after_timing=True).reason
            if after:
                _renew(study)
                return _wrong(verdict, f"after timing, {after}")
            details = {"given_up": timing.given_up, **warm, "device_state": state}
            return self._timed(study, verdict, timing, details)

    def _time(
        self, study: Study, calls: Sequence[Call], best_ms: float | None, phases: Phases
    ) -> tuple[Timing, dict[str, float]]:
        """Times a variant's calls; `warm_ms` beside it where the headline is the time with a cold cache."""
        _ = self.ceilings  # where they have to be probed they are, before: `quiet` is not entered twice
        with ExitStack() as stack:
            with phases("quiet"):
                stack.enter_context(self.quiet())
            with phases("time"):
                timing = time_variant(self.device, calls, best_ms)
                if self._doubt(timing, study):  # a hiccup of the clock is no property of the variant
                    timing = time_variant(self.device, calls, None)
            if timing.given_up or not self.device.cold_headline:
                return timing, {}
            with phases("warm"):
                return timing, _warm(self.device, calls)

    def finals(
        self, requests: Sequence[TrialRequest], budget_ms: float = 2000.0, energy_rounds: int = 0
    ) -> list[TrialResult]:
        """Times several variants of one study in turns; one result each, in order.

        Each is verified before and after. Every variant takes part in every round: the i-th samples of all of
        them are of one round, and `rounds` in the details says how many there were. Who won is for
        `ranking.rank`. The details also hold what `figures_beside` says, and the device's record of that
        moment.

        Args:
            requests: The variants.
            budget_ms: What the rounds may take together.
            energy_rounds: Energy readings of each, where the device tells its energy.
        """
        if not requests:
            return []
        if any(request.study_key != requests[0].study_key for request in requests):
            raise ColdforgeError("the finals compare variants of one study only")
        study = self.study(requests[0])
        results: dict[int, TrialResult] = {}
        running: dict[int, tuple[Variant, Verdict, list[Call]]] = {}
        with ExitStack() as stack:
            for index, request in enumerate(requests):
                try:
                    with self.device.memory():
                        variant = stack.enter_context(Variant(self.device, request))
                        verdict = variant.verify(study)
                        if verdict.ok:
                            running[index] = (variant, verdict, variant.calls(study))
                        else:
                            results[index] = _wrong(verdict, verdict.reason)
                except LaunchRefused as error:
                    results[index] = _refused(error)
            calls = [bound for *_, bound in running.values()]
            _ = self.ceilings  # probed before: `quiet` is not entered twice
            with self.quiet():
                taken = in_rounds(self.device, calls, budget_ms=budget_ms, slow=math.inf)
                record = {"device_record": self.device.facts()}
                beside = figures_beside(self.device, calls, energy_rounds)
            samples = dict(zip(running, zip(taken, beside, strict=True), strict=True))
            for index, (variant, verdict, _) in running.items():
                again = variant.verify(study, after_timing=True)
                if again.ok:
                    turns, figures = samples[index]
                    details = {"rounds": len(turns), **figures, **record}
                    results[index] = self._timed(study, verdict, Timing(tuple(turns.values())), details)
                else:
                    results[index] = _wrong(verdict, f"after timing, {again.reason}")
                    _renew(study)
        return [_signed(results[index], request) for index, request in enumerate(requests)]

    def _timed(self, study: Study, verdict: Verdict, timing: Timing, details: dict[str, Any]) -> TrialResult:
        doubt = self._doubt(timing, study)
        if doubt:
            return _wrong(verdict, doubt)
        floor = self._floor(study)
        if timing.time_ms < floor.time_ms and self.ceilings.source == "probe":
            better = raised(self.ceilings, floor, timing.time_ms)
            self._ceilings = store(self.device, self._home, better)
            floor = self._floor(study)
        facts = {"floor_ms": floor.time_ms, "floor": floor.to_dict(), "checks": verdict.checks}
        return TrialResult(
            TrialOutcome.OK,
            time_ms=timing.time_ms,
            samples_ms=timing.samples_ms,
            error=verdict.error,
            bound_ratio=verdict.bound_ratio,
            details={**facts, **details},
        )

    def _floor(self, study: Study) -> Floor:
        return floor_of(study.problem, self.ceilings, study.precision, cold=self.device.cold_headline)

    def _doubt(self, timing: Timing, study: Study) -> str:
        cold = self.device.cold_headline
        return impossible(timing.time_ms, study.problem, self.ceilings, study.precision, cold=cold)


def _too_large(problem: Problem, error: LaunchRefused) -> str:
    gigabytes = (problem.bytes_read + problem.bytes_written) / 1e9
    return (
        f"{problem.operator.name} at {describe(problem)} does not fit the memory: its tensors take "
        f"{gigabytes:,.1f} GB, and checking variants several times as much; choose smaller sizes ({error})"
    )


def _renew(study: Study) -> None:
    """The timed inputs as they were."""
    for one in study.timed:
        one.renew(study.problem)


def judge_timed(study: Study) -> str:
    """What is wrong with the output that the timed calls left on the first set; empty when nothing is."""
    expected, output = study.checks.workload[0].expected, study.timed[0].output
    if expected.finite:
        ratio, _ = summed(study.examiner.outputs.judge.look(output, expected).tolist(), expected.norm)
        if ratio <= CERTAIN:
            return ""
    judgement = judge(output, expected)
    return f"{judgement.wrong} outputs of the timed calls are wrong" if judgement.wrong else ""


def _warm(device: Device, calls: Sequence[Call]) -> dict[str, float]:
    """The detail of a warm cache, where it differs from the headline."""
    warm = warm_ms(device, calls)
    return {} if warm is None else {"warm_ms": warm}


def _refused(error: LaunchRefused) -> TrialResult:
    """A launch that the device refused, or for which it has no memory; it is unharmed."""
    return TrialResult(TrialOutcome.RESOURCE_LIMIT, str(error).splitlines()[0])


def _wrong(verdict: Verdict, reason: str) -> TrialResult:
    return TrialResult(
        TrialOutcome.WRONG_RESULT,
        reason,
        error=verdict.error,
        bound_ratio=verdict.bound_ratio,
        details={"checks": verdict.checks},
    )


def _signed(result: TrialResult, request: TrialRequest) -> TrialResult:
    artifact = Artifact.from_dict(request.artifact)
    return replace(
        result,
        config=dict(request.config),
        template=request.template,
        resources=artifact.resources.to_dict(),
        code_digest=artifact.code_digest,
    )
