# SPDX-License-Identifier: Apache-2.0
"""The checker's own test: C++ kernels, by hand and from a template, changed in one place at a time. Every
fault is caught, in compiled code that really overruns and forgets; and no correct variant is rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import collapse_by_hand
import collapse_template
import conv2d_by_hand
import pytest
import torch
from coldforge.codegen.compile import Cache
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import cpu_target
from coldforge.tuner.devices import open_device
from coldforge.tuner.devices.base import Device
from coldforge.tuner.verify import Check, build_checks, verify
from hand_kernels import HandKernel, compiled

pytestmark = pytest.mark.build

VARIANTS = {**conv2d_by_hand.VARIANTS, **collapse_by_hand.VARIANTS, **collapse_template.VARIANTS}
FAULTS = {
    **{f"conv2d: {name}": fault for name, fault in conv2d_by_hand.FAULTS.items()},
    **{f"collapse: {name}": fault for name, fault in collapse_by_hand.FAULTS.items()},
    **{f"template: {name}": fault for name, fault in collapse_template.FAULTS.items()},
}

ChecksOf = Callable[[HandKernel], tuple[Check, ...]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: waking threads would cost more than the work
    home = tmp_path_factory.mktemp("home")
    yield open_device(cpu_target(), Settings(home, 1, "g++", may_build=False))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def checks_of(device: Device) -> ChecksOf:
    built: dict[HandKernel, tuple[Check, ...]] = {}

    def checks(kernel: HandKernel) -> tuple[Check, ...]:
        if kernel not in built:
            built[kernel] = build_checks(device, kernel.problem, "fp32").all()
        return built[kernel]

    return checks


@pytest.mark.parametrize("name", VARIANTS)
def test_correct_variants_pass(name: str, device: Device, checks_of: ChecksOf, cache: Cache) -> None:
    variant = VARIANTS[name]
    kernel = variant.kernel
    loaded = device.load(compiled(kernel.changed(variant.changes), "variant", cache))
    verdict = verify(device, loaded, kernel.launch, checks_of(kernel), workspace=kernel.workspace)
    assert verdict.ok, verdict.reason
    assert verdict.bound_ratio < 1


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_caught(name: str, device: Device, checks_of: ChecksOf, cache: Cache) -> None:
    fault = FAULTS[name]
    kernel = fault.kernel
    loaded = device.load(compiled(kernel.changed(fault.changes), "mutant", cache))
    verdict = verify(device, loaded, fault.launch, checks_of(kernel), workspace=kernel.workspace)
    assert not verdict.ok
    assert fault.reason in verdict.reason


def test_there_are_enough_faults() -> None:
    assert len(conv2d_by_hand.FAULTS) >= 40
    assert len(collapse_by_hand.FAULTS) >= 40
