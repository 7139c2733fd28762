# SPDX-License-Identifier: Apache-2.0
"""Warm starts on recorded spaces: what a good source saves and a bad one costs. Little of it here; the limits
on twenty seeds of each pair are slow."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coldforge.tuner.replay.begun import Beginning
from coldforge.tuner.replay.derived import CHANGES, derived
from coldforge.tuner.replay.recorded import Recorded, read_recorded
from coldforge.tuner.replay.run import replay
from coldforge.tuner.search import DEFAULT_SAMPLER, sampler_named

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "benchmarks/results/replay_warm_start.json"
BUDGET = 200
LEAST_SAVED, MOST_LOST = 2.0, 1.1
"""Times fewer evaluations by a good source, times as many by a bad one: what is wanted."""


@cache
def _space(name: str) -> Recorded:
    """As it is recorded, or changed: `name, change`."""
    recorded, *changes = name.split(", ")
    return derived(read_recorded(ROOT / f"tests/data/replay/{recorded}.csv.gz"), *changes)


@cache
def _cold(name: str, seed: int) -> int:
    recorded = _space(name)
    until = 1.05 * recorded.optimum
    run = replay(recorded, sampler_named(DEFAULT_SAMPLER), seed, BUDGET, until=until)
    return run.reached(until) or 2 * BUDGET


def _ratios(name: str, source: str, trials: int | None, seeds: int) -> tuple[float, float]:
    """Evaluations to within 5% with a warm start to those without: of the medians and geometric means."""
    recorded, begun = _space(name), Beginning(_space(source), trials)
    until = 1.05 * recorded.optimum
    runs = [begun.replay(recorded, DEFAULT_SAMPLER, seed, BUDGET, until) for seed in range(seeds)]
    warm = np.array([run.reached(until) or 2 * BUDGET for run in runs], dtype=float)
    cold = np.array([_cold(name, seed) for seed in range(seeds)], dtype=float)
    return float(np.median(warm) / np.median(cold)), float(np.exp(np.log(warm / cold).mean()))


SHAPES = ("conv2d_subtract_mish_20x64", "conv2d_subtract_mish_32x32")


@pytest.mark.parametrize(("name", "source"), [SHAPES, SHAPES[::-1]])
def test_one_shape_saves_half_of_anothers_evaluations(name: str, source: str) -> None:
    assert max(_ratios(name, source, None, 8)) <= 1 / LEAST_SAVED


@pytest.mark.parametrize("seed", [0, 1])
def test_a_source_that_is_refuted_costs_one_evaluation(seed: int) -> None:
    """The A100's only good configs are slow on the MI250X, and the other way round."""
    space = _space("convolution_A100")
    cold = replay(space, sampler_named(DEFAULT_SAMPLER), seed, 25).order
    warm = list(Beginning(_space("convolution_MI250X"), 60).replay(space, DEFAULT_SAMPLER, seed, 26).order)
    favourite = warm.pop(0)
    assert warm == [index for index in cold if index != favourite][: len(warm)]


@pytest.mark.parametrize("change", CHANGES)
def test_derived_spaces(change: str) -> None:
    space = _space("pnpoly_RTX3090")
    made = derived(space, change)
    assert made.name == f"pnpoly_RTX3090, {change}"
    np.testing.assert_array_equal(made.times, derived(space, change).times)
    assert len(made.feasible) == len(space.feasible) // (2 if change == "half of it" else 1)
    here = np.array([space.feasible.index_of(made.feasible.params(at)) for at in range(len(made.feasible))])
    best = np.argsort(made.times)[:200]
    known = np.nan_to_num(space.times, nan=np.nanmax(space.times))
    middle = np.median(known)
    theirs = known[here[best].astype(int)]  # how fast what is best there is here
    if change in ("cubed", "half of it"):
        assert theirs.max() < middle
    elif change == "half-right":
        assert np.sort(space.times)[100] < theirs.min() < middle
    elif change == "shuffled":
        assert 0.8 * middle < np.median(theirs) < 1.25 * middle
    elif change == "wrong":
        assert np.median(theirs) > middle
    else:
        np.testing.assert_array_equal(made.times, space.times)
        assert (here != np.arange(len(here))).mean() > 0.5


BAD = [
    ("convolution_A100", "convolution_MI250X", 200),
    ("pnpoly_RTX3090", "pnpoly_RTX3090, shuffled", 100),
    ("pnpoly_RTX3090", "pnpoly_RTX3090, wrong", 100),
    ("convolution_MI250X", "convolution_A100, shuffled", 100),
    ("dedispersion_A100", "dedispersion_A100, shuffled", 50),
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "source", "trials"), BAD)
def test_a_bad_source_costs_little(name: str, source: str, trials: int) -> None:
    median, mean = _ratios(name, source, trials, 20)
    assert mean <= MOST_LOST + 0.05  # of twenty seeds
    assert median <= MOST_LOST + 0.1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_device_saves_half_of_anothers_evaluations() -> None:
    assert max(_ratios("convolution_MI250X", "convolution_A100", 200, 20)) <= 0.65  # of twenty seeds


def test_the_committed_figures_keep_the_limits() -> None:
    rows: list[dict[str, Any]] = json.loads(COMMITTED.read_text())["rows"]
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in ("device", "shape", "bad")}
    assert {(row["space"], row["begun_with"]) for row in by_kind["bad"]} == {pair[:2] for pair in BAD}
    assert {(row["space"], row["begun_with"]) for row in by_kind["shape"]} == {SHAPES, SHAPES[::-1]}
    for row in by_kind["device"] + by_kind["shape"]:
        assert max(row["ratio_median"], row["ratio_geomean"]) <= 1 / LEAST_SAVED
    for row in by_kind["bad"]:
        assert max(row["ratio_median"], row["ratio_geomean"]) <= MOST_LOST
