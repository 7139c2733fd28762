# SPDX-License-Identifier: Apache-2.0
"""The CUDA template of conv2d under the real compiler, without a GPU: the space holds what it promises."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache, compile_source
from coldforge.codegen.compile.pool import CompileRequest, compile_many
from coldforge.codegen.errors import CompileError
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import Target, cuda_target

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'coldforge[cuda]')")
pytestmark = pytest.mark.build

SM90 = cuda_target("sm_90")
OPERATOR = catalogue().operator("conv2d_divide_leaky_relu")
SPACE: Space = catalogue().space(OPERATOR, SM90, "direct")
SEED = make_problem(OPERATOR, "seed")

# Shape words over workload `small`, dtype, arch: what the template must be able to express.
PROBLEMS: list[tuple[dict[str, Any], str, str]] = [
    ({"stride": 2, "padding": 1}, "fp32", "sm_80"),
    ({"dilation": 2, "padding_w": 5, "stride_h": 3}, "fp32", "sm_90"),
    ({"C_in": 3, "C_out": 19, "kernel_size": 7, "stride": 2, "padding": 3}, "fp32", "sm_100"),
    ({"C_in": 64, "C_out": 10, "kernel_size": 1}, "fp32", "sm_120"),
    ({"C_in": 33, "R": 5, "S": 3, "bias": 0}, "fp32", "sm_90"),
    ({"C_in": 1, "C_out": 1}, "fp32", "sm_80"),
    ({"padding": 1}, "fp16", "sm_90"),
    ({"C_in": 9, "padding": 2}, "bf16", "sm_80"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cubins"))


def _compiled(problem: Problem, configs: Sequence[Config], target: Target, cache: Cache) -> list[Artifact]:
    requests = [CompileRequest(render(SPACE, problem, config, target), target) for config in configs]
    results = dict(compile_many(requests, 2, cache))
    failures = [str(result) for result in results.values() if not isinstance(result, Artifact)]
    assert failures == []
    return [result for _, result in sorted(results.items()) if isinstance(result, Artifact)]


def _neighbour(name: str, value: int | str) -> Config | None:
    """The legal config with that value that has most in common with the default."""

    def distance(config: Config) -> int:
        return sum(config[key] != SPACE.default[key] for key in config)

    candidates = [config for config in _feasible() if config[name] == value]
    return min(candidates, key=distance) if candidates else None


@functools.cache
def _feasible() -> list[Config]:
    return SPACE.feasible(SEED, SM90)


def test_the_seed_space_has_the_promised_size() -> None:
    assert 2000 <= len(_feasible()) <= 3000
    assert SPACE.default in _feasible()


def test_every_value_is_legal_somewhere() -> None:
    others = [make_problem(OPERATOR, "seed", shape) for shape in ({"dilation": 16}, {"C_out": 8})]
    legal = _feasible() + [config for problem in others for config in SPACE.feasible(problem, SM90)]
    for parameter in SPACE.parameters:
        assert {config[parameter.name] for config in legal} == set(parameter.values), parameter.name


def test_every_workload_and_arch_has_a_default() -> None:
    for arch in SPACE.archs:
        for workload in OPERATOR.workloads:
            problem = make_problem(OPERATOR, workload)
            assert SPACE.check(problem, SPACE.default, cuda_target(arch)) is None, (arch, workload)


def test_a_sample_compiles_to_distinct_code_within_its_registers(cache: Cache) -> None:
    sample = _feasible()[17::331]
    artifacts = _compiled(SEED, sample, SM90, cache)
    assert len({artifact.code_digest for artifact in artifacts}) == len(sample)
    for config, artifact in zip(sample, artifacts, strict=True):
        env, used = SPACE.environment(SEED, config, SM90), artifact.resources
        assert used.spill_store_bytes <= 64, config.key
        assert used.registers <= int(env["REGISTER_CAP"]), config.key
        assert used.shared_bytes == 0, config.key  # all of it is dynamic


def test_no_parameter_is_inert(cache: Cache) -> None:
    configs = [SPACE.default]
    for parameter in SPACE.parameters:
        for value in parameter.values:
            near = None if value == SPACE.default[parameter.name] else _neighbour(parameter.name, value)
            configs += [near] if near is not None and near not in configs else []
    digests = [artifact.code_digest for artifact in _compiled(SEED, configs, SM90, cache)]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(("shape", "dtype", "arch"), PROBLEMS)
def test_problems_of_all_kinds_compile(shape: dict[str, Any], dtype: str, arch: str, cache: Cache) -> None:
    target = cuda_target(arch)
    problem = make_problem(OPERATOR, "small", shape, dtype)
    legal = SPACE.feasible(problem, target)
    picked = [legal[len(legal) // 3], legal[2 * len(legal) // 3]]
    for artifact in _compiled(problem, picked, target, cache):
        assert artifact.resources.registers > 0


def test_another_epilogue_needs_no_other_template(cache: Cache) -> None:
    mish = make_problem(catalogue().operator("conv2d_mish"), "seed")
    (artifact,) = _compiled(mish, [SPACE.default], SM90, cache)
    (plain,) = _compiled(SEED, [SPACE.default], SM90, cache)
    assert artifact.code_digest != plain.code_digest


@pytest.mark.parametrize("template", ["tensor", "warpgroup"])
def test_tensor_cores_compile_under_every_epilogue(template: str, cache: Cache) -> None:
    declared = catalogue()
    operators = [each for each in declared.operators.values() if each.family.name == OPERATOR.family.name]
    shape = {"N": 8, "C_in": 8, "H": 64, "W": 64, "C_out": 64, "groups": 1, "kernel_size": 3}
    shape |= {"stride": 1, "padding": 1, "dilation": 1}
    requests = []
    for operator in operators:
        problem, space = make_problem(operator, "small", shape), declared.space(operator, SM90, template)
        config = space.default_for(problem, SM90)
        assert config is not None, operator.name
        requests.append(CompileRequest(render(space, problem, config, SM90), SM90))
    # Of chains with scalars, with vectors, and with neither.
    members = [(bool(operator.scalars), bool(operator.vectors)) for operator in operators]
    assert {(True, False), (False, True), (False, False)} <= set(members)
    results = dict(compile_many(requests, 2, cache)).values()
    assert [str(result) for result in results if not isinstance(result, Artifact)] == []


@pytest.mark.parametrize("name", ["SHARED_BYTES", "THREADS"])
def test_a_wrong_declaration_does_not_compile(name: str, tmp_path: Path) -> None:
    source = render(SPACE, SEED, SPACE.default, SM90)
    right = f"static constexpr int {name} = {SPACE.environment(SEED, SPACE.default, SM90)[name]};"
    assert right in source.text
    text = source.text.replace(right, f"static constexpr int {name} = 96;")
    wrong = dataclasses.replace(source, text=text, digest=hashlib.sha256(text.encode()).hexdigest())
    with pytest.raises(CompileError, match="differ"):
        compile_source(wrong, SM90, Cache(tmp_path))


def test_launches_cover_every_tile() -> None:
    for config in _feasible()[::97]:
        env = SPACE.environment(SEED, config, SM90)
        launch = SPACE.launch(SEED, config, SM90)
        tiles = int(env["PIXEL_TILES"]) * int(env["OC_TILES"])
        assert launch.grid % int(env["OC_TILES"]) == 0
        assert launch.grid == tiles or (config["PERSISTENT"] == 1 and launch.grid < tiles)
        assert launch.block % 32 == 0
