# SPDX-License-Identifier: Apache-2.0
"""Every pointwise expression, compiled by g++, against PyTorch's reference in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.settings import Settings
from coldforge.codegen.space import Launch
from coldforge.codegen.target import cpu_target
from coldforge.templates.pointwise import POINTWISE
from coldforge.tuner.devices.cpu import CpuDevice
from pointwise_cases import Case, cases, failures, inputs, kernel_source

pytestmark = pytest.mark.build


def _apply_all(tried: list[Case], x: torch.Tensor, tmp_path: Path) -> list[torch.Tensor]:
    target = cpu_target()
    device = CpuDevice(target, Settings(tmp_path, 1, "g++", True))
    kernel = device.load(compile_source(kernel_source("cpu", tried), target, Cache(tmp_path)))
    results = []
    for index in range(len(tried)):
        y = torch.empty_like(x)
        device.run(kernel, Launch(units=x.numel(), grain=1), [x, y], [index, x.numel()], [])
        results.append(y)
    return results


def test_every_operation_agrees_with_pytorch(tmp_path: Path) -> None:
    tried, x = cases(), inputs()
    assert {case.op for case in tried} == set(POINTWISE)
    results = _apply_all(tried, x, tmp_path)
    wrong = [text for case, y in zip(tried, results, strict=True) for text in failures(case, x, y, "cpu")]
    assert wrong == []


def test_the_check_sees_small_faults() -> None:
    x = torch.linspace(-4.0, 4.0, 101)
    case = Case("silu")
    right = torch.nn.functional.silu(x.double()).float()
    assert failures(case, x, right, "cpu") == []
    assert failures(case, x, right * (1 + 2.0**-18), "cpu") != []
    assert failures(case, x, torch.where(x == x[7], torch.nan, right), "cpu") != []
    assert failures(Case("relu"), torch.tensor([-0.0]), torch.tensor([0.0]), "cpu") != []


def test_references_take_channel_vectors() -> None:
    v = torch.tensor([[[1.0], [-2.0]], [[torch.nan], [4.0]]])
    vector = torch.tensor([3.0, -1.0]).reshape(1, 2, 1)
    for name, row in POINTWISE.items():
        assert set(row.channel_parameters) <= set(row.parameters)
        if row.channel_parameters:
            got = row.reference(v, value=vector)
            each = [row.reference(v[:, k], value=float(vector[0, k, 0])) for k in range(2)]
            assert torch.equal(got.nan_to_num(99.0), torch.stack(each, 1).nan_to_num(99.0)), name
