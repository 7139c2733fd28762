# SPDX-License-Identifier: Apache-2.0
"""The inputs of verification: each kind has the property it is there for; shapes are legal and awkward."""

from __future__ import annotations

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import InputError
from coldforge.codegen.problem import Problem, make_problem
from coldforge.tuner.inputs import KINDS, draw
from coldforge.tuner.shapes import describe, ragged_problems, smallest


def problem_at(**shape: int) -> Problem:
    operator = catalogue().operator("conv2d_divide_leaky_relu")
    return make_problem(operator, "small", shape)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_repeat_and_follow_the_seed(kind: str) -> None:
    problem = problem_at(N=2, H=9, W=11)
    first, same, other = (draw(problem, kind, seed) for seed in (0, 0, 1))
    assert list(first) == ["x", "weight", "bias"]
    for spec in problem.tensors:
        assert first[spec.name].shape == spec.shape
        assert first[spec.name].dtype == torch.float32
        assert torch.equal(first[spec.name].nan_to_num(), same[spec.name].nan_to_num())
    assert not torch.equal(first["x"].nan_to_num(), other["x"].nan_to_num())


def test_an_absent_bias_is_not_drawn() -> None:
    assert list(draw(problem_at(bias=0), "normal")) == ["x", "weight"]


def test_unknown_kind() -> None:
    with pytest.raises(InputError, match="unknown kind of inputs 'odd'; known: normal"):
        draw(problem_at(), "odd")


def test_magnitudes() -> None:
    problem = problem_at()
    normal = draw(problem, "normal")
    assert 0.9 < normal["x"].std() < 1.1
    assert 0.5 < problem.linear_reference(normal).std() < 3.0
    assert draw(problem, "tiny")["x"].abs().max() < 1e-3
    assert draw(problem, "tiny")["bias"].abs().max() < 1e-3
    assert draw(problem, "large")["x"].abs().max() > 1e4


def test_offset_differs_by_sample_and_channel() -> None:
    means = draw(problem_at(), "offset")["x"].mean((2, 3))
    assert means.std() > 1.0
    assert len(means.flatten().unique()) == means.numel()


def test_mixed_spans_many_scales_in_one_image() -> None:
    problem = problem_at()
    x, weight = (draw(problem, "mixed")[name] for name in ("x", "weight"))
    assert x[0, 0, :, :32].abs().median() > 1e5 * x[0, 0, :, 32:].abs().median()
    assert x[0, 0, :, :32].abs().median() > 1e7 * x[0, 4, :, :32].abs().median()
    assert weight[:32].abs().median() > 1e7 * weight[32:].abs().median()
    rows = draw(problem, "mixed_rows")["x"]
    assert rows[0, 0, :32].abs().median() > 1e7 * rows[0, 0, 32:].abs().median()


def test_nonfinite_has_all_three_in_few_places() -> None:
    x = draw(problem_at(), "nonfinite")["x"]
    assert x.isnan().any()
    assert (x == torch.inf).any()
    assert (x == -torch.inf).any()
    assert x.isfinite().float().mean() > 0.99


def test_impulses_are_alone() -> None:
    drawn = draw(problem_at(), "impulses")
    counts = (drawn["x"] != 0).flatten(1).sum(1)
    assert counts.tolist() == [1, 1, 1, 1]
    assert (drawn["bias"] == 0).all()


def test_half_precision_stays_in_range() -> None:
    operator = catalogue().operator("conv2d_divide_leaky_relu")
    problem = make_problem(operator, "small", dtype="fp16")
    for kind in set(KINDS) - {"nonfinite"}:
        drawn = draw(problem, kind)
        assert all(value.isfinite().all() for value in drawn.values())
        assert problem.linear_reference({n: v.double() for n, v in drawn.items()}).abs().max() < 65504


def test_ragged_shapes_keep_the_specialisation() -> None:
    problem = problem_at()
    shapes = ragged_problems(problem)
    assert len(shapes) >= 5
    for shape in shapes:
        assert shape.specialisation == problem.specialisation
    assert any(shape.output.shape[2:] == (1, 1) for shape in shapes)
    assert any(shape.dims["W"] > 256 for shape in shapes)
    assert any(shape.dims["H"] % 2 and shape.dims["W"] % 2 for shape in shapes)
    assert {1, 2, 3} <= {shape.dims["N"] for shape in shapes}
    assert {shape.dims["W"] % 4 for shape in shapes} == {0, 1, 2, 3}
    assert {shape.values["W_out"] % 4 for shape in shapes} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("attributes", "least"),
    [({}, 3), ({"padding": 1}, 1), ({"dilation": 2}, 5), ({"kernel_size": 1}, 1), ({"kernel_size": 7}, 7)],
)
def test_ragged_shapes_respect_the_window(attributes: dict[str, int], least: int) -> None:
    problem = problem_at(**attributes)
    assert smallest(problem, "H") == smallest(problem, "W") == least
    shapes = ragged_problems(problem)
    assert min(shape.dims["H"] for shape in shapes) == least
    assert len({describe(shape) for shape in shapes}) == len(shapes)
