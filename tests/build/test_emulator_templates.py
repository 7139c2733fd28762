# SPDX-License-Identifier: Apache-2.0
"""The real CUDA templates in the emulator: right at ragged shapes, in several orders, and nothing found."""

from __future__ import annotations

from typing import Any

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.emulator import emulate_variant
from coldforge.codegen.problem import make_problem
from coldforge.codegen.space import Config
from coldforge.codegen.target import cuda_target
from coldforge.tuner.bound import expect, judge
from coldforge.tuner.inputs import draw
from coldforge.tuner.shapes import ragged_problems
from emulator_kernels import shared_cache

pytestmark = pytest.mark.build

TARGET = cuda_target("sm_90")
CATALOGUE = catalogue()
CONV, MEAN = "conv2d_divide_leaky_relu", "conv_transpose2d_mean_logsumexp"
# Operator, template, shape words over workload `small`, dtype, what the config must have.
VARIANTS: dict[str, tuple[str, str, dict[str, Any], str, dict[str, Any]]] = {
    "cp_async": (CONV, "direct", {"C_in": 9, "C_out": 19}, "fp32", {}),
    "double": (CONV, "direct", {"C_in": 9, "C_out": 16, "padding": 1}, "fp32", {"STAGING": "double"}),
    "plain": (CONV, "direct", {"C_in": 3, "C_out": 10, "stride": 2}, "fp32", {"STAGING": "plain"}),
    "global": (CONV, "direct", {"C_in": 8, "C_out": 16, "kernel_size": 3}, "fp32", {"WEIGHTS": "global"}),
    "kahan": (CONV, "direct", {"C_in": 9, "C_out": 8, "dilation": 2, "bias": 0}, "fp32", {"ACC": "kahan"}),
    "fp16": (CONV, "direct", {"C_in": 9, "C_out": 16, "padding": 2}, "fp16", {"STAGING": "cp_async"}),
    "bf16": (CONV, "direct", {"C_in": 4, "C_out": 16}, "bf16", {"STAGING": "plain"}),
    "two launches": (MEAN, "collapsed", {"C_in": 5, "C_out": 12}, "fp32", {"LAUNCHES": "two"}),
    "last block": (MEAN, "collapsed", {"C_in": 5, "C_out": 12}, "fp32", {"LAUNCHES": "one", "SPLIT": 16}),
}


def _config(space: Any, problem: Any, wanted: dict[str, Any]) -> Config:
    """The legal config with those values that has most in common with the default."""
    legal = [c for c in space.feasible(problem, TARGET) if all(c[n] == v for n, v in wanted.items())]
    return max(legal, key=lambda config: sum(config[name] == space.default[name] for name in config))


@pytest.mark.parametrize("build", ["asan", "race"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_template_is_right_and_clean(
    name: str, build: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    operator, template, shape, dtype, wanted = VARIANTS[name]
    problem = make_problem(CATALOGUE.operator(operator), "small", shape, dtype)
    space = CATALOGUE.space(problem.operator, TARGET, template)
    config = _config(space, problem, wanted)
    shapes = ragged_problems(problem)[1:4]
    cases = [(shape, draw(shape, "normal")) for shape in shapes]
    orders = ("forward", "reverse", "shuffle:5")
    cache = shared_cache(tmp_path_factory)
    results = emulate_variant(space, config, TARGET, cases, build=build, orders=orders, cache=cache)
    assert len(results) == len(cases) * len(orders)
    for index, result in enumerate(results):
        assert [str(finding) for finding in result.findings] == []
        shape_problem, tensors = cases[index // len(orders)]
        expected = expect(shape_problem, tensors, shape_problem.scalars, dtype)
        judgement = judge(result.outputs[problem.output.name], expected)
        assert judgement.wrong == 0, (config.key, shape_problem.dims, judgement)
