# SPDX-License-Identifier: Apache-2.0
"""A tuning run with a pretended compiler and worker: no compiler, no device, no waiting."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
import yaml
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Resources
from coldforge.codegen.errors import CompileError
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import KernelSource
from coldforge.codegen.space_file import load_space
from coldforge.codegen.target import Target
from coldforge.tuner.interrupts import Interrupts
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.plan import Plan, Toolchain
from coldforge.tuner.progress import Snapshot
from coldforge.tuner.study import Study, open_study
from coldforge.tuner.tools import Job
from coldforge.tuner.tune import TuneOptions, Tuner

TARGET = Target("cpu", "x86-64-v3", "a CPU", {"threads": 2, "llc_bytes": 1 << 25, "vector_bytes": 32})
TOOLCHAIN = Toolchain("g++ 12.2.0", ("-O3",), "", "1")


SPACE = """
template: direct
target: cpu
archs: [x86-64-v3]
file: direct.cpp.jinja
parameters:
  TILE: {values: [8, 16, 32, 64], help: pixels}
  ROWS: {values: [1, 2, 4, 8], help: rows}
  VEC: {values: [1, 2, 4, 8], help: lanes}
  DEPTH: {values: [1, 2, 3, 4, 5, 6, 7, 8], help: unrolling}
constraints:
  - {require: TILE >= 2 * VEC, reason: "TILE={TILE} is too small"}
default: {TILE: 16, ROWS: 1, VEC: 1, DEPTH: 1}
launch: {units: "N * ceil_div(H_out, ROWS)", grain: "1"}
"""
TEMPLATE = "{{ banner }}\n{% for name, value in config.items() %}int {{ name }} = {{ value }};\n{% endfor %}"


def make_plan(folder: Path, **values: list[int]) -> Plan:
    """A made-up template of a real operator.

    Args:
        values: parameters whose values are not as above.
    """
    document = yaml.safe_load(SPACE)
    for name, given in values.items():
        document["parameters"][name]["values"] = given
        document["default"][name] = given[0]
    (folder / "space.direct.cpu.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    (folder / "direct.cpp.jinja").write_text(TEMPLATE)
    space = load_space(folder / "space.direct.cpu.yaml", "conv2d")
    problem = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small")
    return Plan(problem, "fp32", TARGET, {"direct": space}, TOOLCHAIN)


SMALL = {"ROWS": [1, 2, 4], "VEC": [1], "DEPTH": [1]}  # with TILE: 12 configs


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class PretendCompiler:
    """Every source compiles, except where ``refuse`` says so; the machine code is that of ``code`` (a
    config).
    """

    def __init__(self) -> None:
        self.refuse: Callable[[KernelSource], bool] = lambda source: False
        self.code: Callable[[KernelSource], str] = lambda source: source.digest
        self.running = False
        self.compiled: list[str] = []
        self.batches: list[int] = []

    def compile(self, sources: Sequence[KernelSource]) -> Iterator[tuple[int, Artifact | CompileError]]:
        self.running = True
        self.batches.append(len(sources))
        try:
            for position in reversed(range(len(sources))):
                source = sources[position]
                self.compiled.append(source.name)
                if self.refuse(source):
                    yield position, CompileError(f"{source.name}: error: no\nsuch thing", log="the log")
                    continue
                resources, path = Resources(code_bytes=100), Path("/nonexistent.so")
                code = digest_of(self.code(source))
                yield (
                    position,
                    Artifact(path, source.digest, source.name, resources, code, "g++", ("-O3",), 0.2),
                )
        finally:
            self.running = False

    def close(self) -> None:
        self.running = False


class PretendWorker:
    """Times a config by a digest of it; ``outcome`` may make some fail, ``before`` may do anything first."""

    def __init__(self, compiler: PretendCompiler) -> None:
        self._compiler = compiler
        self.outcome: Callable[[Job], TrialOutcome] = lambda job: TrialOutcome.OK
        self.before: Callable[[int], None] = lambda number: None
        self.measured: list[str] = []
        self.finalists: list[str] = []

    def time_ms(self, job: Job) -> float:
        return 1.0 + int(digest_of(job.point.key)[:6], 16) / 0xFFFFFF

    def measure(self, job: Job, best_ms: float | None) -> TrialResult:
        assert not self._compiler.running, "a compiler ran while a variant was timed"
        self.before(len(self.measured))
        self.measured.append(job.point.key)
        outcome = self.outcome(job)
        if outcome is not TrialOutcome.OK:
            return TrialResult(outcome, f"pretended {outcome.value}", seconds=0.1)
        details = {"floor_ms": 0.5}
        return TrialResult(outcome, time_ms=self.time_ms(job), error=1e-7, seconds=0.1, details=details)

    def finals(self, jobs: Sequence[Job]) -> list[TrialResult]:
        self.finalists += [job.point.key for job in jobs]
        details = {"floor_ms": 0.5}
        return [
            TrialResult(TrialOutcome.OK, time_ms=self.time_ms(job) / 2, error=1e-7, details=details)
            for job in jobs
        ]

    def close(self) -> None:
        pass


class Silent:
    """Keeps the snapshots."""

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []
        self.closed = False

    def update(self, snapshot: Snapshot) -> None:
        self.seen.append(snapshot)

    def close(self) -> None:
        self.closed = True


class Bench:
    """Everything that a run needs; the study is kept in memory, which is quick."""

    def __init__(self, folder: Path, plan: Plan | None = None) -> None:
        self.plan = plan or make_plan(folder)
        self.inputs = self.plan.inputs()
        self.storage = optuna.storages.InMemoryStorage()
        self.compiler = PretendCompiler()
        self.worker = PretendWorker(self.compiler)
        self.progress = Silent()
        self.tuner: Tuner | None = None
        self.now = 0.0

    @property
    def study(self) -> Study:
        return open_study(self.storage, self.inputs)

    def tune(self, **options: Any) -> str:
        with Interrupts() as guard:
            tuner = self.tuner = Tuner(
                self.plan,
                self.study,
                self.plan.feasible(),
                self.compiler,
                self.worker,
                self.progress,
                TuneOptions(**options),
                guard,
                lambda: self.now,
            )
            return tuner.run()

    def keys(self) -> list[str]:
        return [f"{t.params}" for t in self.study.trials()]
