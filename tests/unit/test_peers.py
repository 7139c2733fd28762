# SPDX-License-Identifier: Apache-2.0
"""Who a frozen kernel is timed against: PyTorch in each arithmetic mode, and the peers of its family."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import Problem, make_problem
from coldforge.tuner import peers
from coldforge.tuner.bound import expect, judge
from coldforge.tuner.devices.base import MathMode
from coldforge.tuner.inputs import draw
from coldforge.tuner.peers import Contestant, Tensors, peers_of
from torch_device import TorchDevice, torch_device

OPERATOR = "conv_transpose2d_mean_logsumexp"


def problem_of(operator: str = OPERATOR, **shape: int) -> Problem:
    small = {"N": 2, "C_in": 4, "C_out": 6, "H": 9, "W": 11, **shape}
    return make_problem(catalogue().operator(operator), "small", small)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile takes seconds: here it gives the function back."""

    def compile(function: Callable[..., Any], **options: bool) -> Callable[..., Any]:
        assert options == {"fullgraph": True}
        return function

    monkeypatch.setattr(torch, "compile", compile)


class Modes(TorchDevice):
    """A device with a second mode, in which products are coarser."""

    @contextlib.contextmanager
    def _coarse(self) -> Iterator[None]:
        matmul = torch.Tensor.__matmul__
        torch.Tensor.__matmul__ = lambda a, b: matmul(a, b.half().float())  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.Tensor.__matmul__ = matmul  # type: ignore[method-assign]

    def math_modes(self, dtype: str) -> tuple[MathMode, ...]:
        return (
            MathMode("", dtype, contextlib.nullcontext),
            MathMode("_tf32", "tf32", self._coarse),
            MathMode("_same", "tf32", contextlib.nullcontext),
        )


def rows(device: TorchDevice, problem: Problem) -> tuple[dict[str, Contestant], Tensors]:
    drawn = draw(problem, "offset")
    return {c.name: c for c in peers_of(device, problem, drawn, "g++")}, drawn


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("padding", [0, 1])
def test_the_peers_of_a_family(padding: int) -> None:
    problem = problem_of(padding=padding)
    found, drawn = rows(torch_device(), problem)
    assert list(found) == ["eager", "compile", "collapsed", "compile_collapsed", "sum_x"]
    assert [c.answers for c in found.values()] == [True, True, True, True, False]
    expected = expect(problem, drawn, problem.scalars, "fp32")
    for name, contestant in found.items():
        assert contestant.function is not None
        output = contestant.function(drawn)
        if contestant.answers:
            assert judge(output, expected).ratio < 1, name
        else:
            assert torch.allclose(output, drawn["x"].sum())


@pytest.mark.usefixtures("uncompiled")
def test_a_family_without_peers() -> None:
    found, _ = rows(torch_device(), problem_of("conv2d_mish"))
    assert list(found) == ["eager", "compile"]


@pytest.mark.usefixtures("uncompiled")
def test_peers_have_a_row_for_each_mode_that_changes_their_answer() -> None:
    device = Modes(torch_device().target, torch_device().settings)
    found, _ = rows(device, problem_of())
    assert list(found) == [
        *("eager", "eager_tf32", "eager_same"),
        *("compile", "compile_tf32", "compile_same"),
        *("collapsed", "collapsed_tf32", "compile_collapsed", "compile_collapsed_tf32"),
        "sum_x",
    ]
    assert found["collapsed_tf32"].precision == "tf32"


def test_a_peer_that_cannot_be_compiled_is_a_row_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Callable[..., Any], **_: bool) -> Callable[..., Any]:
        raise RuntimeError("no compiler\nof any kind\nhere")

    monkeypatch.setattr(torch, "compile", broken)
    found, _ = rows(torch_device(), problem_of())
    assert found["compile_collapsed"].function is None
    assert found["compile_collapsed"].reason == "RuntimeError: no compiler of any kind"
    assert found["sum_x"].function is not None


def test_absent_tensors_and_scalars_are_bound() -> None:
    problem = problem_of(conv_bias=0, bias=0)
    drawn = draw(problem, "offset")
    assert torch.equal(peers.plain_function(problem)(drawn), problem.reference(drawn))
