# SPDX-License-Identifier: Apache-2.0
"""The cpu template of conv_transpose2d_mean: against float64 by the verifier, at every small image, with odd
inputs, on any number of threads, and its objects."""

from __future__ import annotations

import ctypes
import math
import random
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache
from coldforge.codegen.compile.elf import symbols
from coldforge.codegen.compile.host import compile_flags
from coldforge.codegen.compile.pool import CompilePool, CompileRequest
from coldforge.codegen.errors import InputError
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.settings import Settings
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import cpu_target, cpu_target_for
from coldforge.tuner.devices.base import Call, pack_arguments
from coldforge.tuner.devices.cpu import CpuDevice
from coldforge.tuner.verify import abi_scalars, abi_sizes, build_checks, verify

pytestmark = pytest.mark.build

TARGET = cpu_target()
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4") if TARGET.arch.startswith("x86") else ("aarch64",)
# All that a variant may take from outside: the C library's memory and math functions.
ALLOWED = {"memcpy", "memset", "memmove", "expf", "logf", "_GLOBAL_OFFSET_TABLE_"}
REDUCED, PLAIN = "conv_transpose2d_mean_logsumexp", "conv_transpose2d_scale_mean"
STRIDE_1 = {"stride": 1, "padding": 0, "output_padding": 0}

# Operator, shape words over workload `small`, and how many configs are verified.
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "no border": (REDUCED, {"C_in": 3, "H": 40, "W": 65, "C_out": 11}, 2),
    "no border, not reduced": (PLAIN, {**STRIDE_1, "C_in": 3, "H": 33, "W": 99, "C_out": 10}, 1),
    "padding 1": (REDUCED, {"N": 2, "C_in": 5, "H": 40, "W": 49, "C_out": 10, "padding": 1}, 2),
    "padding 3": (PLAIN, {**STRIDE_1, "C_in": 3, "H": 30, "W": 47, "C_out": 9, "padding": 3, "R": 5}, 1),
    "padding 7": (REDUCED, {"C_in": 2, "H": 20, "W": 50, "C_out": 5, "padding": 7, "dilation": 7}, 1),
    "stride 2": (PLAIN, {"C_in": 7, "H": 21, "W": 37, "C_out": 12}, 1),
    "rows only": (REDUCED, {"C_in": 4, "H": 37, "W": 51, "C_out": 8, "R": 2, "S": 5, "padding_h": 1}, 1),
    "columns only": (PLAIN, {**STRIDE_1, "C_in": 4, "C_out": 8, "R": 2, "S": 5, "padding_w": 3}, 1),
    "1x1, one channel": (PLAIN, {**STRIDE_1, "C_in": 1, "C_out": 1, "kernel_size": 1}, 1),
    "many channels": (REDUCED, {"C_in": 2, "H": 6, "W": 7, "C_out": 240, "padding": 1}, 1),
    "no biases": (REDUCED, {"C_in": 8, "H": 30, "W": 30, "C_out": 16, "conv_bias": 0, "bias": 0}, 1),
}


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> CpuDevice:
    return CpuDevice(TARGET, Settings(tmp_path_factory.mktemp("home"), 1, "g++", True))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    with CompilePool(Cache(tmp_path_factory.mktemp("cache")), 2) as running:
        yield running


def _problem(name: str, words: Mapping[str, Any]) -> Problem:
    return make_problem(catalogue().operator(name), "small", words)


def _space() -> Space:
    return catalogue().space(catalogue().operator(REDUCED), TARGET, "collapsed")


def _draw(problem: Problem, count: int) -> list[Config]:
    """Legal configs at random, the same each time; each next one is that which shares least with those
    before."""
    generator = random.Random(problem.operator.name + str(sorted(problem.dims.items())))
    legal = _space().feasible(problem, TARGET)
    found = [generator.choice(legal)]
    while len(found) < count:
        candidates = generator.sample(legal, min(30, len(legal)))
        found.append(min(candidates, key=lambda c: sum(c[n] == f[n] for f in found for n in c)))
    return found


def _build(cases: list[tuple[Problem, Config]], pool: CompilePool) -> list[Artifact]:
    requests = [CompileRequest(render(_space(), problem, c, TARGET), TARGET) for problem, c in cases]
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


def _bind(
    device: CpuDevice, artifact: Artifact, problem: Problem, config: Config, tensors: Mapping[str, Any]
) -> tuple[Call, torch.Tensor, torch.Tensor]:
    """The call, its output and its workspace."""
    launch = _space().launch(problem, config, TARGET)
    output = device.allocate(problem.output.shape, torch.float32).tensor
    workspace = device.allocate_workspace(launch.workspace_bytes)
    assert workspace is not None
    arguments = [*tensors.values(), output, workspace.tensor]
    call = device.bind(device.load(artifact), launch, arguments, abi_sizes(problem), abi_scalars(problem))
    return call, output, workspace.tensor


def _run(
    device: CpuDevice, artifact: Artifact, problem: Problem, config: Config, tensors: Mapping[str, Any]
) -> torch.Tensor:
    call, output, _ = _bind(device, artifact, problem, config, tensors)
    call()
    return output.clone()


@pytest.mark.parametrize("name", CASES)
def test_verified_on_ragged_shapes_and_all_inputs(name: str, device: CpuDevice, pool: CompilePool) -> None:
    operator, words, count = CASES[name]
    problem = _problem(operator, words)
    cases = [(problem, config) for config in _draw(problem, count)]
    checks = build_checks(device, problem, "fp32").all()
    for (_, config), artifact in zip(cases, _build(cases, pool), strict=True):
        kernel = device.load(artifact)
        verdict = verify(
            device, kernel, lambda p, c=config: _space().launch(p, c, TARGET), checks, workspace=True
        )
        assert verdict.ok, f"{config.key}: {verdict.reason}"
        assert verdict.checks > 20


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ({"padding": 3, "kernel_size": 5}, {"STREAMS": 2, "SPLIT": 4}),
        (
            {"padding": [7, 2], "stride": [3, 1], "dilation": [2, 3], "output_padding": [1, 2]},
            {"ACC": "fp64"},
        ),
    ],
)
def test_every_small_image(
    words: dict[str, Any], chosen: dict[str, Any], device: CpuDevice, pool: CompilePool
) -> None:
    # Smaller than the borders, as large, a little larger; one kernel serves them all. On whole numbers all
    # sums are exact but for the last division.
    base = _problem(PLAIN, {**STRIDE_1, "N": 2, "C_in": 2, "C_out": 3, **words})
    config = _space().config({"UNROLL": 2, "STREAMS": 4, **chosen})
    [artifact] = _build([(base, config)], pool)
    tried = 0
    for height in (*range(1, 10), 17, 40):
        for width in (*range(1, 10), 15, 16, 17, 33, 70):
            try:
                problem = base.with_dims(H=height, W=width)
            except InputError:  # the padding leaves no output
                continue
            generator = torch.Generator().manual_seed(tried)
            tensors = {
                t.name: torch.randint(-9, 10, t.shape, generator=generator).float() for t in problem.tensors
            }
            exact = problem.reference({name: value.double() for name, value in tensors.items()})
            y = _run(device, artifact, problem, config, tensors)
            assert torch.allclose(y.double(), exact, rtol=3e-7, atol=1e-12), f"{height}x{width}"
            tried += 1
    assert tried > 100


def _assert_same_kind(y: torch.Tensor, reference: torch.Tensor) -> None:
    assert torch.equal(y.isnan(), reference.isnan())
    assert torch.equal(y == math.inf, reference == math.inf)
    assert torch.equal(y == -math.inf, reference == -math.inf)


@pytest.mark.parametrize("acc", ["fp32", "kahan", "fp64"])
def test_nan_and_infinity_stay_where_they_belong(acc: str, device: CpuDevice, pool: CompilePool) -> None:
    words = {**STRIDE_1, "N": 5, "C_in": 2, "H": 20, "W": 41, "C_out": 9, "padding": 1}
    problem = _problem(PLAIN, words)
    config = _space().config({"ACC": acc})
    [artifact] = _build([(problem, config)], pool)
    tensors = _inputs(problem)
    x, weight = tensors["x"], tensors["weight"]
    assert x is not None
    assert weight is not None
    weight[:, :4] = weight[:, :4].abs()  # channels whose taps all have one sign keep an infinity
    # A corner that five taps miss, the middle, both signs at once, a NaN in the last column, nothing.
    x[0, 0, 0, 0], x[1, 1, 7, 20], x[2, 0, 5, 5], x[2, 0, 9, 9] = math.inf, -math.inf, math.inf, -math.inf
    x[3, 1, 11, 40] = math.nan
    reference = problem.reference({name: None if t is None else t.double() for name, t in tensors.items()})
    assert {int(kind) for kind in reference.isnan().sum((1, 2, 3))} > {0, 9}
    assert bool(reference.isinf().any())
    _assert_same_kind(_run(device, artifact, problem, config, tensors), reference)


def test_reduction_of_infinities(device: CpuDevice, pool: CompilePool) -> None:
    problem = _problem(REDUCED, {"N": 1, "C_in": 1, "H": 8, "W": 9, "C_out": 6})
    [artifact] = _build([(problem, _space().default)], pool)
    tensors = _inputs(problem)
    bias = tensors["bias"]
    assert bias is not None
    inf, nan = math.inf, math.nan
    draws = [[-inf] * 6, [-inf, 1, 2, 3, 4, 5], [1, inf, -inf, 0, 0, 0], [inf, nan, 1, 1, 1, 1], [3e38] * 6]
    for values in draws:
        bias.copy_(torch.tensor(values).view_as(bias))
        exact = {name: None if t is None else t.double() for name, t in tensors.items()}
        reference = problem.reference(exact).float()
        y = _run(device, artifact, problem, _space().default, tensors)
        _assert_same_kind(y, reference)
        assert torch.allclose(y, reference, rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize("launches", ["one", "two"])
def test_any_split_of_the_work_gives_the_same_bits(
    launches: str, device: CpuDevice, pool: CompilePool
) -> None:
    problem = _problem(REDUCED, {"N": 3, "C_in": 5, "H": 50, "W": 75, "C_out": 21, "padding": 1})
    config = _space().config({"LAUNCHES": launches, "SPLIT": 4})
    [artifact] = _build([(problem, config)], pool)
    tensors = _inputs(problem)
    call, output, workspace = _bind(device, artifact, problem, config, tensors)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 2, 3):
            torch.set_num_threads(threads)
            output.fill_(math.nan)
            call()
            results.append(output.clone())
    finally:
        torch.set_num_threads(before)
    launch = _space().launch(problem, config, TARGET)
    assert launch.zeroed_bytes == (64 if launches == "one" else 0)
    packed = pack_arguments([*tensors.values(), output, workspace], abi_sizes(problem), abi_scalars(problem))
    library = ctypes.CDLL(str(artifact.path))
    names = ["coldforge_kernel", "coldforge_finish"]
    assert hasattr(library, names[1]) == (launch.finish_units > 0) == (launches == "two")
    ranges = [(0, 7), (7, 31), (31, 32), (32, launch.units)], [(n, n + 1) for n in range(launch.finish_units)]
    workspace.fill_(255)
    workspace[: launch.zeroed_bytes] = 0
    output.fill_(math.nan)
    for name, parts in zip(names, ranges, strict=True):
        for begin, end in reversed(parts):
            entry = getattr(library, name)
            entry.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p]
            entry(begin, end, packed)
    assert bool(results[0].isfinite().all())
    assert all(torch.equal(results[0], other) for other in [*results[1:], output])


@pytest.mark.parametrize("chosen", [{"LAUNCHES": "two"}, {"LAUNCHES": "one", "ACC": "kahan", "STREAMS": 8}])
def test_objects_of_every_level(chosen: dict[str, Any], tmp_path: Path) -> None:
    # A config tuned at one level is built for all, so the same text has to compile at each.
    problem = _problem(REDUCED, {"C_in": 3, "C_out": 22, "padding": 1})
    text = render(_space(), problem, _space().config(chosen), TARGET).text
    (tmp_path / "kernel.cpp").write_text(text)
    entries = {"coldforge_kernel"} | ({"another_finish"} if chosen["LAUNCHES"] == "two" else set())
    running = []
    for level in LEVELS:
        flags = [*compile_flags(level), "-DCOLDFORGE_FINISH=another_finish", "-Wall", "-Wextra", "-Werror"]
        command = ["g++", *flags, "-c", "kernel.cpp", "-o", f"{level}.o"]
        running.append(subprocess.Popen(command, cwd=tmp_path))
    assert [compiler.wait(timeout=120) for compiler in running] == [0] * len(LEVELS)
    for level in LEVELS:
        found = symbols((tmp_path / f"{level}.o").read_bytes())
        assert [symbol.name for symbol in found if symbol.binding in ("weak", "unique")] == []
        assert {symbol.name for symbol in found if symbol.binding == "global" and symbol.defined} == entries
        assert {symbol.name for symbol in found if not symbol.defined} <= ALLOWED


def test_the_space_says_why() -> None:
    problem = _problem(REDUCED, {"N": 1, "C_in": 64, "H": 256, "W": 256})
    space, v3 = _space(), cpu_target_for(LEVELS[min(1, len(LEVELS) - 1)])
    assert 40 <= len(space.feasible(problem, v3)) <= 400
    assert {c["SPLIT"] for c in space.feasible(problem.with_dims(C_in=1), v3)} == {1, 2, 4, 8}
    refusals = [
        (problem, {"SPLIT": 2}, "64 planes"),
        (problem, {"UNROLL": 2, "STREAMS": 1}, "2 vectors in flight"),
        (problem, {"UNROLL": 32, "STREAMS": 8}, "256 vectors in flight"),
        (_problem(REDUCED, {"padding": 40, "kernel_size": 41}), {}, "40 and 40 border rows"),
        (_problem(REDUCED, {"kernel_size": 60, "padding": 1}), {}, "60x60 taps"),
        (make_problem(problem.operator, "small", dtype="fp16"), {}, "elements of 2 bytes"),
    ]
    for refused, chosen, reason in refusals:
        assert reason in str(space.check(refused, space.config(chosen), v3))
    for tiny in ({"H": 1, "W": 1}, {"H": 2, "W": 3, "padding": 1}):
        assert space.check(_problem(REDUCED, tiny), space.default, v3) is None
