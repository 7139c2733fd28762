# SPDX-License-Identifier: Apache-2.0
"""The accumulators of the CUDA templates by themselves, in the emulator: on sums that plain fp32 gets wrong
`kahan` and `fp64` are right to the last few bits, and all treat infinities and NaN as IEEE arithmetic does.

A whole kernel is held to the bound of a plain fp32 sum whatever its accumulator; only here does it show that
one is better."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from functools import cache

import numpy
import pytest
from accumulator_kernels import KERNELS, Results, excess, run, wrong
from accumulator_series import MANY_ULPS, ulps
from coldforge.tuner.check.run import BUILDS
from emulator_kernels import shared_cache

pytestmark = pytest.mark.build

ALL = [(kernel, series) for kernel in KERNELS for series in KERNELS[kernel].series]
ILL = [(kernel, series) for kernel, series in ALL if KERNELS[kernel].series[series].ill]
PLAIN = {"products": "fp32", "sums": "plain"}
ResultsOf = Callable[..., Mapping[str, Results]]


@pytest.fixture(scope="module")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> ResultsOf:
    @cache
    def results(name: str, build: str = "asan") -> Mapping[str, Results]:
        found, findings = run(name, build, shared_cache(tmp_path_factory))
        assert [str(finding) for finding in findings] == []
        return found

    return results


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("build", BUILDS)
def test_right_and_clean(build: str, name: str, results_of: ResultsOf) -> None:
    found = results_of(name, build)
    assert set(found) == set(KERNELS[name].series)
    assert all(set(outputs) == set(KERNELS[name].outputs) for outputs in found.values())
    assert wrong(name, found) == []


@pytest.mark.parametrize(("name", "series"), ILL)
def test_a_plain_sum_is_far_off_where_others_are_not(name: str, series: str, results_of: ResultsOf) -> None:
    lanes, found = KERNELS[name].series[series].lanes, results_of(name)[series]
    off = {
        output: [ulps(float(value), lane.exact) for value, lane in zip(found[output], lanes, strict=True)]
        for output in (PLAIN[name], "kahan", "fp64")
    }
    assert statistics.median(off[PLAIN[name]]) > MANY_ULPS
    assert max(off["kahan"]) < MANY_ULPS / 10
    assert max(off["fp64"]) < 1


@pytest.mark.parametrize("series", [series for name, series in ILL if name == "sums"])
def test_what_lanes_add_up_is_as_right(series: str, results_of: ResultsOf) -> None:
    exact, found = KERNELS["sums"].series[series].all_lanes.exact, results_of("sums")[series]
    for output in ("plain_all", "fp32_all", "kahan_all", "fp64_all"):
        assert len(set(found[output].tolist())) == 1, output  # the same bits in each lane
    assert ulps(float(found["plain_all"][0]), exact) > MANY_ULPS
    assert ulps(float(found["kahan_all"][0]), exact) < MANY_ULPS / 10
    assert ulps(float(found["fp64_all"][0]), exact, numpy.float64) < 0.001


@pytest.mark.parametrize("series", ["all alike", "all alike and negative"])
def test_short_chains_are_within_a_bound_that_a_long_one_breaks(series: str, results_of: ResultsOf) -> None:
    kernel, found = KERNELS["sums"], results_of("sums")[series]
    assert excess(kernel, kernel.series[series], "fp32", 0, float(found["fp32"][0])) < 1
    assert excess(kernel, kernel.series[series], "fp32", 0, float(found["plain"][0])) > 3


@pytest.mark.parametrize(("name", "series"), ALL)
def test_infinities_and_nan_come_out_as_they_are(name: str, series: str, results_of: ResultsOf) -> None:
    found = results_of(name)[series]
    wanted = KERNELS[name].series[series].lanes[0].exact
    with numpy.errstate(over="ignore"):
        single = float(numpy.float32(wanted))
    assert math.isfinite(single) == ("inf" not in series and "nan" not in series and "beyond" not in series)
    for output, values in found.items():
        if output.endswith("_all") or output == "tree" or math.isfinite(single):
            continue
        want = wanted if values.dtype == numpy.float64 else single
        assert numpy.array_equal(values, numpy.full_like(values, want), equal_nan=True), output
