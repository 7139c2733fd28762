# SPDX-License-Identifier: Apache-2.0
"""The CUDA template of conv2d on a GPU, against float64: ragged shapes, large tensors, many configs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.settings import Settings
from coldforge.codegen.space import Config, Launch, Space
from coldforge.codegen.target import Target, detect
from coldforge.tuner.devices import open_device
from coldforge.tuner.devices.base import Device, LaunchRefused

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

OPERATOR = catalogue().operator("conv2d_divide_leaky_relu")
# Shape words over workload `small`, then sizes that the same kernel serves too.
SHAPES: list[tuple[dict[str, Any], list[dict[str, int]]]] = [
    ({}, [{"N": 3, "H": 37, "W": 61}, {"N": 1, "H": 3, "W": 3}, {"N": 1, "H": 9, "W": 130}]),
    ({"C_in": 3, "C_out": 19, "padding": 1}, [{"H": 5, "W": 6}, {"N": 1, "H": 64, "W": 40}]),
    ({"C_in": 9, "stride": 2, "padding": 2, "kernel_size": 5}, [{"H": 33, "W": 34}]),
    ({"C_in": 16, "dilation": 2, "padding_w": 3, "bias": 0}, [{"H": 21, "W": 23}]),
    ({"C_in": 33, "C_out": 10, "kernel_size": 1}, [{"H": 1, "W": 1}]),
]


@pytest.fixture(scope="module")
def target() -> Target:
    return detect("cuda")


@pytest.fixture(scope="module")
def device(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Device:
    return open_device(target, Settings(tmp_path_factory.mktemp("home"), 1, "g++", True))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cubins"))


def _space(target: Target) -> Space:
    return catalogue().space(OPERATOR, target, "direct")


def _kernel(device: Device, problem: Problem, config: Config, cache: Cache) -> Any:
    source = render(_space(device.target), problem, config, device.target)
    return device.load(compile_source(source, device.target, cache))


def _draw(problem: Problem) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(11)
    return {
        spec.name: torch.randn(spec.shape, generator=generator) if spec.present else None
        for spec in problem.tensors
    }


def _error(device: Device, kernel: Any, problem: Problem, config: Config) -> float:
    """Relative L2 error of one launch into a poisoned output, which must stay within its bounds."""
    values = _draw(problem)
    placed = [None if value is None else device.place(value).tensor for value in values.values()]
    output = device.allocate(problem.output.shape, torch.float32)
    launch = _space(device.target).launch(problem, config, device.target)
    sizes = [int(problem.values[name]) for name in problem.sizes]
    device.run(kernel, launch, [*placed, output.tensor], sizes, [2.0, 0.01])
    assert output.intact()
    exact = problem.reference({name: None if v is None else v.double() for name, v in values.items()})
    difference = output.tensor.cpu().double() - exact
    return float(difference.norm() / exact.norm())


@pytest.mark.parametrize(("shape", "others"), SHAPES)
def test_every_shape_of_a_specialisation(
    shape: dict[str, Any], others: list[dict[str, int]], device: Device, cache: Cache
) -> None:
    problem = make_problem(OPERATOR, "small", shape)
    legal = _space(device.target).feasible(problem, device.target)
    for config in legal[len(legal) // 7 :: max(1, len(legal) // 5)]:
        kernel = _kernel(device, problem, config, cache)
        for sizes in ({}, *others):
            assert _error(device, kernel, problem.with_dims(**sizes), config) < 1e-6, (config.key, sizes)
        device.unload(kernel)


def test_past_two_to_the_31_elements(device: Device, cache: Cache) -> None:
    free, _ = torch.cuda.mem_get_info()
    problem = make_problem(OPERATOR, "seed", {"N": 2200, "C_in": 1, "kernel_size": 1})
    elements = 2200 * 64 * 128 * 128
    assert elements > 2**31
    if free < 5 * elements:
        pytest.skip(f"needs {5 * elements >> 30} GiB of device memory, {free >> 30} are free")
    config = next(c for c in _space(device.target).feasible(problem, device.target) if c["PERSISTENT"] == 1)
    x = torch.randn(2200, 1, 128, 128, device="cuda")
    weight, bias = torch.randn(64, 1, 1, 1, device="cuda"), torch.randn(64, device="cuda")
    y = torch.full((2200, 64, 128, 128), torch.nan, device="cuda")
    launch = _space(device.target).launch(problem, config, device.target)
    sizes = [2200, 128, 128, 128, 128]
    device.run(_kernel(device, problem, config, cache), launch, [x, weight, bias, y], sizes, [2.0, 0.01])
    for n in (0, 1100, 2047, 2048, 2199):
        v = (x[n].double() * weight.double()[:, 0] + bias.double()[:, None, None]) / 2.0
        exact = torch.where(v > 0, v, v * 0.01)
        assert float((y[n].double() - exact).norm() / exact.norm()) < 1e-6, n


def test_times_are_sensible(device: Device, cache: Cache) -> None:
    problem, config = make_problem(OPERATOR, "small"), _space(device.target).default
    kernel = _kernel(device, problem, config, cache)
    values = [None if v is None else v.cuda() for v in _draw(problem).values()]
    output = torch.empty(problem.output.shape, device="cuda")
    launch = _space(device.target).launch(problem, config, device.target)
    sizes = [int(problem.values[name]) for name in problem.sizes]
    call = device.bind(kernel, launch, [*values, output], sizes, [2.0, 0.01])
    device.settle()
    for cold in (False, True):
        samples = device.sample_ms([call], 15, cold=cold)
        assert len(samples) == 15
        assert 0.001 < sorted(samples)[7] < 1.0
    with pytest.raises(LaunchRefused, match="threads a block"):
        device.bind(kernel, Launch(grid=1, block=1024), [*values, output], sizes, [2.0, 0.01])
    facts = device.facts()
    assert facts["model"] == torch.cuda.get_device_name(0)
    assert facts["sm_clock_mhz"] is None or 100 < facts["sm_clock_mhz"] < 5000


FAULTING = """
import pathlib, sys, torch
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.render import KernelSource
from coldforge.codegen.settings import load_settings
from coldforge.codegen.space import Launch
from coldforge.codegen.target import detect
from coldforge.tuner.devices import open_device
from coldforge.tuner.devices.base import DeviceFault
text = 'struct Args { float* x; long long at; };' \\
    'extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args a) { a.x[a.at] = 1.0f; }'
target = detect("cuda")
device = open_device(target, load_settings())
source = KernelSource(text, "coldforge_kernel", "0" * 64, "faulting", "cuda")
kernel = device.load(compile_source(source, target, Cache(pathlib.Path(sys.argv[1]))))
try:
    device.run(kernel, Launch(grid=1, block=1), [torch.empty(1, device="cuda")], [1 << 45], [])
except DeviceFault as fault:
    print("fault:", fault)
"""


def test_an_illegal_address_is_a_device_fault(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FAULTING, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "fault: " in run.stdout, run.stdout + run.stderr
    assert "ILLEGAL_ADDRESS" in run.stdout
