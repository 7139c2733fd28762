# SPDX-License-Identifier: Apache-2.0
"""What a second worker on one study brings: configs a minute with one and with two, then two of which one is
killed (kill -9) in mid-run. No config may be tried twice, and the winners must be within 1% of each other,
timed in one interleaved run.

    python benchmarks/workers.py conv2d_divide_leaky_relu --target cuda --trials 400 --out workers.json
    python benchmarks/workers.py conv2d_divide_leaky_relu --target cpu --trials 30 --out workers.json

On a GPU the workers have a device each; a CPU is shared, so there only duplicates and the winner mean
something. Each run has a home of its own in --work, and with it an empty embedded store; --storage names
another, with {run} in it: postgresql://user@host/coldforge_{run}, where these databases are empty. Exits with
1 when a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from coldforge.codegen.compile import Cache
from coldforge.codegen.errors import ColdforgeError
from coldforge.codegen.settings import load_settings
from coldforge.codegen.target import Target, detect
from coldforge.tuner.client import WorkerClient
from coldforge.tuner.search import Point
from coldforge.tuner.storage import open_storage
from coldforge.tuner.study import Study, list_studies
from side_by_side import held, problem_of, request_of
from steps import this_command, write_json
from ten_tunings import compared

RUNS = ("one", "two", "killed")
AT_LEAST = 1.8
"""What a second GPU must bring in configs a minute."""
_MAIN = "from coldforge.tuner.cli import main; main()"
_LOOK_S = 0.2


@dataclass(frozen=True)
class Measured:
    """One trial, as the storage has it.

    Attributes:
        point: the config's key.
        worker: who measured it.
        ended: when it was stored, seconds.
    """

    point: str
    worker: str
    ended: float


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operator")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--workload")
    parser.add_argument("--template")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--jobs", type=int, help="compilers of each worker [default: the CPUs by two]")
    parser.add_argument("--storage", help="URL with {run} in it [default: embedded]")
    parser.add_argument("--work", type=Path, default=Path("build/workers"), help="homes of the runs; emptied")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def rate_of(trials: Sequence[Measured]) -> float:
    """Configs a minute from the moment when each worker had stored its first to the end."""
    first: dict[str, float] = {}
    for trial in sorted(trials, key=lambda trial: trial.ended):
        first.setdefault(trial.worker, trial.ended)
    if not first:
        return 0.0
    began, last = max(first.values()), max(trial.ended for trial in trials)
    counted = sum(trial.ended > began for trial in trials)
    return 60.0 * counted / (last - began) if last > began else 0.0


def facts_of(run: str, trials: Sequence[Measured], trials_wanted: int) -> dict[str, Any]:
    """What a run's trials say."""
    shares = Counter(trial.worker for trial in trials)
    return {
        "run": run,
        "finished": len(trials),
        "wanted": trials_wanted,
        "duplicates": len(trials) - len({trial.point for trial in trials}),
        "configs_per_minute": round(rate_of(trials), 1),
        "by_worker": sorted(shares.values(), reverse=True),
    }


class Runner:
    """Starts and watches the workers of one run."""

    def __init__(self, options: argparse.Namespace, target: Target, workload: str, run: str) -> None:
        self._options, self._run = options, run
        self.home = options.work.absolute() / run
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        jobs = options.jobs or max(1, load_settings().jobs // 2)
        self._environment = {**os.environ, "COLDFORGE_HOME": str(self.home), "COLDFORGE_JOBS": str(jobs)}
        self.storage = None if options.storage is None else options.storage.format(run=run)
        self._place = [] if self.storage is None else ["--storage", self.storage]
        self._cuda = target.kind == "cuda"
        self._tune = ["tune", options.operator, "--target", target.kind, "--workload", workload]
        self._tune += ["--trials", str(options.trials), *self._place]
        self._tune += ["--template", options.template] if options.template else []
        self._log = (self.home / "log").open("ab")
        self._started: list[subprocess.Popen[bytes]] = []

    def tune(self, device: int = 0) -> subprocess.Popen[bytes]:
        """Starts the tuner, on one device."""
        return self._start([*self._tune, *self._device(device)])

    def worker(self, device: int) -> subprocess.Popen[bytes]:
        """Starts a worker, on one device."""
        return self._start(["worker", *self._place, *self._device(device)])

    def _device(self, device: int) -> list[str]:
        return ["--devices", str(device)] if self._cuda else []

    def _start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        print(f"$ coldforge {' '.join(words)}", file=sys.stderr, flush=True)
        command = [sys.executable, "-c", _MAIN, *words]
        process = subprocess.Popen(command, env=self._environment, stdout=self._log, stderr=self._log)
        self._started.append(process)
        return process

    def study(self) -> Study | None:
        """The study, once it asks for workers."""
        try:
            studies = list_studies(open_storage(self.storage, self.home, create=False))
        except ColdforgeError:  # it is being made
            return None
        return studies[-1] if studies and studies[-1].request is not None else None

    def trials(self) -> list[Measured]:
        """What is stored."""
        study = self.study()
        if study is None:
            return []
        found = []
        for trial, result in zip(stored := study.trials(), study.results(stored), strict=True):
            ended = trial.datetime_complete or datetime.min
            key = Point(result.template, result.config).key
            found.append(Measured(key, result.details.get("worker", ""), ended.timestamp()))
        return found

    def wait(self, process: subprocess.Popen[bytes], trials: int | None = None) -> None:
        """Until a process has ended well, or so many trials are stored.

        Raises:
            SystemExit: it ended badly.
        """
        while process.poll() is None and (trials is None or len(self.trials()) < trials):
            time.sleep(_LOOK_S)
        if process.poll() not in (None, 0):
            raise SystemExit(f"run {self._run}: {(self.home / 'log').read_text().splitlines()[-1]}")

    def close(self) -> None:
        """Ends what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._log.close()


@contextlib.contextmanager
def runner(options: argparse.Namespace, target: Target, workload: str, run: str) -> Iterator[Runner]:
    """A runner that leaves no process behind."""
    made = Runner(options, target, workload, run)
    try:
        yield made
    finally:
        made.close()


def measure(options: argparse.Namespace, target: Target, workload: str, run: str) -> dict[str, Any]:
    """One of the three runs: what its trials say, and its winner."""
    began = time.monotonic()
    with runner(options, target, workload, run) as work:
        tuner, others = work.tune(), list[subprocess.Popen[bytes]]()
        if run != "one":
            while work.study() is None:
                if tuner.poll() is not None:
                    work.wait(tuner)
                time.sleep(_LOOK_S)
            others.append(work.worker(1))
        if run == "killed":
            # So far that the victim is at work too.
            while len({trial.worker for trial in work.trials()}) < 2 and tuner.poll() is None:
                time.sleep(_LOOK_S)
            work.wait(tuner, len(work.trials()) + max(2, options.trials // 10))
            os.kill(others[0].pid, signal.SIGKILL)
            others = [work.worker(1)]
        for process in (tuner, *others):
            work.wait(process)
        study = work.study()
        assert study is not None
        found = facts_of(run, work.trials(), options.trials)
        winner = study.winner
        if winner is None:
            raise SystemExit(f"run {run}: no winner")
        best = winner["winner"]
    seconds = round(time.monotonic() - began, 1)
    return {**found, "seconds": seconds, "template": best["template"], "config": best["config"]}


def verdict(rows: Sequence[Mapping[str, Any]], on_gpu: bool) -> dict[str, Any]:
    """The checks.

    Args:
        rows: of the runs, with what the comparison of their winners says.
    """
    by_run = {row["run"]: row for row in rows}
    one, two = by_run["one"]["configs_per_minute"], by_run["two"]["configs_per_minute"]
    speedup = round(two / one, 3) if one else 0.0
    checks = {
        "no duplicates": not any(row["duplicates"] for row in rows),
        "as many as wanted": all(row["finished"] == row["wanted"] for row in rows),
        "winners within 1%": all(row["within"] for row in rows),
    }
    if on_gpu:
        checks[f"at least {AT_LEAST}x"] = speedup >= AT_LEAST
    return {"speedup": speedup, "checks": checks, "passed": all(checks.values())}


def _side_by_side(rows: list[dict[str, Any]], work: Path, problem: Any, target: Target) -> dict[str, Any]:
    """The rows with what the interleaved run of their winners says, and that run."""
    by_key = {Point(row["template"], row["config"]).key: row for row in rows}
    cache = Cache(work / "cache")
    requests = [request_of(problem, target, row["template"], row["config"], cache) for row in by_key.values()]
    with WorkerClient(target, load_settings()) as client:
        ranking, rounds = held(client, requests)
        facts = client.facts()
    found = compared(rows, [*by_key], ranking)
    return {"rows": found, "rounds": rounds, "distinct_winners": len(by_key), "device_record": facts}


def main() -> int:
    """Prints a short table and writes, if asked, one JSON document."""
    options = _options()
    target = detect(options.target)
    problem = problem_of(options.operator, target, options.workload, "fp32", "")
    rows = [measure(options, target, problem.workload, run) for run in RUNS]
    timed = _side_by_side(rows, options.work, problem, target)
    judged = verdict(timed["rows"], target.kind == "cuda")
    print(f"{'run':8}{'configs':>8}{'twice':>7}{'a minute':>10}{'by worker':>20}{'of the best':>13}")
    for row in timed["rows"]:
        shares = " + ".join(str(count) for count in row["by_worker"])
        line = f"{row['run']:8}{row['finished']:>8}{row['duplicates']:>7}{row['configs_per_minute']:>10}"
        print(f"{line}{shares:>20}{row['of_the_best']:>13.4f}")
    print(f"two workers: {judged['speedup']:.2f}x the configs a minute of one")
    for name, passed in judged["checks"].items():
        print(f"{'ok' if passed else 'FAILED'}: {name}")
    if options.out is not None:
        about = {"command": this_command(), "operator": options.operator, "problem": problem.to_dict()}
        write_json(options.out, {**about, "target": target.to_dict(), **judged, **timed})
    return 0 if judged["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
