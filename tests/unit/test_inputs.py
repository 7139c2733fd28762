# SPDX-License-Identifier: Apache-2.0
"""The inputs of verification: each kind has the property it is there for; shapes are legal and awkward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from coldforge.codegen.catalogue import Catalogue, catalogue
from coldforge.codegen.errors import DeclarationError, InputError
from coldforge.codegen.problem import Problem, make_problem
from coldforge.tuner import draws
from coldforge.tuner.draws import normal, uniform
from coldforge.tuner.inputs import KINDS, draw, ragged_kinds, workload_kinds
from coldforge.tuner.shapes import describe, ragged_problems, smallest
from own_family import NAME, write_family


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


@pytest.mark.parametrize("draw_numbers", [normal, uniform])
def test_large_draws_come_in_portions(
    draw_numbers: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "PORTION", 1000)

    def drawn(seed: int, count: int) -> torch.Tensor:
        return draw_numbers((count,), torch.Generator().manual_seed(seed))

    whole = drawn(1, 4500)
    monkeypatch.setattr(draws.os, "cpu_count", lambda: 1)
    assert torch.equal(drawn(1, 4500), whole)
    assert not torch.equal(drawn(2, 4500), whole)
    portions = whole.split(1000)
    assert not any(torch.equal(portions[0], other) for other in portions[1:4])
    assert torch.equal(drawn(1, 1000), drawn(1, 1000))
    plain = torch.empty(1000).normal_ if draw_numbers is normal else torch.empty(1000).uniform_
    assert torch.equal(drawn(1, 1000), plain(generator=torch.Generator().manual_seed(1)))


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


def test_large_is_what_an_operator_can_take(tmp_path: Path) -> None:
    write_family(tmp_path)
    own = Catalogue((tmp_path,)).operator(NAME)
    assert not own.family.magnitude_name
    squared = draw(make_problem(own, next(iter(own.workloads))), "large")["x"].square()
    assert 1e8 < squared.max() < 1e12
    assert draw(problem_at(N=1, H=9, W=11), "large")["x"].abs().max() > 1e25


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


def mean_problem(**shape: int) -> Problem:
    return make_problem(catalogue().operator("conv_transpose2d_mean_logsumexp"), "small", shape)


def test_no_part_of_an_offset_plane_stands_for_the_rest() -> None:
    drawn = draw(mean_problem(C_in=8, C_out=8), "offset")
    x = drawn["x"]
    for axis in (2, 3):  # all rows, then all columns
        lines = x.mean((0, 1, 5 - axis))
        total = lines.mean()
        first, second = lines.chunk(2)
        assert (second.mean() - first.mean()).abs() > 0.2
        for step in (2, 3, 8):
            assert all((lines[start::step].mean() - total).abs() > 0.05 for start in range(step))
    assert drawn["weight"].mean() > 0.5 / (8 * 9 + 3) ** 0.5


def test_common_offset_is_far_from_zero_and_flat() -> None:
    x = draw(mean_problem(N=3, C_in=8), "common_offset")["x"]
    means = x.double().mean((2, 3))
    assert 9000 <= means.min() < 9700
    assert 10300 < means.max() <= 11000
    assert 0.003 < x.double().std((2, 3)).max() < 0.01
    assert len(x[0, 0].unique()) > 10
    assert ((means - means.round()).abs() > 0.01).sum() > 20


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_common_offset_fits_narrow_types(dtype: str) -> None:
    operator = catalogue().operator("conv_transpose2d_mean_logsumexp")
    problem = make_problem(operator, "small", {"H": 40, "W": 40}, dtype)
    drawn = draw(problem, "common_offset")
    assert len(drawn["x"][0, 0].unique()) > 5
    largest = problem.linear_reference({n: v.double() for n, v in drawn.items()}).abs().max()
    assert 10 < largest < torch.finfo(problem.dtype.torch).max / 2
    assert draw(mean_problem(), "impulses")["x"].abs().max() > 1e4
    assert draw(problem, "impulses")["x"].isfinite().all()


def test_an_impulse_shows_in_a_mean() -> None:
    problem = mean_problem(N=5, C_in=4, C_out=6, H=35, W=21)
    drawn = draw(problem, "impulses")
    assert (drawn["x"] != 0).flatten(1).sum(1).tolist() == [1] * 5
    response = problem.linear_reference(drawn).abs().amax((1, 2, 3))
    assert (response > 0.05).all()
    assert (response < 10).all()


def test_some_sample_of_a_mean_stays_finite() -> None:
    problem = mean_problem(N=5, C_in=4, C_out=6, H=35, W=21)
    x = draw(problem, "nonfinite")["x"].flatten(1)
    found = sorted(str(row[~row.isfinite()].tolist()) for row in x)
    assert len(set(found)) == 4
    assert found.count("[]") in (1, 2)


def test_half_of_the_filters_are_those_of_half_of_the_outputs() -> None:
    weight = draw(mean_problem(), "mixed")["weight"]
    assert weight.shape[:2] == (64, 128)
    assert weight[:, :64].abs().median() > 1e7 * weight[:, 64:].abs().median()


def test_kinds_that_a_family_asks_for() -> None:
    convolution, mean = problem_at(), mean_problem()
    assert workload_kinds(convolution) == ("normal", "mixed")
    assert ragged_kinds(convolution) == KINDS
    assert workload_kinds(mean) == ("offset", "common_offset")
    assert ragged_kinds(mean) == (*KINDS, "common_offset")
    family = replace(mean.operator.family, workload_inputs=("offset", "odd"))
    odd = replace(mean, operator=replace(mean.operator, family=family))
    with pytest.raises(
        DeclarationError, match="workload_inputs: unknown kind of inputs 'odd'; known: normal"
    ):
        workload_kinds(odd)


FAMILIES = (
    ("tensors: {x: [n]}\noutput: {y: [n]}", "x", "{n: 37}"),
    ("tensors: {x: [n, m]}\noutput: {y: [n, 1]}", "x", "{n: 37, m: 50}"),
    ("tensors: {x: [n, m], z: [n, m], scale: [m]}\noutput: {y: [n, m]}", "x, z, scale", "{n: 37, m: 50}"),
    ("tensors: {x: [b, n, m]}\noutput: {y: [b, n]}", "x", "{b: 3, n: 37, m: 50}"),
    ("tensors: {x: [b, 2, 3, n, m]}\noutput: {y: [b, 2, 3, n, m]}", "x", "{b: 3, n: 17, m: 20}"),
)


@pytest.mark.parametrize(("declaration", "arguments", "sizes"), FAMILIES)
def test_any_rank_and_any_names(tmp_path: Path, declaration: str, arguments: str, sizes: str) -> None:
    text = f"{declaration}\nreference: reference:f\nworkloads: {{small: {sizes}}}\n"
    body = f"def f({arguments}):\n    return x\n"
    place = write_family(tmp_path, family_yaml=text, reference_py=body)
    problem = make_problem(Catalogue((place,)).operator(NAME), "small")
    for kind in (*KINDS, "common_offset"):
        for shape in (problem, *ragged_problems(problem)):
            first, other = draw(shape, kind), draw(shape, kind, 1)
            assert {n: tuple(v.shape) for n, v in first.items()} == {t.name: t.shape for t in shape.tensors}
            assert kind == "nonfinite" or not torch.equal(first["x"], other["x"])
    impulses, far = draw(problem, "impulses")["x"], draw(problem, "common_offset")["x"]
    assert 1 <= (impulses.flatten(1 if impulses.dim() > 1 else 0) != 0).sum(-1).max() <= 2
    assert 8900 < far.min() < far.max() < 11100
