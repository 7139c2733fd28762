# SPDX-License-Identifier: Apache-2.0
"""Problems: sizes, work counts, keys, the PyTorch reference, and what is refused."""

from __future__ import annotations

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import ColdforgeError, InputError, UnknownName
from coldforge.codegen.problem import make_problem


@pytest.fixture
def operator():
    return catalogue().operator("conv2d_divide_leaky_relu")


def test_seed_counts(operator) -> None:
    problem = make_problem(operator, "seed")
    assert problem.output.shape == (128, 64, 126, 126)
    assert [t.shape for t in problem.tensors] == [(128, 8, 128, 128), (64, 8, 3, 3), (64,)]
    assert problem.flops == 2 * 128 * 64 * 126 * 126 * 72
    assert problem.bytes_read == 4 * (128 * 8 * 128 * 128 + 64 * 72 + 64)
    assert problem.bytes_written == 4 * 128 * 64 * 126 * 126
    assert problem.reduction_length == 72


def test_specialisation_leaves_out_what_a_kernel_learns_at_launch(operator) -> None:
    one = make_problem(operator, "seed")
    other = make_problem(operator, "seed", {"N": 3, "H": 50, "W": 21})
    assert one.specialisation == other.specialisation
    assert not {"N", "H", "W", "H_out", "W_out"} & set(one.specialisation)
    assert make_problem(operator, "seed", {"bias": 0}).specialisation != one.specialisation
    assert make_problem(operator, "seed", {"stride": 2}).specialisation != one.specialisation


def test_reference_is_the_operator(operator) -> None:
    problem = make_problem(
        operator, "small", {"N": 2, "H": 9, "W": 11, "stride_h": 2, "padding": 1, "dilation_w": 2}
    )
    tensors = {t.name: torch.randn(t.shape, dtype=torch.float64) for t in problem.tensors}
    got = problem.reference(tensors, {"divisor": 3.0, "negative_slope": 0.2})
    conv = torch.nn.functional.conv2d(
        tensors["x"], tensors["weight"], tensors["bias"], stride=(2, 1), padding=1, dilation=(1, 2)
    )
    torch.testing.assert_close(got, torch.nn.functional.leaky_relu(conv / 3.0, 0.2))
    assert got.shape == problem.output.shape
    magnitude = problem.magnitude(tensors)
    assert magnitude is not None
    assert bool((magnitude >= conv.abs() - 1e-9).all())


def test_json_round_trip(operator) -> None:
    problem = make_problem(operator, "seed", {"N": 2, "bias": 0}, scalars={"divisor": 4.0})
    again = catalogue().problem_from_dict(problem.to_dict())
    assert again.to_dict() == problem.to_dict()
    assert again.specialisation == problem.specialisation
    assert again.workload == "seed+"


@pytest.mark.parametrize(
    ("workload", "shape", "expected"),
    [
        ("nope", {}, "unknown workload"),
        ("seed", {"Q": 1}, "unknown shape field"),
        ("seed", {"N": 0}, "N=0; it must be from 1"),
        ("seed", {"N": -3}, "N=-3"),
        ("seed", {"stride": 0}, "stride_h=0"),
        ("seed", {"H": 2}, "larger than the padded image"),
        ("seed", {"groups": 2}, "groups=2"),
        ("seed", {"bias": 2}, "bias=2"),
        ("seed", {"N": 2**31}, "N=2147483648"),
        ("seed", {"N": 2**30, "H": 2**20}, "more than 2**40 elements"),
    ],
)
def test_refused(operator, workload: str, shape: dict[str, int], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        make_problem(operator, workload, shape)
    assert expected in str(caught.value)


def test_unknown_names() -> None:
    with pytest.raises(UnknownName, match="known: conv2d_divide_leaky_relu"):
        catalogue().operator("nope")
    with pytest.raises(ColdforgeError, match="unknown dtype 'fp8'"):
        make_problem(catalogue().operator("conv2d_mish"), "seed", dtype="fp8")


def test_every_declared_workload_is_legal() -> None:
    for operator in catalogue().operators.values():
        for workload in operator.workloads:
            assert make_problem(operator, workload).flops > 0
