# SPDX-License-Identifier: Apache-2.0
"""The default sampler against recorded spaces. Few seeds and margins here; all 40 seeds, against the targets
and the committed table, are slow."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coldforge.tuner.replay.recorded import Recorded, read_recorded
from coldforge.tuner.replay.run import replay
from coldforge.tuner.replay.table import row_of
from coldforge.tuner.search import DEFAULT_SAMPLER, SAMPLERS, FeasibleSet, sampler_named

ROOT = Path(__file__).parents[2]
SPACES = ("convolution_A100", "convolution_MI250X", "dedispersion_A100", "pnpoly_RTX3090")
COMMITTED = ROOT / "benchmarks/results/replay_samplers.json"
BUDGET = 200
# Median evaluations to within 5% of the optimum, and the least share of runs that get there: what is wanted,
# and what six seeds can hold whatever the rounding of a machine's BLAS does to single runs.
WANTED = {
    "convolution_A100": (150, 0.7),
    "convolution_MI250X": (60, 0.9),
    "dedispersion_A100": (2, 1.0),
    "pnpoly_RTX3090": (28, 0.9),
}
HELD = {
    "convolution_A100": (170, 0.5),
    "convolution_MI250X": (85, 0.8),
    "dedispersion_A100": (4, 1.0),
    "pnpoly_RTX3090": (40, 0.8),
}


@cache
def _recorded(space: str) -> Recorded:
    return read_recorded(ROOT / f"tests/data/replay/{space}.csv.gz")


def _row(recorded: Recorded, sampler: str, seeds: int) -> dict[str, Any]:
    runs = [replay(recorded, sampler_named(sampler), seed, BUDGET) for seed in range(seeds)]
    return row_of(recorded, sampler, runs, BUDGET)


@pytest.mark.parametrize("space", SPACES)
def test_the_default_sampler_is_good(space: str) -> None:
    row = _row(_recorded(space), DEFAULT_SAMPLER, 6 if space != "dedispersion_A100" else 3)
    median, share = HELD[space]
    assert row["to_5pct_median"] <= median
    assert row["to_5pct_share"] >= share
    assert (row["repeats_mean"], row["outside_mean"]) == (0, 0)


def _transformed(recorded: Recorded, how: str) -> Recorded:
    """The same space in other words, or a part of it."""
    rng = np.random.default_rng(0)
    configs = [dict(point.config) for point in recorded.feasible.points]
    times = recorded.times.copy()
    if how == "steeper":
        times = times**3
    elif how == "other order of parameters":
        names = rng.permutation(list(configs[0])).tolist()
        configs = [{f"p{at}": config[name] for at, name in enumerate(names)} for config in configs]
    elif how == "half of it":
        kept = rng.permutation(len(configs))[: len(configs) // 2]
        configs, times = [configs[at] for at in kept], times[kept]
    return Recorded(f"{recorded.name}, {how}", FeasibleSet({"t": configs}), times)


@pytest.mark.parametrize("how", ["steeper", "other order of parameters", "half of it"])
def test_it_does_not_hang_on_how_a_space_is_told(how: str) -> None:
    row = _row(_transformed(_recorded("pnpoly_RTX3090"), how), DEFAULT_SAMPLER, 3)
    assert row["to_5pct_share"] == 1  # of the cubed times: 1.6% of the time
    assert row["to_5pct_median"] <= 60


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_the_committed_table(sampler: str, space: str) -> None:
    committed = json.loads(COMMITTED.read_text())
    (told,) = (row for row in committed["rows"] if (row["sampler"], row["space"]) == (sampler, space))
    row = _row(_recorded(space), sampler, committed["seeds"])
    assert row["to_5pct_share"] == pytest.approx(told["to_5pct_share"], abs=0.15)
    assert row["to_5pct_geomean"] == pytest.approx(told["to_5pct_geomean"], rel=0.35)
    if sampler == DEFAULT_SAMPLER:  # on another machine single runs go other ways
        assert row["to_5pct_median"] <= 1.15 * WANTED[space][0]
        assert row["to_5pct_share"] >= WANTED[space][1] - 0.05


def test_the_table_says_that_the_default_sampler_is_the_best() -> None:
    committed = json.loads(COMMITTED.read_text())
    assert {row["space"] for row in committed["rows"]} == set(SPACES)
    assert {row["sampler"] for row in committed["rows"]} == set(SAMPLERS)
    assert committed["seeds"] >= 40
    first, *others = sorted(committed["overall"], key=lambda total: total["to_5pct_geomean"])
    assert first["sampler"] == DEFAULT_SAMPLER
    assert first["to_5pct_share"] >= max(0.9, *(total["to_5pct_share"] for total in others))
    for row in committed["rows"]:
        if row["sampler"] == DEFAULT_SAMPLER:
            assert row["to_5pct_median"] <= WANTED[row["space"]][0]
            assert row["to_5pct_share"] >= WANTED[row["space"]][1]
