# SPDX-License-Identifier: Apache-2.0
"""Each of the emulator's words against the hardware's: the same kernel, the same inputs, the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.emulator import Array, emulate
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import Target, detect
from coldforge.tuner.devices import open_device
from coldforge.tuner.devices.base import Device
from twin import differences
from twin_kernels import twins

pytestmark = [pytest.mark.gpu, pytest.mark.build]
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

TWINS = twins()


@pytest.fixture(scope="module")
def target() -> Target:
    return detect("cuda")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def device(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Device:
    home: Path = tmp_path_factory.mktemp("home")
    return open_device(target, Settings(home, 1, "g++", may_build=False))


@pytest.mark.parametrize("name", TWINS)
def test_the_emulator_does_what_the_gpu_does(name: str, device: Device, target: Target, cache: Cache) -> None:
    twin = TWINS[name]
    if twin.archs and target.arch not in twin.archs:
        pytest.skip(f"needs {', '.join(twin.archs)}")
    kernel = device.load(compile_source(twin.source, target, cache))
    x, y = device.place(twin.x).tensor, device.place(twin.y).tensor
    device.run(kernel, twin.launch, [x, y], [twin.n], [])
    arrays = [Array("x", "input", twin.x), Array("y", "updated", twin.y)]
    result = emulate(twin.source, twin.launch, arrays, [twin.n], build="plain", cache=cache)
    assert [str(finding) for finding in result.findings] == []
    assert differences(twin, result.outputs["y"], y.cpu()) == []
