# SPDX-License-Identifier: Apache-2.0
"""Energy of a real GPU: twice the work takes about twice the joules, at a power that a GPU can have."""

from __future__ import annotations

import pytest
import torch
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import detect
from coldforge.tuner.devices import open_device
from coldforge.tuner.devices.base import Device
from coldforge.tuner.energy import Span, energy_in_rounds, read_energy

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

ROUNDS = 3


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    device = open_device(detect("cuda"), Settings(tmp_path_factory.mktemp("home"), 1, "g++", True))
    if device.meter() is None:
        pytest.skip("this GPU tells neither energy nor power")
    return device


def test_twice_the_work_takes_twice_the_energy(device: Device) -> None:
    a = torch.randn(4096, 4096, device="cuda")
    out = torch.empty_like(a)

    def once() -> None:
        torch.mm(a, a, out=out)

    def twice() -> None:
        torch.mm(a, a, out=out)
        torch.mm(a, a, out=out)

    first, second = energy_in_rounds(device, [[once], [twice]], ROUNDS)
    assert len(first) == len(second) == ROUNDS
    for one, two in zip(first, second, strict=True):
        print(
            f"{one.source}: {one.joules:.4f} J, {two.joules:.4f} J, {one.power_w:.0f} W, {two.power_w:.0f} W"
        )
        assert 50 < one.power_w < 1000
        assert 50 < two.power_w < 1000
        assert 1.8 < two.joules / one.joules < 2.2
    joules = [reading.joules for reading in first]
    assert max(joules) < 1.1 * min(joules), "one reading is like another"


def test_a_small_kernel_is_read_from_graphs(device: Device) -> None:
    x = torch.ones(1 << 12, device="cuda")
    found = read_energy(device, [lambda: x.mul_(1.0)])
    assert found is not None
    assert found.launch_s < 10e-6, "launched from the host each would take longer"
    assert 0 < found.joules < 0.01


def test_a_short_reading_agrees_with_a_long_one(device: Device) -> None:
    x = torch.ones(1 << 28, device="cuda")
    call = [lambda: x.mul_(1.0)]
    short, long = read_energy(device, call), read_energy(device, call, Span(least_s=4.0, most_s=6.0))
    assert short is not None
    assert long is not None
    assert short.joules == pytest.approx(long.joules, rel=0.05)


def test_the_board_reads_what_the_record_names(device: Device) -> None:
    facts = device.facts()
    for name in ("driver", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w"):
        assert facts[name], name
    assert isinstance(facts["throttled"], list)
    assert 5 < facts["temperature_c"] < 110
