# SPDX-License-Identifier: Apache-2.0
"""Verification of families of a user's own, which have no size N, no weights and perhaps no batch: right
functions pass, wrong ones do not, and one that cannot be told from a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.catalogue import Catalogue
from coldforge.codegen.errors import InputError
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.space import Launch
from coldforge.tuner.verify import build_checks, verify
from own_family import NAME, write_family
from torch_device import torch_device

Function = Callable[..., torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are tiny: waking threads would cost more than the work
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Own:
    """A family: its declaration, its reference's signature and body, right and wrong functions of its
    tensors."""

    declaration: str
    signature: str
    body: str
    right: tuple[Function, ...]
    wrong: tuple[Function, ...]

    def problem(self, folder: Path) -> Problem:
        text = f"{self.declaration}\nreference: reference:f\n"
        body = f"import torch\ndef f({self.signature}):\n    return {self.body}\n"
        place = write_family(folder, family_yaml=text, reference_py=body)
        return make_problem(Catalogue((place,)).operator(NAME), "small")


def _softmax(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    e = (x - shift).exp()
    return e / e.sum(1, keepdim=True)


def _norm(x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred * (centred.square().mean(1, keepdim=True) + 1e-5).rsqrt() * gain + bias


FAMILIES = {
    "softmax": Own(
        "tensors: {x: [rows, columns]}\noutput: {y: [rows, columns]}\nrun_time: [rows, columns]\n"
        "workloads: {small: {rows: 50, columns: 300}}",
        "x",
        "x.softmax(1)",
        (lambda x: x.softmax(1), lambda x: _softmax(x, x.amax(1, keepdim=True))),
        (
            lambda x: _softmax(x, torch.zeros(())),
            lambda x: x.softmax(0),
            lambda x: torch.ones_like(x) / x.shape[1],
            lambda x: _softmax(x, x[:, :1]),
            lambda x: x.half().float().softmax(1),
        ),
    ),
    "layer norm": Own(
        "tensors: {x: [rows, columns], gain: [columns], bias: [columns]}\noutput: {y: [rows, columns]}\n"
        "workloads: {small: {rows: 50, columns: 300}}",
        "x, gain, bias",
        "torch.nn.functional.layer_norm(x, gain.shape, gain, bias, 1e-5)",
        (lambda x, gain, bias: F.layer_norm(x, gain.shape, gain, bias, 1e-5), _norm),
        (
            lambda x, gain, bias: F.layer_norm(x, gain.shape, gain, None, 1e-5),
            lambda x, gain, bias: F.layer_norm(x, gain.shape, bias, gain, 1e-5),
            lambda x, gain, bias: F.rms_norm(x, gain.shape, gain, 1e-5) + bias,
            lambda x, gain, bias: F.layer_norm(x, gain.shape, gain, bias, 1e-3),
            lambda x, gain, bias: F.layer_norm(x.roll(1, 0), gain.shape, gain, bias, 1e-5),
        ),
    ),
    "residual": Own(
        "tensors: {x: [b, t, c], z: [b, t, c]}\noutput: {y: [b, t, c]}\nrun_time: [b, t]\n"
        "workloads: {small: {b: 2, t: 30, c: 24}}",
        "x, z",
        "torch.relu(x + z)",
        (lambda x, z: torch.relu(x + z), lambda x, z: torch.maximum(x, -z) + z),
        (lambda x, z: torch.relu(x), lambda x, z: torch.relu(x) + z, lambda x, z: torch.relu(x - z)),
    ),
    "sum of a vector": Own(
        "tensors: {x: [n]}\noutput: {y: [1]}\nworkloads: {small: {n: 5000}}",
        "x",
        "x.sum(0, keepdim=True)",
        (lambda x: x.sum(0, keepdim=True), lambda x: x.double().sum(0, keepdim=True).float()),
        (
            lambda x: torch.zeros(1),
            lambda x: x[:-1].sum(0, keepdim=True),
            lambda x: x[: x.shape[0] // 4 * 4].sum(0, keepdim=True),
            lambda x: x.mean(0, keepdim=True),
        ),
    ),
    "columns of a batch": Own(
        "tensors: {x: [rows, columns]}\noutput: {y: [rows, columns]}\nrun_time: [rows, columns]\n"
        "workloads: {small: {rows: 50, columns: 30}}",
        "x",
        "x - x.mean(0, keepdim=True)",
        (lambda x: x - x.mean(0, keepdim=True),),
        (lambda x: x - x.mean(1, keepdim=True), lambda x: x - x[:-1].mean(0, keepdim=True), lambda x: x),
    ),
}


def _kernel(function: Function) -> Callable[..., None]:
    def kernel(tensors: list[Any], sizes: list[int], scalars: list[float]) -> None:
        *inputs, y = tensors
        y.copy_(function(*inputs))

    return kernel


@pytest.mark.parametrize("name", FAMILIES)
def test_right_functions_pass_and_wrong_ones_do_not(name: str, tmp_path: Path) -> None:
    own, device = FAMILIES[name], torch_device()
    checks = build_checks(device, own.problem(tmp_path), "fp32").all()
    assert len({check.kind for check in checks}) >= 5
    for place, function in enumerate(own.right):
        verdict = verify(device, _kernel(function), lambda _: Launch(), checks)
        assert verdict.ok, f"{place}: {verdict.reason}"
    for place, function in enumerate(own.wrong):
        assert not verify(device, _kernel(function), lambda _: Launch(), checks).ok, place


def test_data_that_do_not_matter_are_refused(tmp_path: Path) -> None:
    own = Own(
        "tensors: {x: [n, c]}\noutput: {y: [n, c]}\nworkloads: {small: {n: 8, c: 8}}",
        "x",
        "torch.ones_like(x) + 1e-9 * x.clamp(-1, 1)",
        (),
        (),
    )
    with pytest.raises(InputError, match=r"row_norm at n=8: its output hardly changes .* normal, mixed\)"):
        build_checks(torch_device(), own.problem(tmp_path), "fp32")


def test_a_kind_may_tell_at_small_shapes_only(tmp_path: Path) -> None:
    declaration = (
        "tensors: {x: [b, c, n]}\noutput: {y: [b, c, 1]}\nrun_time: [b, n]\nreduction_length: 8\n"
        "workloads: {small: {b: 2, c: 2, n: 300000}}"
    )
    own = Own(declaration, "x", "x.mean(2, keepdim=True) + 1.0", (), ())
    checks = build_checks(torch_device(), own.problem(tmp_path), "fp32")
    assert "normal at the workload" not in checks.left_out
    hidden = Own(declaration, "x", "x.mean(2, keepdim=True) / 200 + 1.0", (), ())
    with pytest.raises(InputError, match="b=2 n=300000: its output hardly changes"):
        build_checks(torch_device(), hidden.problem(tmp_path / "hidden"), "fp32")
    wanted = Own(f"{declaration}\nworkload_inputs: [normal, offset]", "x", hidden.body, (), ())
    checks = build_checks(torch_device(), wanted.problem(tmp_path / "wanted"), "fp32")
    assert [check.kind for check in checks.workload] == ["offset"]
    assert checks.near[0].kind == "offset"
    assert "normal at the workload" in checks.left_out
