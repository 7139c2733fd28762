# SPDX-License-Identifier: Apache-2.0
"""Right variants are not rejected: configs of the cpu templates in which every legal pair of parameter values
occurs, compiled and put through all checks of a study. What every legal CUDA config says to the same checks
is in the ledgers (`coldforge check --ledger`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache
from coldforge.codegen.compile.pool import CompilePool, CompileRequest
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.settings import Settings
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import cpu_target
from coldforge.tuner.check.covering import covering
from coldforge.tuner.devices import open_device
from coldforge.tuner.devices.base import Device
from coldforge.tuner.examiner import Examiner
from coldforge.tuner.verify import build_checks

pytestmark = pytest.mark.build

TARGET = cpu_target()
# An operator of each family, at a workload small enough for some fifty variants.
PROBLEMS = {
    "conv2d": ("conv2d_divide_leaky_relu", {"N": 2, "H": 40, "W": 67, "C_out": 20}),
    "padded conv2d": ("conv2d_subtract_mish", {"N": 1, "H": 21, "W": 35, "padding": 1, "stride": 2}),
    "mean": ("conv_transpose2d_mean_logsumexp", {"N": 2, "C_in": 6, "C_out": 10, "H": 49, "W": 50}),
    "padded mean": ("conv_transpose2d_scale_mean", {"N": 2, "C_in": 5, "C_out": 7, "H": 23, "W": 31}),
}


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return open_device(TARGET, Settings(tmp_path_factory.mktemp("home"), 2, "g++", may_build=False))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    with CompilePool(Cache(tmp_path_factory.mktemp("cache")), 2) as running:
        yield running


def subject(name: str) -> tuple[Space, Problem]:
    operator, shape = PROBLEMS[name]
    declared = catalogue().operator(operator)
    return catalogue().space(declared, TARGET), make_problem(declared, "small", shape)


@functools.cache
def configs_of(name: str) -> list[Config]:
    space, problem = subject(name)
    legal = space.feasible(problem, TARGET)
    return covering(legal, [space.default] if space.default in legal else [])


def rejected(name: str, configs: list[Config], device: Device, pool: CompilePool) -> list[str]:
    """A line for each config that the checks do not pass."""
    space, problem = subject(name)
    requests = [CompileRequest(render(space, problem, config, TARGET), TARGET) for config in configs]
    built = dict(pool.compile(requests))
    examiner = Examiner(device, build_checks(device, problem, "fp32").all())
    lines = []
    for index, config in enumerate(configs):
        artifact = built[index]
        if not isinstance(artifact, Artifact):
            lines.append(f"{config.key}: {artifact}")
            continue
        kernel = device.load(artifact)
        verdict = examiner.examine(
            kernel,
            lambda at, config=config: space.launch(at, config, TARGET),
            workspace="workspace_bytes" in space.launch_exprs,
        )
        device.unload(kernel)
        if not verdict.ok:
            lines.append(f"{config.key}: {verdict.reason}")
    return lines


@pytest.mark.parametrize("name", ["conv2d", "mean"])
def test_a_few_are_not_rejected(name: str, device: Device, pool: CompilePool) -> None:
    """Of each way to add up one, and the default."""
    configs = configs_of(name)
    chosen = {config["ACC"]: config for config in reversed(configs)}
    assert set(chosen) == {"fp32", "kahan", "fp64"}
    assert rejected(name, list(chosen.values()), device, pool) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PROBLEMS)
def test_no_config_of_a_covering_set_is_rejected(name: str, device: Device, pool: CompilePool) -> None:
    configs = configs_of(name)
    assert {config["ACC"] for config in configs} == {"fp32", "kahan", "fp64"}
    assert rejected(name, configs, device, pool) == []
