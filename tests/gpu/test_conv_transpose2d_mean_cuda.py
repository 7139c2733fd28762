# SPDX-License-Identifier: Apache-2.0
"""The CUDA template of conv_transpose2d_mean on a GPU, against float64: ragged shapes, many configs, one call
after another, side by side and replayed from a graph."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache, compile_source
from coldforge.codegen.compile.pool import CompileRequest, compile_many
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.settings import Settings
from coldforge.codegen.space import Config, Launch, Space
from coldforge.codegen.target import detect
from coldforge.tuner.bound import expect, judge
from coldforge.tuner.devices import open_device
from coldforge.tuner.devices.base import Call, Device
from coldforge.tuner.inputs import draw, ragged_kinds
from coldforge.tuner.verify import abi_scalars, abi_sizes, build_check, verify

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

LOGSUMEXP, SCALE_MEAN = "conv_transpose2d_mean_logsumexp", "conv_transpose2d_scale_mean"
PLAIN = {"stride": 1, "padding": 0, "output_padding": 0}
# Operator, shape words over workload `small`, dtype, then sizes that the same kernel serves too.
SHAPES: list[tuple[str, dict[str, Any], str, list[dict[str, int]]]] = [
    (LOGSUMEXP, {}, "fp32", [{"N": 3, "H": 37, "W": 61}, {"H": 1, "W": 1}, {"N": 40, "H": 5, "W": 7}]),
    (LOGSUMEXP, {"C_in": 1, "C_out": 1, "kernel_size": 1}, "fp32", [{"H": 3, "W": 3}, {"H": 511}]),
    (LOGSUMEXP, {"padding": 1, "C_in": 9, "C_out": 37}, "fp32", [{"H": 19, "W": 33}, {"H": 2, "W": 2}]),
    (
        LOGSUMEXP,
        {"padding": 3, "kernel_size": 7, "C_out": 300},
        "fp32",
        [{"H": 5, "W": 4}, {"H": 90, "W": 6}],
    ),
    (LOGSUMEXP, {"stride": 2, "padding": 1, "output_padding": 1}, "fp32", [{"N": 2, "H": 21, "W": 63}]),
    (LOGSUMEXP, {"padding_w": 2, "dilation": 2, "bias": 0, "conv_bias": 0}, "fp32", [{"H": 33, "W": 257}]),
    (LOGSUMEXP, {"padding_h": 2, "R": 5, "S": 1, "stride_h": 3, "conv_bias": 0}, "fp32", [{"H": 9, "W": 1}]),
    (SCALE_MEAN, {**PLAIN, "C_in": 33, "C_out": 10}, "fp32", [{"N": 5, "H": 8, "W": 9}]),
    (SCALE_MEAN, {}, "fp32", [{"H": 3, "W": 5}, {"N": 1, "H": 100, "W": 129}]),
    (LOGSUMEXP, {"padding": 1}, "fp16", [{"H": 31, "W": 35}]),
    (LOGSUMEXP, {}, "bf16", [{"N": 2, "H": 65, "W": 63}]),
]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return open_device(detect("cuda"), Settings(tmp_path_factory.mktemp("home"), 1, "g++", True))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cubins"))


def _space(device: Device) -> Space:
    return catalogue().space(catalogue().operator(LOGSUMEXP), device.target, "collapsed")


def _kernel(device: Device, problem: Problem, config: Config, cache: Cache) -> Any:
    return device.load(
        compile_source(render(_space(device), problem, config, device.target), device.target, cache)
    )


def _near_default(space: Space, legal: Iterable[Config], **wanted: int | str) -> Config:
    """The legal config with those values that has most in common with the default."""
    matching = [c for c in legal if all(c[name] == value for name, value in wanted.items())]
    return max(matching, key=lambda config: sum(config[name] == space.default[name] for name in config))


def _spread(legal: list[Config]) -> list[Config]:
    """Configs that have every value of every parameter that is legal."""
    chosen: list[Config] = []
    for name in legal[0]:
        for value in dict.fromkeys(config[name] for config in legal):
            if not any(config[name] == value for config in chosen):
                # Not all near the default: values meet in other combinations.
                matching = [config for config in legal if config[name] == value]
                chosen.append(matching[(7 * len(chosen) + 3) % len(matching)])
    return chosen


@pytest.mark.parametrize(("operator", "shape", "dtype", "others"), SHAPES)
def test_every_shape_of_a_specialisation(
    operator: str,
    shape: dict[str, Any],
    dtype: str,
    others: list[dict[str, int]],
    device: Device,
    cache: Cache,
) -> None:
    problem = make_problem(catalogue().operator(operator), "small", shape, dtype)
    space = _space(device)
    problems = [problem, *(problem.with_dims(**sizes) for sizes in others)]
    kinds = ragged_kinds(problem) if dtype == "fp32" else ("normal", "nonfinite")
    checks = [build_check(device, one, kind, dtype) for one in problems for kind in kinds]
    configs = _spread(space.feasible(problem, device.target))
    requests = [
        CompileRequest(render(space, problem, config, device.target), device.target) for config in configs
    ]
    for index, artifact in compile_many(requests, os.cpu_count() or 1, cache):
        assert isinstance(artifact, Artifact), artifact
        kernel = device.load(artifact)

        def launch_of(one: Problem, config: Config = configs[index]) -> Launch:
            return space.launch(one, config, device.target)

        verdict = verify(device, kernel, launch_of, checks, workspace=True)
        assert verdict.ok, (configs[index].key, verdict.reason)
        assert verdict.checks == len(checks)
        device.unload(kernel)


class Bound:
    """A config at a problem with inputs, output and workspace of its own."""

    def __init__(
        self, device: Device, kernel: Any, launch: Launch, problem: Problem, kind: str, seed: int = 0
    ) -> None:
        self.problem = problem
        drawn = draw(problem, kind, seed)
        self.placed = {name: value.to(device.torch_device) for name, value in drawn.items()}
        self.output = torch.full(problem.output.shape, torch.nan, device=device.torch_device)
        workspace = torch.full((launch.workspace_bytes,), 255, dtype=torch.uint8, device=device.torch_device)
        tensors = [self.placed.get(spec.name) for spec in problem.tensors]
        arguments = [*tensors, self.output, workspace]
        self.call: Call = device.bind(kernel, launch, arguments, abi_sizes(problem), abi_scalars(problem))

    def wrong(self) -> int:
        """How many outputs are beyond their tolerance."""
        return judge(self.output, expect(self.problem, self.placed, self.problem.scalars, "fp32")).wrong


LAUNCHES = pytest.mark.parametrize("launches", ["one", "two"])


def _at_batch(device: Device, cache: Cache, launches: str) -> tuple[Problem, Launch, Any]:
    """A problem whose planes are cut into many parts, and a kernel for it."""
    problem = make_problem(catalogue().operator(LOGSUMEXP), "batch", {"N": 6})
    space = _space(device)
    config = _near_default(space, space.feasible(problem, device.target), LAUNCHES=launches, FOLD=1)
    return problem, space.launch(problem, config, device.target), _kernel(device, problem, config, cache)


@LAUNCHES
def test_every_run_gives_the_same_bits(launches: str, device: Device, cache: Cache) -> None:
    problem, launch, kernel = _at_batch(device, cache, launches)
    bound = Bound(device, kernel, launch, problem, "offset")
    bound.call()
    device.synchronize()
    assert bound.wrong() == 0
    first = bound.output.clone()
    for _ in range(100):
        bound.output.fill_(torch.nan)
        bound.call()
        assert torch.equal(bound.output, first)


@LAUNCHES
def test_two_streams_at_once(launches: str, device: Device, cache: Cache) -> None:
    problem, launch, kernel = _at_batch(device, cache, launches)
    bounds = [Bound(device, kernel, launch, problem, "offset", seed) for seed in (1, 2)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, bound in zip(streams, bounds, strict=True):
            with torch.cuda.stream(stream):
                bound.call()
    device.synchronize()
    assert [bound.wrong() for bound in bounds] == [0, 0]
    assert not torch.equal(bounds[0].output, bounds[1].output)


@LAUNCHES
def test_a_graph_replayed_a_thousand_times(launches: str, device: Device, cache: Cache) -> None:
    problem, launch, kernel = _at_batch(device, cache, launches)
    bound = Bound(device, kernel, launch, problem, "normal")
    bound.call()
    device.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.call()
    results = []
    for seed in (0, 3):
        bound.placed["x"].copy_(draw(problem, "normal", seed)["x"])
        for _ in range(500):
            bound.output.fill_(torch.nan)
            graph.replay()
            results.append(bound.output.clone())
        assert bound.wrong() == 0
    assert all(torch.equal(result, results[0]) for result in results[:500])
    assert all(torch.equal(result, results[500]) for result in results[500:])
    assert not torch.equal(results[0], results[500])


def test_a_counter_that_nobody_zeroed_is_noticed(device: Device, cache: Cache) -> None:
    problem, launch, kernel = _at_batch(device, cache, "one")
    assert launch.zeroed_bytes == 4 * 6
    checks = [build_check(device, problem, "normal", "fp32")]
    assert verify(device, kernel, lambda _: launch, checks, workspace=True).ok
    forgotten = dataclasses.replace(launch, zeroed_bytes=0)
    verdict = verify(device, kernel, lambda _: forgotten, checks, workspace=True)
    assert not verdict.ok
    assert "outputs are wrong" in verdict.reason


def test_past_two_to_the_31_elements(device: Device, cache: Cache) -> None:
    free, _ = torch.cuda.mem_get_info()
    problem = make_problem(catalogue().operator(SCALE_MEAN), "small", {**PLAIN, "N": 2, "C_in": 3})
    problem = problem.with_dims(H=20000, W=20011)
    if free < 4 * problem.bytes_read:
        pytest.skip(f"needs {4 * problem.bytes_read >> 30} GiB of device memory, {free >> 30} are free")
    space = _space(device)
    config = _near_default(space, space.feasible(problem, device.target), LAUNCHES="two")
    launch, kernel = space.launch(problem, config, device.target), _kernel(device, problem, config, cache)
    x = torch.rand(2, 3, 20000, 20011, device="cuda")
    assert x.numel() > 2**31
    weight, bias = torch.randn(3, 32, 3, 3, device="cuda"), torch.randn(32, device="cuda")
    y = torch.full((2, 32, 1, 1), torch.nan, device="cuda")
    workspace = torch.empty(launch.workspace_bytes, dtype=torch.uint8, device="cuda")
    device.run(kernel, launch, [x, weight, bias, y, workspace], abi_sizes(problem), abi_scalars(problem))
    sums = torch.stack([plane.sum(dtype=torch.float64) for plane in x.flatten(0, 1)]).view(2, 3)
    exact = 0.5 * (sums @ weight.double().sum((2, 3)) / (20002 * 20013) + bias.double())
    assert float((y[:, :, 0, 0].double() - exact).norm() / exact.norm()) < 1e-6
