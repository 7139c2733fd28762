# SPDX-License-Identifier: Apache-2.0
"""The shapes of verification follow a family's declaration: no size is known by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from coldforge.codegen.catalogue import Catalogue, catalogue
from coldforge.codegen.problem import Problem, make_problem
from coldforge.tuner.shapes import (
    batch_of,
    batch_size,
    describe,
    elements,
    other_scalars,
    ragged_problems,
    ragged_workload,
    shrinkage,
)
from own_family import NAME, write_family


def own(folder: Path, declaration: str, arguments: str = "x") -> Problem:
    """A family of a user's own at its workload `small`."""
    text = f"{declaration}\nreference: reference:f\n"
    place = write_family(folder, family_yaml=text, reference_py=f"def f({arguments}):\n    return x\n")
    return make_problem(Catalogue((place,)).operator(NAME), "small")


def built_in(operator: str, workload: str = "small", **shape: int) -> Problem:
    return make_problem(catalogue().operator(operator), workload, shape)


ROWS = (
    "tensors: {x: [rows, columns]}\noutput: {y: [rows, columns]}\nworkloads: {small: {rows: 64, columns: 96}}"
)


@pytest.mark.parametrize(
    ("declaration", "batch"),
    [
        (ROWS, "rows"),
        (f"{ROWS}\nrun_time: [columns]", None),
        (f"{ROWS}\nderived: {{twice: rows * 2}}", None),
        ("tensors: {x: [n]}\noutput: {y: [1]}\nworkloads: {small: {n: 5}}", None),
        ("tensors: {x: [b, c]}\noutput: {y: [c, b]}\nworkloads: {small: {b: 5, c: 7}}", None),
        ("tensors: {x: [b, b]}\noutput: {y: [b]}\nworkloads: {small: {b: 5}}", None),
    ],
)
def test_the_batch_is_the_first_of_data_and_output(
    tmp_path: Path, declaration: str, batch: str | None
) -> None:
    problem = own(tmp_path, declaration)
    assert batch_of(problem.operator.family) == batch
    assert batch_size(problem) == (1 if batch is None else problem.dims[batch])


def test_built_in_families() -> None:
    convolution, mean = built_in("conv2d_mish"), built_in("conv_transpose2d_mean_logsumexp")
    assert batch_of(convolution.operator.family) == batch_of(mean.operator.family) == "N"
    assert shrinkage(convolution) == 1
    assert shrinkage(mean) == 256 * 256
    assert shrinkage(built_in("conv_transpose2d_scale_mean")) == 64 * 64


def test_one_size_alone_may_be_large(tmp_path: Path) -> None:
    shapes = ragged_problems(own(tmp_path, ROWS))
    assert [shape.dims["rows"] for shape in shapes] == [1, 2, 3, 5, 67]
    assert {shape.dims["columns"] for shape in shapes} == {96}
    declaration = "tensors: {x: [n]}\noutput: {y: [1]}\nworkloads: {small: {n: 4096}}"
    lengths = [shape.dims["n"] for shape in ragged_problems(own(tmp_path, declaration))]
    assert lengths[0] == 1
    assert max(lengths) > 1024
    assert {length % 4 for length in lengths} == {0, 1, 2, 3}


def test_no_size_at_all(tmp_path: Path) -> None:
    problem = own(tmp_path, f"{ROWS}\nrun_time: []")
    assert [shape.dims for shape in ragged_problems(problem)] == [problem.dims]


def test_rules_are_kept(tmp_path: Path) -> None:
    rule = "requires:\n  - {require: columns % 8 == 0 and columns >= 16, reason: not so}"
    problem = own(tmp_path, f"{ROWS}\nrun_time: [rows, columns]\n{rule}")
    shapes = ragged_problems(problem)
    columns = {shape.dims["columns"] for shape in shapes}
    assert min(columns) == 16
    assert len(columns) >= 4
    assert all(width % 8 == 0 for width in columns)


@pytest.mark.parametrize(
    "attributes", [{"padding": 1}, {"padding": 2}, {"padding": 1, "stride": 2, "output_padding": 1}]
)
def test_few_pixels_between_the_borders(attributes: dict[str, int]) -> None:
    problem = built_in("conv_transpose2d_mean_logsumexp", **attributes)
    inner = []
    for shape in ragged_problems(problem):
        top, bottom, left, right = (int(shape.values[n]) for n in ("TOP", "BOTTOM", "LEFT", "RIGHT"))
        inner.append((shape.dims["H"] - top - bottom, shape.dims["W"] - left - right))
    assert any(rows > 0 and 0 < columns < 3 for rows, columns in inner), inner


def test_other_scalars_are_other_ones() -> None:
    problem = built_in("conv2d_divide_leaky_relu")
    other = other_scalars(problem)
    assert other.dims == problem.dims
    assert {n: v / problem.scalars[n] for n, v in other.scalars.items()} == {
        "divisor": pytest.approx(0.75),
        "negative_slope": pytest.approx(0.75),
    }


def test_a_large_plane_with_a_rest() -> None:
    assert ragged_workload(built_in("conv2d_mish")) is None
    beside = ragged_workload(built_in("conv_transpose2d_mean_logsumexp", "batch"))
    assert beside is not None
    assert describe(beside) == "N=1 H=255 W=253"
    odd = ragged_workload(built_in("conv_transpose2d_mean_logsumexp", "unbiased"))
    assert odd is not None
    assert describe(odd) == "N=1 H=61 W=65"
    assert ragged_workload(built_in("conv_transpose2d_scale_mean", N=1, H=1, W=1)) is None


def test_elements_of_all_present_tensors() -> None:
    problem = built_in("conv2d_mish", N=1, C_in=2, C_out=3, H=4, W=5, bias=0)
    assert elements(problem) == 2 * 20 + 3 * 2 * 9 + 3 * 20
