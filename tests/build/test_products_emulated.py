# SPDX-License-Identifier: Apache-2.0
"""Tensor-core templates with one product of a number: of floats right in the class tf32, and not in fp32; of
16-bit numbers right in their own, wherever rows and planes begin and end."""

from __future__ import annotations

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.emulator import emulate_variant
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.target import cuda_target
from coldforge.tuner.bound import expect, judge
from coldforge.tuner.inputs import KINDS, draw
from coldforge.tuner.shapes import elements, ragged_problems
from emulator_kernels import shared_cache

pytestmark = pytest.mark.build

TARGET = cuda_target("sm_90")
OPERATOR = catalogue().operator("conv2d_divide_leaky_relu")
TEMPLATES = [s.template for s in catalogue().spaces(OPERATOR, "cuda") if "PRODUCTS" in s.by_name]
SHAPES = {"whole": {"C_in": 8, "C_out": 32}, "padded, odd": {"C_in": 5, "C_out": 19, "padding": 1}}


def _problem(shape: str) -> Problem:
    return make_problem(OPERATOR, "small", SHAPES[shape]).in_class("tf32")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("template", TEMPLATES)
def test_one_product_is_of_its_class(
    template: str, shape: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    problem = _problem(shape)
    space = catalogue().space(OPERATOR, TARGET, template)
    legal = [config for config in space.feasible(problem, TARGET) if config["PRODUCTS"] == 1]
    config = max(legal, key=lambda c: sum(c[name] == space.default[name] for name in c))
    small = sorted(ragged_problems(problem), key=elements)
    cases = [(small[i % 3], draw(small[i % 3], kind)) for i, kind in enumerate(KINDS)]
    cache = shared_cache(tmp_path_factory)
    results = emulate_variant(space, config, TARGET, cases, build="asan", orders=("forward",), cache=cache)
    ratios: dict[str, float] = {}
    for (at, tensors), kind, result in zip(cases, KINDS, results, strict=True):
        assert [str(finding) for finding in result.findings] == []
        output = result.outputs[problem.output.name]
        judgement = judge(output.clone(), expect(at, tensors, at.scalars, "tf32"))
        assert judgement.wrong == 0, (config.key, kind, judgement)
        ratios[kind] = judge(output.clone(), expect(at, tensors, at.scalars, "fp32")).ratio
    assert ratios["normal"] > 50


# Planes of a multiple of eight, of four, and of neither; whole rows and parts of them.
PLANES = {
    (18, 66): "normal",
    (12, 37): "mixed",
    (11, 13): "nonfinite",
    (7, 262): "tiny",
    (10, 290): "mixed_rows",
}


@pytest.mark.parametrize("store", ["direct", "staged"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_numbers_of_16_bits_go_in_pieces(
    dtype: str, store: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    words = {"C_in": 11, "C_out": 24, "W": 290}
    problem = make_problem(OPERATOR, "small", words, dtype)
    space = catalogue().space(OPERATOR, TARGET, "tensor")
    legal = [config for config in space.feasible(problem, TARGET) if config["STORE"] == store]
    assert {config["PRODUCTS"] for config in legal} == {1}
    assert {config["TILE_Y"] for config in legal} >= {2, 4}
    config = next(c for c in legal if (c["TILE_Y"], c["C_TILE"], c["WEIGHTS"]) == (2, 16, "registers"))
    cases = []
    for (rows, columns), kind in PLANES.items():
        at = problem.with_dims(N=2, H=rows, W=columns)
        cases.append((at, draw(at, kind)))
    cache = shared_cache(tmp_path_factory)
    for build in ("asan", "race"):
        results = emulate_variant(space, config, TARGET, cases, build=build, orders=("reverse",), cache=cache)
        for (at, tensors), result in zip(cases, results, strict=True):
            assert [str(finding) for finding in result.findings] == []
            expected = expect(at, tensors, at.scalars, dtype)
            judgement = judge(result.outputs[problem.output.name].clone(), expected)
            assert judgement.wrong == 0, (config.key, at.dims, judgement)
