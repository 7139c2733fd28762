# SPDX-License-Identifier: Apache-2.0
"""A tuning run with a pretended compiler and worker: no compiler, no device, no waiting."""

from __future__ import annotations

import contextlib
import hashlib
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
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
from coldforge.tuner.energy import ROUNDS as ENERGY_ROUNDS
from coldforge.tuner.equipment import Equipment, TuneOptions
from coldforge.tuner.interrupts import Interrupts
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.plan import Plan, Toolchain
from coldforge.tuner.progress import Snapshot
from coldforge.tuner.study import Study, open_study
from coldforge.tuner.tools import NO_TERMS, Job, Terms
from coldforge.tuner.tune import Tuner
from optuna.trial import FrozenTrial

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


ROUNDS = 41  # of the finals


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class World:
    """Pretended time: what is under way ends at its time, and waiting goes to the next end."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ends: list[float] = []

    def wait(self, things: Sequence[Any], limit_s: float | None) -> None:
        """As `multiprocessing.connection.wait`, without waiting."""
        now, ends = self.now, [*self.ends, *([] if limit_s is None else [self.now + limit_s])]
        assert ends, "it would wait for ever"
        self.now = max(now, min(ends))
        self.ends = [end for end in self.ends if end > self.now]


class PretendCompiler:
    """Every source compiles, except where ``refuse`` says so; the machine code is that of ``code`` (a
    config). What is compiled at the same time is answered last first.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.jobs, self.seconds = 1, 0.0
        self.refuse: Callable[[KernelSource], bool] = lambda source: False
        self.code: Callable[[KernelSource], str] = lambda source: source.digest
        self.spills: Callable[[KernelSource], int] = lambda source: 0
        self.size: Callable[[KernelSource], int] = lambda source: 100
        self.compiled: list[str] = []
        self.most_load = 0
        self._under_way: dict[int, tuple[float, KernelSource]] = {}
        self._abandoned: set[int] = set()
        self._numbers = 0
        self.on_submit: Callable[[int], None] = lambda number: None

    waitables: Sequence[Any] = ()

    @property
    def patience_s(self) -> float | None:
        return 0.0 if any(end <= self._world.now for end, _ in self._under_way.values()) else None

    @property
    def load(self) -> int:
        return len(self._under_way)

    def submit(self, source: KernelSource) -> int:
        self.on_submit(self._numbers)
        end = self._world.now + self.seconds
        self._world.ends.append(end)
        self._numbers += 1
        self._under_way[self._numbers] = (end, source)
        self.most_load = max(self.most_load, self.load)
        assert self.load <= self.jobs
        return self._numbers

    def collect(self) -> list[tuple[int, Artifact | CompileError]]:
        done = [number for number, (end, _) in self._under_way.items() if end <= self._world.now]
        sources = [(number, self._under_way.pop(number)[1]) for number in reversed(done)]
        return [(number, self._answer(one)) for number, one in sources if number not in self._abandoned]

    def abandon(self, numbers: Iterable[int]) -> None:
        self._abandoned |= set(numbers)  # as the real pool's: one that has begun keeps its compiler busy

    def compile(self, sources: Sequence[KernelSource]) -> Iterator[tuple[int, Artifact | CompileError]]:
        for position in reversed(range(len(sources))):
            yield position, self._answer(sources[position])

    def _answer(self, source: KernelSource) -> Artifact | CompileError:
        self.compiled.append(source.name)
        if self.refuse(source):
            return CompileError(f"{source.name}: error: no\nsuch thing", log="the log")
        resources = Resources(code_bytes=self.size(source), spill_store_bytes=self.spills(source))
        code, path = digest_of(self.code(source)), Path("/nonexistent.so")
        return Artifact(path, source.digest, source.name, resources, code, "g++", ("-O3",), 0.2)

    def close(self) -> None:
        self._under_way.clear()


class PretendWorker:
    """Times a config by a digest of it; ``outcome`` may make some fail, ``before`` may do anything first."""

    def __init__(self, world: World) -> None:
        self._world, self.seconds = world, 0.0
        self.outcome: Callable[[Job], TrialOutcome] = lambda job: TrialOutcome.OK
        self.before: Callable[[int], None] = lambda number: None
        self.works_again: Callable[[Job], bool] = lambda job: True
        self.samples_ms: Callable[[float, int], float] = lambda time_ms, turn: time_ms
        self.measured: list[str] = []
        self.finalists: list[str] = []
        self.energy_asked: list[bool] = []
        self.energy_j: Callable[[Job], float | None] = lambda job: None
        self._under_way: tuple[float, Job] | None = None

    waitables: Sequence[Any] = ()

    @property
    def patience_s(self) -> float | None:
        return 0.0 if self._under_way is not None and self._under_way[0] <= self._world.now else None

    def time_ms(self, job: Job) -> float:
        return 1.0 + int(digest_of(job.point.key)[:6], 16) / 0xFFFFFF

    def begin(self, job: Job, best_ms: float | None, handed_over: Callable[[], None]) -> None:
        assert self._under_way is None
        handed_over()
        self.before(len(self.measured))
        self.measured.append(job.point.key)
        self._under_way = (self._world.now + self.seconds, job)
        self._world.ends.append(self._under_way[0])

    def poll(self) -> TrialResult | None:
        if self._under_way is None or self._under_way[0] > self._world.now:
            return None
        job, self._under_way = self._under_way[1], None
        outcome = self.outcome(job)
        if outcome is not TrialOutcome.OK:
            return TrialResult(outcome, f"pretended {outcome.value}", seconds=0.1)
        details = {"floor_ms": 0.5, "phase_s": {"verify": 0.25, "time": 0.5}}
        return TrialResult(outcome, time_ms=self.time_ms(job), error=1e-7, seconds=0.1, details=details)

    def finals(self, jobs: Sequence[Job], *, energy: bool = False) -> list[TrialResult]:
        self.finalists += [job.point.key for job in jobs]
        self.energy_asked.append(energy)
        return [
            self._metered(job, self._final(job), energy)
            if self.works_again(job)
            else TrialResult(TrialOutcome.CRASH, "pretended crash")
            for job in jobs
        ]

    def _final(self, job: Job) -> TrialResult:
        """Half of the time that the search saw, in each of the rounds."""
        samples = tuple(self.samples_ms(self.time_ms(job) / 2, turn) for turn in range(ROUNDS))
        details = {"floor_ms": 0.5, "rounds": ROUNDS}
        time_ms = statistics.median(samples)
        return TrialResult(TrialOutcome.OK, "", time_ms, samples, error=1e-7, details=details)

    def _metered(self, job: Job, result: TrialResult, energy: bool) -> TrialResult:
        joules = self.energy_j(job) if energy else None
        if joules is None:
            return result
        readings = [joules * (1 + 0.001 * (turn % 3)) for turn in range(ENERGY_ROUNDS)]
        figures = {"energy_j": statistics.median(readings), "energy_samples_j": readings}
        return replace(result, details={**result.details, **figures})

    def close(self) -> None:
        pass


class PretendRecord:
    """Of what is being tried."""

    binding = full = departed = False

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.suspected: tuple[str, ...] = ()
        self.claimed: list[str] = []
        self.others: Callable[[], frozenset[str] | None] = lambda: None

    def claims(self) -> frozenset[str] | None:
        return self.others()

    def offered(self) -> tuple[str, ...]:
        return ()

    def finals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def claim(self, point_key: str, terms: Terms = NO_TERMS) -> bool:
        if point_key in (self.others() or ()):
            return False
        self.claimed.append(point_key)
        return True

    def release(self, point_key: str) -> None:
        self.claimed.remove(point_key)

    def begin(self, point_key: str) -> None:
        self.begun.append(point_key)

    def beat(self) -> float | None:
        return None

    def suspects(self, finished: Collection[str]) -> tuple[str, ...]:
        return tuple(key for key in self.suspected if key not in finished)


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
        self.storage: optuna.storages.BaseStorage = optuna.storages.InMemoryStorage()
        self.world = World()
        self.compiler = PretendCompiler(self.world)
        self.worker = PretendWorker(self.world)
        self.record: Any = PretendRecord()
        self.store: Callable[[FrozenTrial], object] | None = None
        self.progress = Silent()
        self.tuner: Tuner | None = None

    @property
    def study(self) -> Study:
        study = open_study(self.storage, self.inputs)
        return study if self.store is None else study.storing(self.store)

    def tune(self, *, jobs: int = 1, **options: Any) -> str:
        self.compiler.jobs = jobs
        with Interrupts() as guard:
            equipment = Equipment(
                *(self.compiler, self.worker, self.progress, guard, self.record),
                clock=lambda: self.world.now,
                wait=self.world.wait,
            )
            tuner = self.tuner = Tuner(
                self.plan, self.study, self.plan.feasible(), equipment, TuneOptions(**options)
            )
            try:
                return tuner.run()
            finally:
                self.compiler.close()
                self.worker._under_way = None

    def keys(self) -> list[str]:
        return [f"{t.params}" for t in self.study.trials()]
