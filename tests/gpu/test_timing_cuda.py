# SPDX-License-Identifier: Apache-2.0
"""Samples on a GPU: a slow host must not show in a kernel's time."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
import torch
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import detect
from coldforge.tuner.devices import open_device

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

HOST_S = 400e-6


@pytest.mark.parametrize("cold", [False, True])
def test_launch_overhead_stays_outside(cold: bool, tmp_path: Path) -> None:
    device = open_device(detect("cuda"), Settings(tmp_path, 1, "g++", True))
    x = torch.ones(1 << 20, device="cuda")

    def quick() -> None:
        x.mul_(1.0)
        x.mul_(1.0)

    def late() -> None:
        x.mul_(1.0)
        end = time.perf_counter() + HOST_S
        while time.perf_counter() < end:
            pass
        x.mul_(1.0)

    base = statistics.median(device.sample_ms([quick], 20, cold=cold))
    times = [device.sample_ms([late], 1, cold=cold)[0] for _ in range(20)]
    assert statistics.median(times) < base + 0.25 * HOST_S * 1e3
