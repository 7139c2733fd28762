# SPDX-License-Identifier: Apache-2.0
"""Does it matter which run one trusts? Independent tunings of one operator, each with a seed and a home of
its own; then all winners are timed in one interleaved run, as finals are: how many lie within 1% of the best.

    python benchmarks/ten_tunings.py conv2d_divide_leaky_relu --target cpu --trials 40 --out ten.json
    python benchmarks/ten_tunings.py conv2d_divide_leaky_relu --target cuda --trials 200 --out ten.json

Tunings that are done are kept in --work, so that the same command again goes on where it was stopped. Exits
with 1 when fewer than nine tenths lie within 1%.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import time
from pathlib import Path
from typing import Any

from coldforge.codegen.compile import Cache
from coldforge.codegen.settings import load_settings
from coldforge.codegen.target import detect
from coldforge.tuner.client import WorkerClient
from coldforge.tuner.ranking import Ranking
from coldforge.tuner.search import Point
from side_by_side import held, problem_of, request_of
from steps import coldforge, one_line, this_command, write_json

WITHIN = 1.01


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operator")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--workload")
    parser.add_argument("--template")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--precision", default="")
    parser.add_argument("--tunings", type=int, default=10)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--work", type=Path, default=Path("build/ten_tunings"), help="homes of the tunings")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _tune(options: argparse.Namespace, kind: str, workload: str, seed: int) -> dict[str, Any]:
    """One tuning in a home of its own; its winner and how it was found."""
    words = ["tune", options.operator, "--target", kind, "--workload", workload, "--seed", str(seed)]
    words += ["--trials", str(options.trials), "--dtype", options.dtype]
    words += ["--precision", options.precision] if options.precision else []
    words += ["--template", options.template] if options.template else []
    run = coldforge(words, {"COLDFORGE_HOME": str(options.work.absolute() / f"home{seed}")})
    best = run["best"]
    kept = {name: best[name] for name in ("template", "config", "time_ms")}
    return {"seed": seed, **kept, **{name: run[name] for name in ("declared", "finished", "seconds")}}


def compared(rows: list[dict[str, Any]], distinct: list[str], ranking: Ranking) -> list[dict[str, Any]]:
    """The tunings with the times of their winners in the common run.

    Args:
        rows: Of the tunings.
        distinct: Keys of the winners, each once, in the order in which they were timed.
        ranking: Of these.
    """
    found = []
    for row in rows:
        place = ranking.places[distinct.index(Point(row["template"], row["config"]).key)]
        ratio = place.ratio.median if place.ratio else 1.0
        interval = place.ratio.ci95.to_list() if place.ratio else [1.0, 1.0]
        again = {"again_ms": place.time_ms, "of_the_best": ratio, "of_the_best_ci95": interval}
        found.append({**row, **again, "standing": place.standing, "within": ratio <= WITHIN})
    return found


def main() -> int:
    """Prints a short table and writes, if asked, one JSON document."""
    options, settings = _options(), load_settings()
    target, began = detect(options.target), time.monotonic()
    problem = problem_of(options.operator, target, options.workload, options.dtype, options.precision)
    rows = [_tune(options, target.kind, problem.workload, seed) for seed in range(options.tunings)]
    distinct = list(dict.fromkeys(Point(row["template"], row["config"]).key for row in rows))
    by_key = {Point(row["template"], row["config"]).key: row for row in rows}
    cache = Cache(options.work / "cache")
    requests = [
        request_of(problem, target, by_key[key]["template"], by_key[key]["config"], cache) for key in distinct
    ]
    with WorkerClient(target, settings) as client:
        ranking, rounds = held(client, requests)
        facts = client.facts()
    rows = compared(rows, distinct, ranking)
    within = sum(row["within"] for row in rows)
    document = {
        "command": this_command(),
        "operator": options.operator,
        "problem": problem.to_dict(),
        "target": target.to_dict(),
        "torch": importlib.metadata.version("torch"),
        "device_record": facts,
        "tunings": len(rows),
        "distinct_winners": len(distinct),
        "within_1_percent": within,
        "passed": within >= 0.9 * len(rows),
        "worst_of_the_best": max(row["of_the_best"] for row in rows),
        "rounds": rounds,
        "seconds": round(time.monotonic() - began, 1),
        "rows": rows,
    }
    for row in rows:
        print(f"seed {row['seed']}: {row['again_ms']:.4f} ms, {row['of_the_best']:.4f} of the best")
    print(f"{within} of {len(rows)} within 1% of the best; {len(distinct)} different winners")
    if options.out is not None:
        write_json(options.out, document)
    return 0 if document["passed"] else 1


if __name__ == "__main__":
    sys.exit(one_line(main))
