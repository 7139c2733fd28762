# SPDX-License-Identifier: Apache-2.0
"""The CUDA template of conv_transpose2d_mean under the real compiler, without a GPU: the space holds what it
promises."""

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
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import KernelSource, render
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import cuda_target

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'coldforge[cuda]')")
pytestmark = pytest.mark.build

SM90 = cuda_target("sm_90")
OPERATOR = catalogue().operator("conv_transpose2d_mean_logsumexp")
SPACE: Space = catalogue().space(OPERATOR, SM90, "collapsed")
SEED = make_problem(OPERATOR, "seed")

# Operator, shape words over workload `seed`, dtype, arch: what the template must be able to express.
PROBLEMS: list[tuple[str, dict[str, Any], str, str]] = [
    ("mean_logsumexp", {"padding": 1}, "fp32", "sm_80"),
    ("mean_logsumexp", {"padding": 3, "R": 5, "S": 7, "stride": 2, "output_padding": 1}, "fp32", "sm_100"),
    (
        "mean_logsumexp",
        {"conv_bias": 0, "bias": 0, "H": 61, "W": 67, "C_in": 3, "C_out": 5},
        "fp32",
        "sm_120",
    ),
    ("mean_logsumexp", {"padding_w": 2, "dilation": 2, "stride_h": 3}, "fp16", "sm_90"),
    ("mean_logsumexp", {"kernel_size": 1, "C_in": 1, "C_out": 1}, "fp32", "sm_90"),
    ("mean_logsumexp", {"C_in": 2048, "C_out": 1999, "H": 8, "W": 8}, "bf16", "sm_80"),
    ("scale_mean", {}, "fp32", "sm_90"),
    ("scale_mean", {"stride": 1, "padding": 0, "output_padding": 0}, "fp32", "sm_100"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cubins"))


@functools.cache
def _feasible() -> list[Config]:
    return SPACE.feasible(SEED, SM90)


def _compiled(requests: Sequence[CompileRequest], cache: Cache) -> list[Artifact]:
    results = dict(compile_many(requests, 2, cache))
    failures = [str(result) for result in results.values() if not isinstance(result, Artifact)]
    assert failures == []
    return [result for _, result in sorted(results.items()) if isinstance(result, Artifact)]


def _neighbour(name: str, value: int | str, others: Sequence[Config]) -> Config | None:
    """The legal config with that value that has most in common with the default."""

    def distance(config: Config) -> int:
        return sum(config[key] != SPACE.default[key] for key in config)

    candidates = [config for config in others if config[name] == value]
    return min(candidates, key=distance) if candidates else None


def test_the_seed_space_has_the_promised_size() -> None:
    assert 600 <= len(_feasible()) <= 900
    assert SPACE.default in _feasible()


def test_every_value_is_legal_somewhere() -> None:
    shapes = ({"H": 16, "W": 16}, {"N": 1, "C_in": 1, "H": 4096, "W": 4096}, {"H": 64, "W": 64}, {"N": 128})
    others = [make_problem(OPERATOR, "seed", shape) for shape in shapes]
    others += [make_problem(OPERATOR, "seed", shape, "fp16") for shape in shapes]
    legal = _feasible() + [config for problem in others for config in SPACE.feasible(problem, SM90)]
    for parameter in SPACE.parameters:
        assert {config[parameter.name] for config in legal} == set(parameter.values), parameter.name


@pytest.mark.parametrize("name", ["conv_transpose2d_mean_logsumexp", "conv_transpose2d_scale_mean"])
def test_every_workload_and_arch_has_a_default(name: str) -> None:
    operator = catalogue().operator(name)
    for arch in SPACE.archs:
        for workload in operator.workloads:
            problem = make_problem(operator, workload)
            assert SPACE.check(problem, SPACE.default, cuda_target(arch)) is None, (arch, workload)


def test_no_parameter_is_inert_and_nothing_spills(cache: Cache) -> None:
    configs = [SPACE.default]
    for parameter in SPACE.parameters:
        for value in parameter.values:
            near = _neighbour(parameter.name, value, _feasible())
            configs += [near] if near is not None and near not in configs else []
    requests = [CompileRequest(render(SPACE, SEED, config, SM90), SM90) for config in configs]
    artifacts = _compiled(requests, cache)
    # BLOCK says how many threads a launch has: code that finishes no sample may be the same for two of them.
    codes = {
        (artifact.code_digest, SPACE.launch(SEED, config, SM90).block)
        for config, artifact in zip(configs, artifacts, strict=True)
    }
    assert len(codes) == len(configs)
    for config, artifact in zip(configs, artifacts, strict=True):
        used = artifact.resources
        assert (used.spill_store_bytes, used.shared_bytes) == (0, 0), config.key
        assert used.registers <= 128, config.key


def test_problems_of_all_kinds_compile(cache: Cache) -> None:
    requests: list[CompileRequest] = []
    for name, shape, dtype, arch in PROBLEMS:
        target = cuda_target(arch)
        operator = catalogue().operator(f"conv_transpose2d_{name}")
        problem = make_problem(operator, "seed", shape, dtype)
        legal = SPACE.feasible(problem, target)
        picked = [legal[len(legal) // 3], legal[-len(legal) // 5]]
        requests += [CompileRequest(render(SPACE, problem, config, target), target) for config in picked]
    for request, artifact in zip(requests, _compiled(requests, cache), strict=True):
        # Masks of border columns beside fp64 sums come close to the cap.
        assert artifact.resources.spill_store_bytes <= 16, request.source.name


def _with(source: KernelSource, old: str, new: str) -> KernelSource:
    assert old in source.text
    text = source.text.replace(old, new)
    return dataclasses.replace(source, text=text, digest=hashlib.sha256(text.encode()).hexdigest())


def test_wrong_declarations_do_not_compile(tmp_path: Path) -> None:
    source = render(SPACE, SEED, SPACE.default, SM90)
    bytes_declared = SPACE.environment(SEED, SPACE.default, SM90)["SHARED_BYTES"]
    wrong = _with(source, f"SHARED_BYTES = {bytes_declared};", "SHARED_BYTES = 96;")
    with pytest.raises(CompileError, match="differ"):
        compile_source(wrong, SM90, Cache(tmp_path))
    wrong = _with(_with(source, "FOLD = 0;", "FOLD = 1;"), "TOP = 0;", "TOP = 1;")
    with pytest.raises(CompileError, match="taps are folded where all"):
        compile_source(wrong, SM90, Cache(tmp_path))


def test_launches_cover_every_part() -> None:
    for config in _feasible()[::41]:
        env, launch = SPACE.environment(SEED, config, SM90), SPACE.launch(SEED, config, SM90)
        warps = launch.grid * launch.block // 32
        assert 0 <= warps - int(env["PARTS"]) < launch.block // 32
        one = config["LAUNCHES"] == "one"
        assert (launch.zeroed_bytes, launch.finish_grid) == ((64, 0) if one else (0, 16))
        slots = 16 * 64 * int(config["SPLIT"]) * (8 if config["ACC"] == "fp64" else 4)
        assert launch.workspace_bytes == 256 + slots + (16 * 64 * 128 * 4 if config["FOLD"] else 0)


def test_a_plane_with_borders_has_a_slot_for_each_of_its_rows() -> None:
    problem = make_problem(OPERATOR, "padded", {"padding": 2})
    config = SPACE.config({"SPLIT": 8})
    assert SPACE.launch(problem, config, SM90).workspace_bytes == 256 + 4 * 64 * (8 + 2 + 2) * 3 * 4


def test_refusals_say_why() -> None:
    padded = make_problem(OPERATOR, "padded")
    folded = SPACE.check(padded, SPACE.config({"FOLD": 1}), SM90)
    assert "4 border rows and columns" in str(folded)
    wide = make_problem(OPERATOR, "padded", {"C_in": 4096, "padding": 2, "kernel_size": 5})
    shared = SPACE.check(wide, SPACE.default, SM90)
    assert "bytes of shared memory for the sums of 4096 channels of 5x5 taps" in str(shared)
