# SPDX-License-Identifier: Apache-2.0
"""What it costs not to have tuned a shape: the frozen kernel that dispatch takes there, against the winner of
tuning that very shape.

    python benchmarks/regret.py --seconds 540 --out results
    python benchmarks/regret.py --target cpu --trials 12 --out results

Twelve shapes, of batches and images that no frozen entry was tuned for. All are tuned by one command, their
winners frozen into a package of their own, then both kernels timed in turn, round by round, through their
packages' public functions (below 0.1 ms on a GPU as CUDA graphs). Beside each ratio stands what the same
rounds say of the dispatched kernel against itself. Studies lie under COLDFORGE_HOME: what was tuned is not
tuned again, so that the same command makes up for --seconds that were too few. Exit code 1: over a limit.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.settings import load_settings
from coldforge.codegen.target import detect
from coldforge.tuner.floor import ceilings_of
from coldforge.tuner.intervals import median_interval
from sizes import SMALL_MS, Bench
from steps import StepFailed, at_least_one, coldforge, one_line, out_folder, this_command, write_json

if TYPE_CHECKING:
    import torch
    from coldforge.tuner.devices.base import Call
    from coldforge.tuner.peers import Contestant

SHAPES = {
    "cuda": (
        *((1, 17, 17), (1, 513, 513), (2, 129, 257), (3, 65, 33), (5, 97, 211), (7, 401, 303)),
        *((16, 61, 119), (33, 113, 113), (64, 99, 101), (100, 31, 47), (128, 65, 65), (256, 57, 43)),
    ),
    "cpu": (
        *((1, 17, 17), (1, 65, 33), (1, 129, 127), (2, 61, 47), (2, 100, 19), (3, 33, 97)),
        *((3, 77, 75), (4, 49, 49), (5, 40, 71), (6, 51, 17), (7, 23, 29), (8, 35, 35)),
    ),
}
"""Batch, height, width."""
LIMITS = {"geometric_mean": 1.05, "worst": 1.15}
PACKAGE = "coldforge.generated"
ROUNDS, SAMPLES = 21, 5
SEARCH_SHARE = 0.5
"""Of --seconds; the rest is finals, freezing and timing."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operator", default="conv2d_divide_leaky_relu")
    parser.add_argument("--target", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--package", default=PACKAGE, help="whose dispatch is looked at")
    parser.add_argument("--trials", type=int, help="configs a shape [default: 200, or what --seconds allows]")
    parser.add_argument("--seconds", type=float, help="for all of it, roughly")
    parser.add_argument("--first", type=int, default=12, metavar="N", help="only the first N shapes")
    parser.add_argument("--seed", type=int, default=0, help="of the sampler")
    parser.add_argument("--every-entry", action="store_true", help="also time all others")
    parser.add_argument("--out", type=Path, help="folder of the results [default: $OUT, else build/regret]")
    parser.add_argument("--name", help="of the file [default: TARGET_regret]")
    parser.add_argument("--work", type=Path, default=Path("build/regret"), help="where the winners are built")
    return parser.parse_args()


def problems_of(operator: str, kind: str, count: int) -> list[Problem]:
    """The shapes, of the workload that the target usually has."""
    declared, workload = catalogue().operator(operator), "seed" if kind == "cuda" else "small"
    return [make_problem(declared, workload, {"N": n, "H": h, "W": w}) for n, h, w in SHAPES[kind][:count]]


def tune(options: argparse.Namespace, problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """One study a shape."""
    words = ["--target", options.target, "--workload", problems[0].workload.rstrip("+")]
    for problem in problems:
        words += ["--shape", ",".join(f"{name}={problem.dims[name]}" for name in "NHW")]
    if options.seconds is not None:
        words += ["--time-budget", f"{options.seconds * SEARCH_SHARE / len(problems):.1f}"]
    if options.trials is not None:
        words += ["--trials", str(options.trials)]
    found = coldforge(["tune", options.operator, *words, "--seed", str(options.seed)])
    return found.get("runs", [found])


class Match:
    """Both packages on one device."""

    def __init__(self, bench: Bench, dispatched: str, tuned: str, *, every_entry: bool) -> None:
        self.bench, self.dispatched, self.tuned = bench, dispatched, tuned
        self.every_entry = every_entry

    def row(self, problem: Problem) -> dict[str, Any]:
        """One shape: who answers in either package, and how they compare."""
        from coldforge.tuner.peers import frozen_kernel

        sets = [self.bench._inputs(problem, seed) for seed in range(2)]
        about: dict[str, Any] = {"shape": {name: problem.dims[name] for name in "NHW"}}
        calls = []
        for side, package in (("dispatched", self.dispatched), ("tuned", self.tuned)):
            contestant = frozen_kernel(problem, problem.precision, package)
            about[side] = self._who(problem, contestant, package, sets[0])
            if about[side].get("reason"):
                return {**about, "ratio": None}
            calls.append(contestant.calls(sets))
        about |= self._compared(calls)
        if self.every_entry:
            about["every_entry_ms"] = self._every_entry(problem, sets)
        return about

    def _every_entry(self, problem: Problem, sets: list[dict[str, torch.Tensor]]) -> dict[str, float]:
        """What each variant of the dispatched package takes that can answer there."""
        from coldforge.tuner.peers import answering_variant, frozen_kernel

        extension = importlib.import_module(f"{self.dispatched}.runtime.package").STATE.extension
        contestant = frozen_kernel(problem, problem.precision, self.dispatched)
        device, cold = self.bench.device, self.bench.device.cold_headline
        found = {}
        for number, name in enumerate(extension.variants):
            with extension.only(number), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # where the reference answers instead
                assert contestant.function is not None
                contestant.function(sets[0])
                if answering_variant(self.dispatched)[0] != name:
                    continue
                own = contestant.calls(sets)
                warm = statistics.median(device.sample_ms(own, SAMPLES, cold=False))
                if device.kind == "cuda" and warm < SMALL_MS:
                    own = [self.bench.graph(own[0], 1)]
                found[name] = statistics.median(device.sample_ms(own, 3 * SAMPLES, cold=cold))
        return found

    def _who(
        self, problem: Problem, contestant: Contestant, package: str, inputs: dict[str, torch.Tensor]
    ) -> dict[str, Any]:
        from coldforge.tuner.peers import answering_variant, manifest_entry

        assert contestant.function is not None
        output = contestant.function(inputs)
        variant, why = answering_variant(package)
        if variant is None:
            return {"reason": why}
        entry = manifest_entry(package, variant)
        at = {name: entry["workload"][name] for name in "NHW"}
        judged = self.bench._judged(problem, inputs, output)
        exact = at == {name: problem.dims[name] for name in "NHW"}
        config = {"template": entry["template"], "config": entry["config"]}
        return {"variant": variant, "tuned_at": at, "exact": exact, **config, **judged}

    def _compared(self, calls: list[list[Call]]) -> dict[str, Any]:
        """Medians of either, and of the ratio of a round's medians; the dispatched one takes a second turn in
        each round, as a control."""
        device, cold = self.bench.device, self.bench.device.cold_headline
        warm = [statistics.median(device.sample_ms(own, SAMPLES, cold=False)) for own in calls]
        if device.kind == "cuda" and min(warm) < SMALL_MS:
            calls = [[self.bench.graph(own[0], 1)] for own in calls]
        turns: list[list[float]] = [[], [], []]
        for number in range(ROUNDS):
            order = (0, 1, 2) if number % 2 else (2, 1, 0)
            for place in order:
                own = calls[1 if place == 1 else 0]
                turns[place].append(statistics.median(device.sample_ms(own, SAMPLES, cold=cold)))
        ratios = [a / b for a, b in zip(turns[0], turns[1], strict=True)]
        control = [a / b for a, b in zip(turns[0], turns[2], strict=True)]
        interval = median_interval(ratios)
        return {
            "dispatched_ms": statistics.median(turns[0]),
            "tuned_ms": statistics.median(turns[1]),
            "ratio": statistics.median(ratios),
            "ratio_ci95": interval.to_list(),
            "control": statistics.median(control),
        }


def summary_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The ratios of all shapes together; one that no kernel covers is over every limit. So is one of which
    the rows do not tell the regret: where dispatch takes a kernel of that very shape, where the other side
    has none (its search ended too early, say), or where either is wrong."""
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    complete = len(ratios) == len(rows) and all(map(_tells, rows))
    if not ratios:
        return {"geometric_mean": None, "worst": None, "limits": LIMITS, "within": False}
    mean, worst = math.exp(statistics.fmean(map(math.log, ratios))), max(ratios)
    within = complete and mean <= LIMITS["geometric_mean"] and worst <= LIMITS["worst"]
    return {"geometric_mean": mean, "worst": worst, "limits": LIMITS, "within": within}


def _tells(row: dict[str, Any]) -> bool:
    """Whether a row compares a kernel that is not of the shape with one that is, both right."""
    dispatched, tuned = row["dispatched"], row["tuned"]
    right = all(side["bound_ratio"] <= 1 for side in (dispatched, tuned))
    return right and tuned["exact"] and not dispatched["exact"]


def _print(rows: Sequence[dict[str, Any]], summary: dict[str, Any]) -> None:
    print(f"{'N x H x W':<14}{'dispatched':>12}{'tuned':>10}{'ratio':>8}  95%            control  tuned at")
    for row in rows:
        shape = " x ".join(str(value) for value in row["shape"].values())
        if row["ratio"] is None:
            print(f"{shape:<14}{row['dispatched'].get('reason') or row['tuned'].get('reason')}")
            continue
        low, high = row["ratio_ci95"]
        at = "x".join(str(value) for value in row["dispatched"]["tuned_at"].values())
        print(
            f"{shape:<14}{row['dispatched_ms']:>12.4f}{row['tuned_ms']:>10.4f}{row['ratio']:>8.3f}"
            f"  {low:.3f} - {high:.3f}  {row['control']:>7.3f}  {at}{' (exact)' * row['dispatched']['exact']}"
        )
    if summary["worst"] is not None:
        print(
            f"geometric mean {summary['geometric_mean']:.3f} (at most {LIMITS['geometric_mean']}), worst "
            f"{summary['worst']:.3f} (at most {LIMITS['worst']})"
        )


def _frozen(options: argparse.Namespace, kind: str) -> str:
    """The package of the tuned winners, built and importable."""
    name, folder = f"regret_{kind}", options.work.absolute()
    coldforge(["freeze", options.operator, "--package", name, "--out", str(folder)])
    sys.path.insert(0, str(folder))
    importlib.import_module(name)
    return name


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Tunes, freezes and compares; see the top of the file."""
    import torch
    from coldforge.tuner.devices import open_device

    started, settings, target = time.monotonic(), load_settings(), detect(options.target)
    options.target = target.kind
    problems = problems_of(options.operator, target.kind, options.first)
    runs = tune(options, problems)
    tuned = _frozen(options, target.kind)
    device = open_device(target, settings)
    with device.session(), torch.no_grad():
        match = Match(
            Bench(device, ceilings_of(device, settings.home), options.package),
            options.package,
            tuned,
            every_entry=options.every_entry,
        )
        device.settle()
        rows = [match.row(problem) for problem in problems]
        facts = device.facts()
    for row, run in zip(rows, runs, strict=False):
        row |= {"study": run["study"], "outcomes": run["outcomes"], "search_seconds": run["seconds"]}
    summary = summary_of(rows)
    _print(rows, summary)
    return {
        "command": this_command(),
        "operator": options.operator,
        "device": target.device,
        "rows": rows,
        "summary": summary,
        "device_record": facts,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> int:
    """Measures, prints and writes."""
    options = _options()
    at_least_one("--first", options.first)
    folder = out_folder(options.out, "regret")
    try:
        document = measure(options)
    except StepFailed as error:
        print(f"regret.py: {error}", file=sys.stderr)
        return 1
    path = folder / f"{options.name or f'{options.target}_regret'}.json"
    write_json(path, document)
    print(f"{path}, {json.dumps(document['seconds'])} s")
    return 0 if document["summary"]["within"] else 1


if __name__ == "__main__":
    sys.exit(one_line(main))
