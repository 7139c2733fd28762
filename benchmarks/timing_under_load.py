# SPDX-License-Identifier: Apache-2.0
"""Are times disturbed by compilers at work? The same configs, timed while the CPUs idle, while every one of
them compiles, and while they idle again.

    python benchmarks/timing_under_load.py conv2d_divide_leaky_relu --target cuda --configs 20 --out load.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import random
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coldforge.codegen.atomic import write_text
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache
from coldforge.codegen.compile.pool import CompilePool, CompileRequest, compile_many
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.settings import load_settings
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import Target, detect
from coldforge.tuner.client import WorkerClient
from coldforge.tuner.request import TrialRequest, trial_request

SEED = 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operator")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--workload")
    parser.add_argument("--configs", type=int, default=20)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _drawn(space: Space, problem: Problem, target: Target, count: int) -> list[Config]:
    legal = space.feasible(problem, target)
    return random.Random(SEED).sample(legal, min(count, len(legal)))


@contextmanager
def compiling(sources: Sequence[CompileRequest], jobs: int) -> Iterator[list[int]]:
    """Keeps `jobs` compilers busy with the sources, over and over and past any cache; gives the number of
    finished ones, in a list of one."""
    finished, stop, begun = [0], threading.Event(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            with tempfile.TemporaryDirectory() as folder, CompilePool(Cache(Path(folder)), jobs) as pool:
                for _ in pool.compile(sources):
                    finished[0] += 1
                    begun.set()
                    if stop.is_set():
                        break

    thread = threading.Thread(target=work)
    thread.start()
    try:
        begun.wait(120.0)
        yield finished
    finally:
        stop.set()
        thread.join()


def _times(client: WorkerClient, requests: Sequence[TrialRequest]) -> list[float]:
    results = [client.run(request) for request in requests]
    bad = [result.reason for result in results if result.time_ms is None]
    if bad:
        raise SystemExit(f"{len(bad)} of {len(results)} configs have no time: {bad[0]}")
    return [result.time_ms or 0.0 for result in results]


def _figures(idle: list[float], loaded: list[float], again: list[float]) -> dict[str, Any]:
    """Medians in ms, and by how much of its own time each config is off, in percent."""
    quiet = [(a + b) / 2 for a, b in zip(idle, again, strict=True)]
    shifts = [100.0 * (b / a - 1.0) for a, b in zip(quiet, loaded, strict=True)]
    drifts = [100.0 * (b / a - 1.0) for a, b in zip(idle, again, strict=True)]
    return {
        "median_ms": {name: statistics.median(x) for name, x in (("idle", idle), ("loaded", loaded))},
        "median_shift_percent": statistics.median(shifts),
        "worst_shift_percent": max(shifts, key=abs),
        "median_drift_percent": statistics.median(drifts),
        "worst_drift_percent": max(drifts, key=abs),
        "times_ms": {"idle": idle, "loaded": loaded, "idle_again": again},
    }


def main() -> None:
    """Prints, and writes if asked, one JSON document."""
    options, settings = _options(), load_settings()
    target, declared = detect(options.target), catalogue()
    operator = declared.operator(options.operator)
    workload = options.workload or ("seed" if target.kind == "cuda" else "small")
    problem, space = make_problem(operator, workload), declared.space(operator, target)
    configs = _drawn(space, problem, target, options.configs)
    sources = [CompileRequest(render(space, problem, config, target), target) for config in configs]
    with tempfile.TemporaryDirectory() as folder, WorkerClient(target, settings) as client:
        built = dict(compile_many(sources, settings.jobs, Cache(Path(folder))))
        requests = [
            trial_request(space, problem, config, artifact)
            for index, config in enumerate(configs)
            if isinstance(artifact := built[index], Artifact)
        ]
        _times(client, requests[:1])
        idle = _times(client, requests)
        with compiling(sources, settings.jobs) as finished:
            loaded = _times(client, requests)
            compiled = finished[0]
        again = _times(client, requests)
    document = {
        "command": "python benchmarks/timing_under_load.py " + " ".join(sys.argv[1:]),
        "device": target.device,
        "torch": importlib.metadata.version("torch"),
        "compilers": settings.jobs,
        "configs": len(requests),
        "compiled_meanwhile": compiled,
        **_figures(idle, loaded, again),
    }
    print(json.dumps({name: value for name, value in document.items() if name != "times_ms"}, indent=1))
    if options.out is not None:
        write_text(options.out, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
