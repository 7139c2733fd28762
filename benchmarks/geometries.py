# SPDX-License-Identifier: Apache-2.0
"""Convolutions of other shapes than the founding one: each tuned, frozen, and timed against PyTorch eager and
torch.compile, in fp32 and with TF32 allowed (PyTorch's own default for convolutions).

    python benchmarks/geometries.py --trials 150 --out results
    python benchmarks/geometries.py --only depthwise --only stem --trials 300
    python benchmarks/geometries.py --only conv --only mean --dtype fp16 --prefix fp16_
    python benchmarks/geometries.py --target cpu --trials 6

Each geometry leaves one JSON file in --out (and what its search found in NAME.tune.json, before anything is
compared), and all winners one bundle (`coldforge freeze --from` takes it).
What has its file is not done again, and an interrupted search goes on where it was: so do a few with --only,
or more of each with a larger --trials and --again. A template whose space is small is worth a run of its own
(--template NAME --again): of all templates together the search may try few of its configs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.settings import load_settings
from coldforge.codegen.target import Target, detect
from steps import StepFailed, coldforge, one_line, out_folder, this_command, write_json

GEOMETRIES = {
    "wide": "conv2d_relu_channel_bias",
    "stem": "conv2d_relu",
    "dilated": "conv2d_plain",
    "mish": "conv2d_subtract_mish",
    "depthwise": "depthwise_conv2d_relu6",
}
"""Name -> operator; its workloads `seed` and `small` are the geometry."""
FOUNDING = {"conv": "conv2d_divide_leaky_relu", "mean": "conv_transpose2d_mean_logsumexp"}
"""Done only where they are named: in other types and error classes."""
NAMED = {**GEOMETRIES, **FOUNDING}
PEERS = ("eager", "eager_tf32", "compile", "compile_tf32")
BUNDLE = "geometries.zip"


@dataclass(frozen=True)
class Job:
    """One geometry to be done."""

    name: str
    options: argparse.Namespace
    problem: Problem

    @property
    def operator(self) -> str:
        """Its operator."""
        return self.problem.operator.name

    @property
    def package(self) -> str:
        """The package that it is frozen into."""
        return f"geometry_{self.name}"

    @property
    def result(self) -> Path:
        """The JSON file that says that it is done."""
        return self.options.out / f"{self.options.prefix}{self.name}.json"

    def common(self, *more: str) -> list[str]:
        """Options of `tune` and `bench`."""
        words = ["--target", self.options.target, "--workload", self.problem.workload]
        return [*words, "--dtype", self.options.dtype, "--precision", self.problem.precision, *more]

    def tune(self) -> dict[str, Any]:
        """The search."""
        words = self.common("--trials", str(self.options.trials), "--seed", str(self.options.seed))
        if self.options.template:
            words += ["--template", self.options.template]
        tuned = coldforge(["tune", self.operator, *words])
        # At once: the machine may be gone before anything is compared.
        write_json(self.result.with_suffix(".tune.json"), {"command": this_command(), **tuned})
        return tuned

    def freeze(self) -> dict[str, Any]:
        """The winner's package, built."""
        folder = str(self.options.work)
        return coldforge(["freeze", self.operator, "--package", self.package, "--out", folder])

    def bench(self) -> dict[str, Any]:
        """Frozen against the peers."""
        words = self.common("--package", self.package, "--out", str(self.options.work))
        return coldforge(["bench", self.operator, *words])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=tuple(NAMED), help="may be repeated")
    parser.add_argument("--target", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--workload", help="seed on cuda, small on cpu")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--precision", help="error class; the dtype's own when not given")
    parser.add_argument("--template", help="only this template")
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0, help="of the sampler")
    parser.add_argument("--seconds", type=float, default=1e9, help="no search or comparison is begun after")
    parser.add_argument("--again", action="store_true", help="also those that have their file")
    parser.add_argument("--prefix", default="", help="of the files' names")
    parser.add_argument(
        "--out", type=Path, help="folder of the results [default: $OUT, else build/geometries]"
    )
    parser.add_argument("--work", type=Path, default=Path("build/geometries/packages"))
    parser.add_argument("--warm", metavar="NAME", choices=tuple(NAMED), help=argparse.SUPPRESS)
    return parser.parse_args()


def _jobs(options: argparse.Namespace, target: Target) -> list[Job]:
    declared = catalogue()
    workload = options.workload or ("seed" if target.kind == "cuda" else "small")
    jobs = []
    for name in options.only or GEOMETRIES:
        if NAMED[name] not in declared.operators:
            print(f"{name}: no operator {NAMED[name]} is declared", file=sys.stderr)
            continue
        problem = make_problem(declared.operator(NAMED[name]), workload, dtype=options.dtype)
        jobs.append(Job(name, options, problem.in_class(options.precision or problem.precision)))
    return jobs


def warm(problem: Problem, target: Target) -> None:
    """Compiles the peers into the compiler's cache on disk, as `bench` will ask for them."""
    from coldforge.tuner.devices import open_device
    from coldforge.tuner.inputs import draw
    from coldforge.tuner.peers import peers_of

    settings = load_settings()
    device = open_device(target, settings)
    with device.session():
        drawn = draw(problem, "normal", 0)
        sample = {name: value.to(device.torch_device) for name, value in drawn.items()}
        peers_of(device, problem, sample, settings.cxx)


def _warm_all(jobs: Iterable[Job]) -> None:
    """Each in a process of its own, before anything is timed."""
    command = [sys.executable, *sys.argv]
    running = [subprocess.Popen([*command, "--warm", job.name]) for job in jobs]
    for process in running:
        process.wait()


def _each(
    jobs: list[Job], step: Callable[[Job], dict[str, Any]], at_once: int, *, limited: bool = False
) -> dict[str, Any]:
    """The step's document by the job's name, or why there is none; whatever fails, the others are done.

    Args:
        limited: not begun once the time of --seconds has passed.
    """

    def guarded(job: Job) -> dict[str, Any]:
        if limited and time.monotonic() - _STARTED > job.options.seconds:
            return {"failed": "no time was left"}
        try:
            return step(job)
        except StepFailed as error:
            return {"failed": str(error)}

    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip((job.name for job in jobs), pool.map(guarded, jobs), strict=True))


def _document(job: Job, tuned: dict[str, Any], benched: dict[str, Any]) -> dict[str, Any]:
    return {
        "command": this_command(),
        "geometry": job.name,
        "operator": job.operator,
        "workload": job.problem.workload,
        "precision": job.problem.precision,
        "seconds": {"tune": tuned.get("seconds"), "bench": benched.get("seconds")},
        "tune": {name: value for name, value in tuned.items() if name != "profile"},
        "bench": benched,
    }


def row(document: dict[str, Any]) -> str:
    """One line of the table."""
    benched, best = document["bench"], document["tune"].get("best") or {}
    times = {each["name"]: each["time_ms"] for each in benched["rows"]}
    frozen, floor = times["frozen"], benched["floor_ms"]
    peers = "".join(f"{_ratio(times.get(name), frozen):>14}" for name in PEERS)
    share = f"{frozen / floor:.2f}" if floor else "-"
    template = best.get("template", "-")
    return f"{document['geometry']:<10}{template:<10}{frozen:>9.4f}{floor:>9.4f}{share:>7}{peers}"


def _ratio(time_ms: float | None, frozen: float) -> str:
    return "-" if time_ms is None else f"{time_ms:.3f} {time_ms / frozen:.2f}x"


def _table(jobs: list[Job]) -> None:
    print(
        f"{'geometry':<10}{'template':<10}{'frozen':>9}{'floor':>9}{'x':>7}"
        + "".join(f"{n:>14}" for n in PEERS)
    )
    for job in jobs:
        if job.result.is_file():
            print(row(json.loads(job.result.read_text())))


def main() -> int:
    """Does what is missing, and prints the table of all."""
    options = _options()
    options.out = out_folder(options.out, "geometries")
    options.work = options.work.absolute()
    options.work.mkdir(parents=True, exist_ok=True)
    target = detect(options.target)
    options.target = target.kind
    jobs = _jobs(options, target)
    if options.warm:
        warm(next(job.problem for job in jobs if job.name == options.warm), target)
        return 0
    todo = [job for job in jobs if options.again or not job.result.is_file()]
    if target.kind == "cuda":
        _warm_all(todo)
    tuned = _each(todo, Job.tune, 1, limited=True)
    ready = [job for job in todo if "failed" not in tuned[job.name]]
    frozen = _each(ready, Job.freeze, os.cpu_count() or 1)
    ready = [job for job in ready if "failed" not in frozen[job.name]]

    def bench(job: Job) -> dict[str, Any]:
        found = job.bench()
        write_json(job.result, _document(job, tuned[job.name], found))
        return found

    benched = _each(ready, bench, 1, limited=True)
    done = [job for job in ready if "failed" not in benched[job.name]]
    bundled = {}
    if done:
        operators = [job.operator for job in done]
        path = options.out / f"{options.prefix}{BUNDLE}"
        bundled = {path.name: _each(done[:1], lambda _: _bundle(operators, path), 1)[done[0].name]}
    _table(jobs)
    failures = 0
    for documents in (tuned, frozen, benched, bundled):
        for name, document in documents.items():
            if "failed" in document:
                failures += 1
                print(f"{name}: {document['failed']}")
    return 1 if failures else 0


def _bundle(operators: list[str], path: Path) -> dict[str, Any]:
    return coldforge(["freeze", *operators, "--bundle", str(path)])


_STARTED = time.monotonic()

if __name__ == "__main__":
    sys.exit(one_line(main))
