# SPDX-License-Identifier: Apache-2.0
"""Does a kernel win against itself? The same binary under two names, loaded and timed as finalists are, in
many runs: how often the finals declare one of the two the winner. The rule says in 1 of 100; 5 are the limit.

    python benchmarks/aa.py conv2d_divide_leaky_relu --target cpu --runs 100 --out aa.json
    python benchmarks/aa.py conv2d_divide_leaky_relu --target cuda --template warpgroup --out aa.json

Exits with 1 when more than --limit of 100 runs declare a winner.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from coldforge.codegen.compile import Cache
from coldforge.codegen.settings import load_settings
from coldforge.codegen.target import detect
from coldforge.tuner.client import WorkerClient
from coldforge.tuner.ranking import Ranking
from side_by_side import held, problem_of, request_of, under_another_name
from steps import at_least_one, one_line, this_command, write_json


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operator")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--workload")
    parser.add_argument("--template", help="whose default config is timed")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--precision", default="")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--limit", type=float, default=5.0, help="false winners in 100 runs")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def row_of(ranking: Ranking, rounds: int) -> dict[str, Any]:
    """One run in plain JSON: the ratio is that of the second name to the first, whichever led."""
    follower = 1 - ranking.leader
    ratio = ranking.places[follower].ratio
    assert ratio is not None
    ends = ratio.ci95.to_list()
    turned = ranking.leader == 1
    return {
        "times_ms": [place.time_ms for place in ranking.places],
        "ratio": 1 / ratio.median if turned else ratio.median,
        "ratio_ci95": [1 / ends[1], 1 / ends[0]] if turned else ends,
        "p": ratio.p,
        "rounds": rounds,
        "declared": ranking.declared,
    }


def summary_of(rows: list[dict[str, Any]], limit: float) -> dict[str, Any]:
    """What the runs say together."""
    false = sum(row["declared"] for row in rows)
    ratios = sorted(row["ratio"] for row in rows)
    covered = sum(row["ratio_ci95"][0] <= 1 <= row["ratio_ci95"][1] for row in rows)
    return {
        "runs": len(rows),
        "false_winners": false,
        "limit": limit * len(rows) / 100,
        "passed": false <= limit * len(rows) / 100,
        "ci95_holds_1": covered,
        "ratio_median": ratios[len(ratios) // 2],
        "ratio_least": ratios[0],
        "ratio_greatest": ratios[-1],
        "rounds_a_run": [min(row["rounds"] for row in rows), max(row["rounds"] for row in rows)],
    }


def main() -> int:
    """Prints a short table and writes, if asked, one JSON document."""
    options, settings = _options(), load_settings()
    at_least_one("--runs", options.runs)
    target, began = detect(options.target), time.monotonic()
    problem = problem_of(options.operator, target, options.workload, options.dtype, options.precision)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, WorkerClient(target, settings) as client:
        place = Path(folder)
        request = request_of(problem, target, options.template, None, Cache(place / "cache"))
        suffix = Path(request.artifact["path"]).suffix
        for run in range(options.runs):
            names = [place / f"run{run}" / f"{name}{suffix}" for name in ("one", "other")]
            rows.append(row_of(*held(client, [under_another_name(request, path) for path in names])))
            print(f"{run + 1}: {rows[-1]['ratio']:.4f}, p {rows[-1]['p']:.3g}", file=sys.stderr, flush=True)
        facts = client.facts()
    summary = summary_of(rows, options.limit)
    document = {
        "command": this_command(),
        "operator": options.operator,
        "problem": problem.to_dict(),
        "template": request.template,
        "config": dict(request.config),
        "target": target.to_dict(),
        "torch": importlib.metadata.version("torch"),
        "device_record": facts,
        "summary": summary,
        "seconds": round(time.monotonic() - began, 1),
        "rows": rows,
    }
    for name, value in summary.items():
        print(f"{name:16} {value}")
    if options.out is not None:
        write_json(options.out, document)
    return 0 if summary["passed"] else 1


if __name__ == "__main__":
    sys.exit(one_line(main))
