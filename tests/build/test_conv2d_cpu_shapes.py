# SPDX-License-Identifier: Apache-2.0
"""The cpu template of conv2d against float64: ragged shapes, every parameter, odd inputs, split work."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import BUILTIN_ROOT, Catalogue, catalogue
from coldforge.codegen.compile import Artifact, Cache
from coldforge.codegen.compile.pool import CompilePool, CompileRequest
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.settings import Settings
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import cpu_target
from coldforge.tuner.devices.base import pack_arguments
from coldforge.tuner.devices.cpu import CpuDevice

pytestmark = pytest.mark.build

TARGET = cpu_target()
EPS = 2.0**-24
OPERATOR = "conv2d_divide_leaky_relu"

# Shape words over workload `small`, and other sizes that the same kernel has to serve.
SHAPES: dict[str, tuple[dict[str, Any], list[dict[str, int]]]] = {
    "odd sizes": ({"N": 3, "C_in": 5, "H": 37, "W": 61, "C_out": 19}, [{"N": 1, "H": 8, "W": 131}]),
    "under one tile": ({"N": 1, "C_in": 3, "H": 5, "W": 6, "C_out": 7}, [{"H": 40, "W": 70}]),
    "one output": ({"N": 2, "H": 3, "W": 3}, [{"H": 3, "W": 64}, {"H": 64, "W": 3}]),
    "wide": ({"N": 1, "C_in": 2, "H": 4, "W": 300, "C_out": 16}, [{"W": 33}]),
    "stride 2, padding 1": ({"N": 2, "H": 35, "W": 34, "C_out": 10, "stride": 2, "padding": 1}, [{"W": 5}]),
    "dilation 2, padding 2": ({"N": 1, "C_in": 4, "H": 21, "W": 23, "dilation": 2, "padding": 2}, []),
    "padding wider than the image": ({"N": 2, "C_in": 2, "H": 2, "W": 3, "padding": 7}, []),
    "1x1": ({"N": 2, "C_in": 33, "H": 17, "W": 19, "C_out": 10, "kernel_size": 1}, [{"H": 1, "W": 1}]),
    "1x1, stride 3": ({"N": 1, "H": 20, "W": 22, "C_out": 12, "kernel_size": 1, "stride": 3}, []),
    "5x3": ({"N": 2, "C_in": 3, "H": 18, "W": 29, "C_out": 21, "R": 5, "S": 3, "padding_h": 2}, []),
    "stem": ({"N": 1, "C_in": 3, "H": 45, "W": 47, "kernel_size": 7, "stride": 2, "padding": 3}, [{"H": 9}]),
    "one channel": ({"N": 2, "C_in": 1, "H": 19, "W": 40, "C_out": 1}, []),
    "uneven": (
        {"N": 1, "C_in": 3, "H": 31, "W": 50, "C_out": 9, "stride_w": 3, "dilation_w": 2, "padding_w": 4},
        [{"W": 17}],
    ),
    "long row": ({"N": 1, "C_in": 2, "H": 3, "W": 90, "C_out": 5, "R": 1, "S": 40}, []),
    "groups": ({"N": 2, "C_in": 6, "H": 13, "W": 21, "C_out": 9, "groups": 3, "padding": 1}, [{"N": 1}]),
    "wide groups": ({"N": 2, "C_in": 10, "H": 19, "W": 37, "C_out": 44, "groups": 2, "stride": 2}, []),
    "depthwise": (
        {"N": 2, "C_in": 7, "H": 19, "W": 75, "C_out": 7, "groups": 7, "padding": 1},
        [{"W": 5}, {"H": 40}],
    ),
    "depthwise, several": (
        {
            "N": 1,
            "C_in": 5,
            "H": 33,
            "W": 66,
            "C_out": 15,
            "groups": 5,
            "stride": 2,
            "dilation": 2,
            "bias": 0,
        },
        [],
    ),
    "no bias": ({"N": 1, "C_in": 7, "H": 15, "W": 26, "C_out": 65, "bias": 0}, []),
}


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> CpuDevice:
    return CpuDevice(TARGET, Settings(tmp_path_factory.mktemp("home"), 1, "g++", True))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    with CompilePool(Cache(tmp_path_factory.mktemp("cache")), 2) as running:
        yield running


def _space() -> Space:
    return catalogue().space(catalogue().operator(OPERATOR), TARGET, "direct")


def _draw(space: Space, problem: Problem, count: int) -> list[Config]:
    """Legal configs at random, the same each time, such that the values of each parameter keep turning up."""
    generator = random.Random(problem.operator.name + str(sorted(problem.dims.items())))
    found: list[Config] = []
    for _ in range(20_000):
        config = Config({p.name: generator.choice(p.values) for p in space.parameters})
        if config not in found and space.check(problem, config, TARGET) is None:
            found.append(config)
            if len(found) == count:
                break
    assert len(found) == count
    return found


def _build(cases: list[tuple[Problem, Config]], pool: CompilePool) -> list[Artifact]:
    space = _space()
    requests = [CompileRequest(render(space, problem, config, TARGET), TARGET) for problem, config in cases]
    results = dict(pool.compile(requests))
    artifacts = [results[i] for i in range(len(cases))]
    assert [str(result) for result in artifacts if isinstance(result, Exception)] == []
    return [result for result in artifacts if isinstance(result, Artifact)]


def _inputs(problem: Problem, seed: int = 0) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return {
        spec.name: torch.randn(spec.shape, generator=generator) if spec.present else None
        for spec in problem.tensors
    }


def _run(
    device: CpuDevice, artifact: Artifact, problem: Problem, config: Config, tensors: Mapping[str, Any]
) -> torch.Tensor:
    """Runs the variant between guard zones and returns its output."""
    output = device.allocate(problem.output.shape, torch.float32)
    placed = [None if t is None else device.place(t).tensor for t in tensors.values()]
    sizes = [int(problem.values[name]) for name in problem.sizes]
    scalars = [problem.scalars[name] for name in problem.scalar_names]
    launch = _space().launch(problem, config, TARGET)
    device.run(device.load(artifact), launch, [*placed, output.tensor], sizes, scalars)
    assert output.intact()
    return output.tensor.clone()


def _assert_right(problem: Problem, tensors: Mapping[str, Any], y: torch.Tensor) -> None:
    """Every element within the rounding of a sum of float products, which the epilogue at most halves."""
    exact = {name: None if t is None else t.double() for name, t in tensors.items()}
    reference = problem.reference(exact)
    magnitude = problem.magnitude(exact)
    assert magnitude is not None
    bound = EPS * (2 * math.sqrt(problem.reduction_length) * magnitude + 4 * reference.abs())
    assert bool(((y.double() - reference).abs() <= bound).all())


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, device: CpuDevice, pool: CompilePool) -> None:
    words, others = SHAPES[name]
    problem = make_problem(catalogue().operator(OPERATOR), "small", words)
    cases = [(problem, config) for config in _draw(_space(), problem, 2)]
    for (_, config), artifact in zip(cases, _build(cases, pool), strict=True):
        for at in [problem, *(problem.with_dims(**dims) for dims in others)]:
            tensors = _inputs(at)
            _assert_right(at, tensors, _run(device, artifact, at, config, tensors))


def _one_of_each(problem: Problem) -> list[Config]:
    """The default, and for each parameter value not in it a config that has it."""
    space = _space()
    configs = [space.default]
    for parameter in space.parameters:
        for value in parameter.values:
            if not any(config[parameter.name] == value for config in configs):
                legal = (c for c in _draw(space, problem, 60) if c[parameter.name] == value)
                configs += [c for c in [next(legal, None)] if c is not None]
    return configs


def test_every_value_of_every_parameter(device: CpuDevice, pool: CompilePool) -> None:
    problem = make_problem(catalogue().operator(OPERATOR), "small", {"N": 2, "H": 41, "W": 75, "C_out": 66})
    configs = _one_of_each(problem)
    values = {(name, value) for config in configs for name, value in config.items()}
    wanted = {("ACC", "kahan"), ("ACC", "fp64"), ("WEIGHTS", "packed"), ("INPUT", "image")}
    assert {*wanted, ("ORDER", "pixels")} <= values
    tensors = _inputs(problem)
    artifacts = _build([(problem, config) for config in configs], pool)
    for config, artifact in zip(configs, artifacts, strict=True):
        _assert_right(problem, tensors, _run(device, artifact, problem, config, tensors))


def test_nan_and_infinity_stay_where_they_belong(device: CpuDevice, pool: CompilePool) -> None:
    problem = make_problem(catalogue().operator(OPERATOR), "small", {"N": 2, "H": 33, "W": 47, "C_out": 13})
    tensors = _inputs(problem)
    x = tensors["x"]
    assert x is not None
    x[0, 1, 2, 3], x[0, 0, 32, 46], x[1, 7, 0, 0], x[1, 3, 20, 21] = math.nan, math.inf, -math.inf, math.nan
    reference = problem.reference(tensors)
    cases = [(problem, config) for config in _draw(_space(), problem, 2)]
    for (_, config), artifact in zip(cases, _build(cases, pool), strict=True):
        y = _run(device, artifact, problem, config, tensors)
        assert torch.equal(y.isnan(), reference.isnan())
        assert torch.equal(y == math.inf, reference == math.inf)
        assert torch.equal(y == -math.inf, reference == -math.inf)


@pytest.mark.parametrize("words", [{"C_out": 66}, {"C_in": 6, "C_out": 9, "groups": 3}])
def test_any_split_of_the_work_gives_the_same_bits(
    words: dict[str, int], device: CpuDevice, pool: CompilePool
) -> None:
    problem = make_problem(catalogue().operator(OPERATOR), "small", {"N": 2, "H": 21, "W": 75, **words})
    tensors = _inputs(problem)
    cases = [(problem, config) for config in _draw(_space(), problem, 2)]
    for (_, config), artifact in zip(cases, _build(cases, pool), strict=True):
        whole = _run(device, artifact, problem, config, tensors)
        assert torch.equal(whole, _run(device, artifact, problem, config, tensors))
        units = _space().launch(problem, config, TARGET).units
        y = torch.full_like(whole, math.nan)
        sizes = [int(problem.values[name]) for name in problem.sizes]
        packed = pack_arguments([*tensors.values(), y], sizes, list(problem.scalars.values()))
        entry = ctypes.CDLL(str(artifact.path)).coldforge_kernel
        entry.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p]
        for begin, end in reversed([(0, 1), (1, units // 3), (units // 3, units)]):
            entry(begin, end, packed)
        assert torch.equal(whole, y)


def test_groups_have_their_own_part_of_a_channel_vector(device: CpuDevice, pool: CompilePool) -> None:
    operators = Catalogue((BUILTIN_ROOT, Path(__file__).parents[1] / "mutation"))
    words = {"N": 2, "H": 9, "W": 35, "C_in": 6, "C_out": 12, "groups": 3}
    problem = make_problem(operators.operator("conv2d_gain"), "small", words)
    tensors = _inputs(problem)
    cases = [(problem, config) for config in _draw(_space(), problem, 2)]
    for (_, config), artifact in zip(cases, _build(cases, pool), strict=True):
        _assert_right(problem, tensors, _run(device, artifact, problem, config, tensors))


def test_another_chain_of_operations(device: CpuDevice, pool: CompilePool) -> None:
    problem = make_problem(catalogue().operator("conv2d_mish"), "small", {"N": 1, "H": 19, "W": 37})
    tensors = _inputs(problem)
    cases = [(problem, config) for config in _draw(_space(), problem, 2)]
    for (_, config), artifact in zip(cases, _build(cases, pool), strict=True):
        _assert_right(problem, tensors, _run(device, artifact, problem, config, tensors))
