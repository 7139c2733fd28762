# SPDX-License-Identifier: Apache-2.0
"""The depthwise CUDA template, and the direct one with groups, under the real compiler, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache
from coldforge.codegen.compile.pool import CompileRequest, compile_many
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import Target, cuda_target

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'coldforge[cuda]')")
pytestmark = pytest.mark.build

SM90 = cuda_target("sm_90")
CONV, RELU6 = "conv2d_divide_leaky_relu", "depthwise_conv2d_relu6"
SPACE: Space = catalogue().space(catalogue().operator(RELU6), SM90, "depthwise")
SEED = make_problem(catalogue().operator(RELU6), "seed")

# Operator, template, shape over workload `small`, dtype, arch: what the templates must be able to express.
PROBLEMS: list[tuple[str, str, dict[str, Any], str, str]] = [
    (RELU6, "depthwise", {"kernel_size": 7, "padding": 3, "W": 61}, "fp32", "sm_80"),
    (RELU6, "depthwise", {"kernel_size": 11, "padding": 5, "stride": 2}, "fp32", "sm_90"),
    (RELU6, "depthwise", {"kernel_size": 31, "padding": 15}, "fp32", "sm_100"),
    (RELU6, "depthwise", {"C_out": 96, "stride_h": 3, "dilation": 2}, "fp16", "sm_90"),
    (RELU6, "depthwise", {"H": 7, "W": 7, "bias": 0}, "bf16", "sm_120"),
    (RELU6, "depthwise", {"kernel_size": 1, "padding": 0}, "fp16", "sm_80"),
    (CONV, "direct", {"C_in": 15, "C_out": 9, "groups": 3, "stride": 2}, "fp32", "sm_90"),
    (CONV, "direct", {"groups": 2, "bias": 0}, "fp16", "sm_80"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cubins"))


def _compiled(
    space: Space, problem: Problem, configs: Sequence[Config], target: Target, cache: Cache
) -> list[Artifact]:
    requests = [CompileRequest(render(space, problem, config, target), target) for config in configs]
    results = dict(compile_many(requests, 2, cache))
    assert [str(result) for result in results.values() if not isinstance(result, Artifact)] == []
    return [result for _, result in sorted(results.items()) if isinstance(result, Artifact)]


def test_a_sample_spills_nothing_and_is_about_as_large_as_estimated(cache: Cache) -> None:
    sample = SPACE.feasible(SEED, SM90)[5::41]
    for config, artifact in zip(sample, _compiled(SPACE, SEED, sample, SM90, cache), strict=True):
        env, used = SPACE.environment(SEED, config, SM90), artifact.resources
        assert used.spill_store_bytes == used.stack_bytes == used.shared_bytes == 0, config.key
        resident = int(config["BLOCK"]) * int(env["MIN_BLOCKS"])
        assert used.registers <= SM90.attributes["registers_per_sm"] // resident, config.key
        assert abs(used.registers - int(env["REGISTERS"])) <= 32, config.key


def test_no_parameter_is_inert(cache: Cache) -> None:
    legal = SPACE.feasible(SEED, SM90)

    def distance(config: Config) -> int:
        return sum(config[name] != SPACE.default[name] for name in config)

    configs = [SPACE.default]
    for parameter in SPACE.parameters:
        for value in parameter.values:
            near = min((c for c in legal if c[parameter.name] == value), key=distance, default=None)
            configs += [near] if near is not None and near not in configs else []
    digests = [artifact.code_digest for artifact in _compiled(SPACE, SEED, configs, SM90, cache)]
    assert len(set(digests)) == len(digests) >= 15


@pytest.mark.parametrize(("operator", "template", "shape", "dtype", "arch"), PROBLEMS)
def test_problems_of_all_kinds_compile(
    operator: str, template: str, shape: dict[str, Any], dtype: str, arch: str, cache: Cache
) -> None:
    target = cuda_target(arch)
    problem = make_problem(catalogue().operator(operator), "small", shape, dtype)
    space = catalogue().space(problem.operator, target, template)
    legal = space.feasible(problem, target)
    for artifact in _compiled(space, problem, legal[len(legal) // 3 :: len(legal)], target, cache):
        assert artifact.resources.registers > 0
        assert artifact.resources.spill_store_bytes <= 64
