# SPDX-License-Identifier: Apache-2.0
"""conv_transpose2d_mean as defined and as collapsed agree for any attributes, and so do the sums of the
absolute values of their terms: the collapsed form may scale the error bound of what the definition judges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import InputError
from coldforge.codegen.family import Family
from coldforge.codegen.problem import Problem, make_problem
from hypothesis import assume, given, settings
from hypothesis import strategies as st


def pair(low: int, high: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(low, high), min_size=2, max_size=2)


SHAPES = st.fixed_dictionaries(
    {
        "N": st.integers(1, 2),
        "C_in": st.integers(1, 3),
        "C_out": st.integers(1, 3),
        "H": st.integers(1, 6),
        "W": st.integers(1, 6),
        "kernel_size": pair(1, 4),
        "stride": pair(1, 4),
        "padding": pair(0, 4),
        "output_padding": pair(0, 3),
        "dilation": pair(1, 3),
        "conv_bias": st.integers(0, 1),
    }
)


def family() -> Family:
    return catalogue().families["conv_transpose2d_mean"]


def problem_of(shape: dict[str, Any]) -> Problem:
    operator = catalogue().operator("conv_transpose2d_scale_mean")
    return make_problem(operator, "small", shape)


def drawn(problem: Problem, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    present = [spec for spec in problem.tensors if spec.present]
    return {s.name: torch.randn(s.shape, generator=generator, dtype=torch.float64) for s in present}


@settings(max_examples=150, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 100))
def test_the_collapsed_form_is_the_definition(shape: dict[str, Any], seed: int) -> None:
    try:
        problem = problem_of(shape)
    except InputError:
        assume(False)
        return
    tensors = drawn(problem, seed)
    (collapsed,) = (peer for peer in family().peers if peer.name == "collapsed")
    arguments = {t.name: tensors.get(t.name) for t in family().tensors}
    whole = problem.linear_reference(tensors)
    assert whole.shape == problem.linear_shape
    second = family().peer(collapsed)(**arguments, **problem.attributes())
    assert torch.allclose(second, whole, rtol=1e-10, atol=1e-12)
    positive = problem.linear_reference({name: value.abs() for name, value in tensors.items()})
    magnitude = problem.magnitude(tensors)
    assert magnitude is not None
    assert torch.allclose(magnitude, positive, rtol=1e-10, atol=1e-12)
    assert bool((whole.abs() <= magnitude * (1 + 1e-10)).all())


@pytest.mark.parametrize(
    ("shape", "border"),
    [
        ({"padding": 0, "stride": 1, "output_padding": 0}, (0, 0, 0, 0)),
        ({"padding": 1, "stride": 1, "output_padding": 0}, (1, 1, 1, 1)),
        ({"padding": 1, "stride": 2, "output_padding": 1}, (1, 0, 1, 0)),
        ({"padding": [2, 0], "stride": 1, "output_padding": 0}, (2, 2, 0, 0)),
    ],
)
def test_border_rows_are_those_that_some_tap_misses(
    shape: dict[str, Any], border: tuple[int, int, int, int]
) -> None:
    problem = problem_of({"H": 12, "W": 11, "N": 1, "C_in": 1, "C_out": 1, **shape})
    values = problem.values
    assert (values["TOP"], values["BOTTOM"], values["LEFT"], values["RIGHT"]) == border
    weight = torch.ones(1, 1, 3, 3, dtype=torch.float64)
    met = torch.empty(12, 11)
    for h in range(12):
        for w in range(11):
            x = torch.zeros(1, 1, 12, 11, dtype=torch.float64)
            x[0, 0, h, w] = 1.0
            tensors = {"x": x, "weight": weight, "conv_bias": torch.zeros(1, dtype=torch.float64)}
            met[h, w] = problem.linear_reference(tensors).sum() * (values["H_out"] * values["W_out"])
    top, bottom, left, right = border
    missed = met.round() < 9
    expected = torch.ones(12, 11, dtype=torch.bool)
    expected[top : 12 - bottom, left : 11 - right] = False
    assert torch.equal(missed, expected)
