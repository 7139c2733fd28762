# SPDX-License-Identifier: Apache-2.0
"""Every pointwise expression, compiled by NVRTC, run on the GPU, against PyTorch's float64 reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.settings import Settings
from coldforge.codegen.space import Launch
from coldforge.codegen.target import detect
from coldforge.tuner.devices import open_device
from pointwise_cases import cases, failures, inputs, kernel_source

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def test_every_operation_agrees_with_pytorch(tmp_path: Path) -> None:
    target = detect("cuda")
    tried, x = cases(), inputs()
    wrong = []
    device = open_device(target, Settings(tmp_path, 1, "g++", True))
    kernel = device.load(compile_source(kernel_source("cuda", tried), target, Cache(tmp_path)))
    launch = Launch(grid=-(-x.numel() // 256), block=256)
    on_device = device.place(x).tensor
    for index, case in enumerate(tried):
        y = torch.empty_like(on_device)
        device.run(kernel, launch, [on_device, y], [index, x.numel()], [])
        wrong += failures(case, x, y.cpu(), "cuda")
    assert wrong == []
