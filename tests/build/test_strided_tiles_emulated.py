# SPDX-License-Identifier: Apache-2.0
"""Strided tiles of the convolution that store shared lines whole, where each consumer goes through several:
what a tile leaves for its end, and where the next one begins, are met only then."""

from __future__ import annotations

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.emulator import emulate_variant
from coldforge.codegen.problem import make_problem
from coldforge.codegen.target import cuda_target
from coldforge.tuner.bound import expect, judge
from coldforge.tuner.check.cases import few
from coldforge.tuner.inputs import draw
from emulator_kernels import shared_cache

pytestmark = pytest.mark.build

TARGET = few(cuda_target("sm_90"))
OPERATOR = catalogue().operator("conv2d_divide_leaky_relu")
# Rows of one pixel more than a line, of five more, and of a multiple of a line.
WIDTHS = {35: "normal", 39: "mixed", 66: "nonfinite"}


@pytest.mark.parametrize(("run", "gatherers", "rows"), [(32, 4, 2), (32, 8, 3), (64, 4, 1)])
def test_each_consumer_of_several_tiles(
    run: int, gatherers: int, rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    problem = make_problem(OPERATOR, "small", {"C_in": 5, "C_out": 19, "W": 66})
    space = catalogue().space(OPERATOR, TARGET, "warpgroup")
    wanted = {"RUN": run, "GATHERERS": gatherers, "TILE_Y": rows, "EDGES": "whole", "PRODUCTS": 3}
    config = next(c for c in space.feasible(problem, TARGET) if all(c[n] == v for n, v in wanted.items()))
    cases = []
    for width, kind in WIDTHS.items():
        at = problem.with_dims(N=2, H=27, W=width)
        tiles = int(space.environment(at, config, TARGET)["PIXEL_TILES"])
        assert tiles > 2 * space.launch(at, config, TARGET).grid * int(config["CONSUMERS"])
        cases.append((at, draw(at, kind)))
    cache = shared_cache(tmp_path_factory)
    for build in ("asan", "race"):
        results = emulate_variant(space, config, TARGET, cases, build=build, orders=("reverse",), cache=cache)
        for (at, tensors), result in zip(cases, results, strict=True):
            assert [str(finding) for finding in result.findings] == []
            expected = expect(at, tensors, at.scalars, "fp32")
            judgement = judge(result.outputs[problem.output.name].clone(), expected)
            assert judgement.wrong == 0, (config.key, at.dims, judgement)
