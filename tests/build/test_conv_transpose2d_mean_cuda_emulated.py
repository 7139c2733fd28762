# SPDX-License-Identifier: Apache-2.0
"""The CUDA template of conv_transpose2d_mean in the emulator, against float64: what its geometry must get
right (borders, runs that begin anywhere, planes shorter than their borders), who finishes which sample."""

from __future__ import annotations

from typing import Any

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.emulator import emulate_variant
from coldforge.codegen.problem import make_problem
from coldforge.codegen.target import cuda_target
from coldforge.tuner.bound import expect, judge
from coldforge.tuner.inputs import draw
from emulator_kernels import shared_cache

pytestmark = pytest.mark.build

SM90 = cuda_target("sm_90")
LOGSUMEXP, SCALE_MEAN = "conv_transpose2d_mean_logsumexp", "conv_transpose2d_scale_mean"
# Operator, shape words over workload `small`, dtype, config, then kinds of inputs at [N, H, W].
Case = tuple[str, dict[str, Any], str, dict[str, Any], list[tuple[str, tuple[int, int, int]]]]
CASES: dict[str, Case] = {
    "no run begins at a vector": (
        LOGSUMEXP,
        {"C_in": 3, "C_out": 5},
        "fp32",
        {"SPLIT": 4, "UNROLL": 2, "FOLD": 1},
        [("offset", (2, 19, 37)), ("nonfinite", (2, 33, 31)), ("normal", (1, 1, 1))],
    ),
    "a block finishes several samples": (
        LOGSUMEXP,
        {"C_in": 2, "C_out": 70, "bias": 0, "conv_bias": 0},
        "fp32",
        {"SPLIT": 1, "BLOCK": 512, "LAUNCHES": "one", "ACC": "kahan"},
        [("normal", (11, 5, 7)), ("nonfinite", (9, 3, 2))],
    ),
    "borders all around": (
        LOGSUMEXP,
        {"C_in": 3, "C_out": 6, "kernel_size": 5, "padding": 3, "stride": 2, "output_padding": 1},
        "fp32",
        {"SPLIT": 8, "LAUNCHES": "one", "ACC": "fp64", "HINT": "plain"},
        [
            ("mixed_rows", (2, 21, 35)),
            ("nonfinite", (2, 9, 8)),
            ("impulses", (1, 12, 5)),
            ("normal", (1, 2, 3)),
        ],
    ),
    "planes of nothing but borders": (
        SCALE_MEAN,
        {"C_in": 2, "C_out": 9, "kernel_size": 7, "padding": 3, "stride": 1, "output_padding": 0},
        "fp32",
        {"SPLIT": 2, "HINT": "no_allocate"},
        [("normal", (2, 1, 1)), ("normal", (2, 4, 2)), ("normal", (2, 2, 40)), ("nonfinite", (1, 40, 7))],
    ),
    "borders at two sides": (
        LOGSUMEXP,
        {"C_in": 2, "C_out": 40, "R": 3, "S": 5, "padding_w": 2, "dilation": 2},
        "fp32",
        {"SPLIT": 1, "UNROLL": 2},
        [("normal", (2, 37, 45)), ("nonfinite", (1, 6, 9))],
    ),
    "elements of 16 bits": (
        LOGSUMEXP,
        {"C_in": 2, "C_out": 3, "padding": 1},
        "fp16",
        {"SPLIT": 2, "VEC": 8, "UNROLL": 2},
        [("normal", (2, 17, 45)), ("nonfinite", (1, 6, 9)), ("normal", (1, 20, 6))],
    ),
}


@pytest.mark.parametrize("build", ["asan", "race"])
@pytest.mark.parametrize("name", CASES)
def test_right_and_clean(name: str, build: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    operator, words, dtype, given, inputs = CASES[name]
    problem = make_problem(catalogue().operator(operator), "small", words, dtype)
    space = catalogue().space(problem.operator, SM90, "collapsed")
    shapes = [problem.with_dims(N=n, H=h, W=w) for _, (n, h, w) in inputs]
    cases = [(shape, draw(shape, kind)) for shape, (kind, _) in zip(shapes, inputs, strict=True)]
    cache = shared_cache(tmp_path_factory)
    orders = ("forward", "shuffle:3") if build == "race" else ("reverse",)
    results = emulate_variant(
        space, space.config(given), SM90, cases, build=build, orders=orders, cache=cache
    )
    assert len(results) == len(cases) * len(orders)
    for index, result in enumerate(results):
        assert [str(finding) for finding in result.findings] == []
        shape, tensors = cases[index // len(orders)]
        judgement = judge(result.outputs["y"], expect(shape, tensors, shape.scalars, dtype))
        assert judgement.wrong == 0, (inputs[index // len(orders)], judgement)
