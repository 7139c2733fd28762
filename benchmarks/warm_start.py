# SPDX-License-Identifier: Apache-2.0
"""What a warm start is worth, and what a bad source costs: replays of recorded spaces, without and with a
study of another one to begin with.

    python benchmarks/warm_start.py --seeds 40 --out results
    python benchmarks/warm_start.py --only half-right --seeds 5 --out results

A run ends within 5% of the best; one that does not get there in its budget counts as twice that. With the
same seed both runs draw the same, so that the ratio of their evaluations is known better than either;
`ratio_error` is the standard error of its logarithm.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from coldforge.tuner.replay.begun import Beginning
from coldforge.tuner.replay.derived import derived
from coldforge.tuner.replay.recorded import Recorded, read_recorded
from coldforge.tuner.replay.run import Run, replay
from coldforge.tuner.replay.table import MISSED, WITHIN
from coldforge.tuner.search import DEFAULT_SAMPLER, sampler_named
from steps import one_line, out_folder, write_json

DATA = Path(__file__).parents[1] / "tests/data/replay"
BUDGET = 200
COMMAND = "python benchmarks/warm_start.py --seeds N --only KIND --out benchmarks/results"
A100, MI250X, PNPOLY = "convolution_A100", "convolution_MI250X", "pnpoly_RTX3090"
DEDISPERSION = "dedispersion_A100"
WIDE, SQUARE = "conv2d_subtract_mish_20x64", "conv2d_subtract_mish_32x32"

Space = tuple[str, ...]
"""A recorded space and how it is changed."""
PAIRS: dict[str, list[tuple[Space, Space, int | None]]] = {
    "device": [((MI250X,), (A100,), 200)],
    "shape": [((WIDE,), (SQUARE,), None), ((SQUARE,), (WIDE,), None), ((WIDE,), (SQUARE,), 50)],
    "bad": [
        ((A100,), (MI250X,), 200),
        ((PNPOLY,), (PNPOLY, "shuffled"), 100),
        ((PNPOLY,), (PNPOLY, "wrong"), 100),
        ((MI250X,), (A100, "shuffled"), 100),
        ((DEDISPERSION,), (DEDISPERSION, "shuffled"), 50),
    ],
    "half-right": [((PNPOLY,), (PNPOLY, "half-right"), 100)],
    "trials": [((MI250X,), (A100,), 50), ((MI250X,), (A100,), 100), ((MI250X,), (A100,), None)],
    "changed": [
        ((MI250X, "cubed"), (A100, "cubed"), 200),
        ((MI250X, "half of it"), (A100, "half of it"), 200),
        ((MI250X, "other values"), (A100, "other values"), 200),
    ],
}


@cache
def space(names: Space) -> Recorded:
    """A space as `PAIRS` names it."""
    return derived(read_recorded(DATA / f"{names[0]}.csv.gz"), *names[1:])


@cache
def beginning(names: Space, trials: int | None) -> Beginning:
    """A source as `PAIRS` names it."""
    return Beginning(space(names), trials)


@cache
def cold(names: Space, seed: int) -> Run:
    """A run without a warm start."""
    recorded = space(names)
    until = recorded.optimum * (1 + WITHIN["5pct"])
    return replay(recorded, sampler_named(DEFAULT_SAMPLER), seed, BUDGET, until=until)


def measured(target: Space, source: Space, trials: int | None, seeds: Sequence[int]) -> dict[str, Any]:
    """The figures of a pair."""
    recorded, begun = space(target), beginning(source, trials)
    until = recorded.optimum * (1 + WITHIN["5pct"])
    counts = {"cold": [], "warm": []}
    for seed in seeds:
        for kind, run in (
            ("cold", cold(target, seed)),
            ("warm", begun.replay(recorded, DEFAULT_SAMPLER, seed, BUDGET, until)),
        ):
            counts[kind].append(run.reached(until) or MISSED * BUDGET)
    logs = np.log(np.array(counts["warm"]) / np.array(counts["cold"]))
    medians = {kind: float(np.median(found)) for kind, found in counts.items()}
    row: dict[str, Any] = {"space": recorded.name, "begun_with": begun.source.name, "trials": trials or "all"}
    row["seeds"] = len(seeds)
    for kind, found in counts.items():
        row[kind] = {
            "median": medians[kind],
            "geomean": round(float(np.exp(np.log(found).mean())), 2),
            "share": sum(count <= BUDGET for count in found) / len(found),
        }
    row["ratio_median"] = round(medians["warm"] / medians["cold"], 3)
    row["ratio_geomean"] = round(float(np.exp(logs.mean())), 3)
    row["ratio_error"] = round(float(logs.std() / np.sqrt(len(logs))), 3)
    return row


def main() -> int:
    """Measures pairs and writes them to `replay_warm_start.json`, beside what it holds of other kinds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40, help="runs of each, with seeds from 0 on")
    parser.add_argument("--only", choices=list(PAIRS), action="append", help="one kind of pair")
    parser.add_argument("--out", type=Path, help="a folder")
    given = parser.parse_args()
    path, kinds = out_folder(given.out, "warm_start") / "replay_warm_start.json", given.only or list(PAIRS)
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    for kind in kinds:
        rows = [row for row in rows if row["kind"] != kind]
        for target, source, trials in PAIRS[kind]:
            rows.append({"kind": kind, **measured(target, source, trials, range(given.seeds))})
            print(rows[-1], file=sys.stderr, flush=True)
        write_json(path, {"command": COMMAND, "budget": BUDGET, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(one_line(main))
