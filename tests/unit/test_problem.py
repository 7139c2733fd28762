# SPDX-License-Identifier: Apache-2.0
"""Problems: sizes, work counts, keys, the PyTorch reference, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import ColdforgeError, InputError, UnknownName
from coldforge.codegen.problem import Problem, make_problem


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
        ("seed", {"groups": 3}, "groups=3 does not divide both C_in=8 and C_out=64"),
        ("seed", {"groups": 16}, "groups=16 does not divide both C_in=8"),
        ("seed", {"bias": 2}, "bias=2"),
        ("seed", {"N": 2**31}, "N=2147483648"),
        ("seed", {"N": 1, "C_out": 1, "H": 2**31 - 1, "W": 1, "padding": 2}, "H_out would be 2147483649"),
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


def _drawn(problem: Problem) -> dict[str, torch.Tensor | None]:
    g = torch.Generator().manual_seed(5)
    return {
        t.name: torch.randn(t.shape, dtype=torch.float64, generator=g) if t.present else None
        for t in problem.tensors
    }


@pytest.mark.parametrize("absent", [(), ("bias",), ("conv_bias", "bias")])
def test_a_chain_that_reduces(absent: tuple[str, ...]) -> None:
    operator = catalogue().operator("conv_transpose2d_mean_logsumexp")
    shape = {"N": 3, "C_in": 4, "C_out": 5, "H": 6, "W": 7, "stride": 2, "padding": 1, "output_padding_w": 1}
    problem = make_problem(operator, "small", {**shape, **dict.fromkeys(absent, 0)})
    shapes = {t.name: t.shape for t in problem.tensors}
    assert shapes == {"x": (3, 4, 6, 7), "weight": (4, 5, 3, 3), "conv_bias": (5,), "bias": (5, 1, 1)}
    assert [t.name for t in problem.tensors if not t.present] == list(absent)
    assert problem.output.shape == (3, 1)
    assert problem.linear_shape == (3, 5, 1, 1)
    given = [problem.specialisation[f"has_{name}"] for name in ("conv_bias", "bias")]
    assert given == [int(name not in absent) for name in ("conv_bias", "bias")]
    t = _drawn(problem)
    x, weight, bias = t["x"], t["weight"], t["bias"]
    assert x is not None
    assert weight is not None
    y = torch.nn.functional.conv_transpose2d(x, weight, t["conv_bias"], 2, 1, (0, 1))
    v = y.mean((2, 3), keepdim=True) + (0.0 if bias is None else bias)
    want = torch.logsumexp(v, 1, keepdim=True).sum((2, 3)) * 4.0
    torch.testing.assert_close(problem.reference(t, {"scale": 4.0}), want)
    again = catalogue().problem_from_dict(problem.to_dict())
    assert again.absent == problem.absent
    assert again.output.shape == (3, 1)


CHAINS = {
    "[{mul: gain}, {amax: {over: channels}}, {mul: scale}]": (
        lambda v, gain, scale: (v * gain.view(1, -1, 1, 1)).amax(1) * scale,
        (2, 1, 1),
    ),
    "[{sum: {over: pixels}}, {mul: gain}, {mean: {over: channels, keepdim: true}}]": (
        lambda v, gain, scale: (v.sum((2, 3)) * gain.view(1, -1)).mean(1, keepdim=True),
        (2, 1),
    ),
    "[relu, {amin: {over: pixels, keepdim: true}}, {sub: gain}, {sum: {over: channels}}, {add: scale}]": (
        lambda v, gain, scale: (v.relu() - gain.view(1, -1, 1, 1)).sum(1) + scale,
        (2, 1, 1),
    ),
    "[{mul: gain}, {logsumexp: {over: pixels}}]": (
        lambda v, gain, scale: v[:, :, 0, 0] * gain.view(1, -1),
        (2, 5),
    ),
    "[{mul: scale}, {add: gain}]": (lambda v, gain, scale: v * scale + gain.view(1, -1, 1, 1), (2, 5, 1, 1)),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("optional", [False, True])
def test_chains_written_out(tmp_path: Path, chain: str, optional: bool) -> None:
    (tmp_path / "operators").mkdir()
    text = f"""
operator: chained
family: conv_transpose2d_mean
summary: a chain
channel_vectors: {{gain: {{shape: [1, C_out], optional: {str(optional).lower()}}}}}
scalars: {{scale: 3.0}}
epilogue: {chain}
workloads: {{small: {{N: 2, C_in: 3, C_out: 5, H: 6, W: 4, kernel_size: 2}}}}
"""
    (tmp_path / "operators" / "chained.yaml").write_text(text)
    operator = catalogue(tmp_path).operator("chained")
    expected, shape = CHAINS[chain]
    problem = make_problem(operator, "small")
    assert problem.output.shape == shape
    t = _drawn(problem)
    assert t["gain"] is not None
    v = problem.linear_reference(t)
    torch.testing.assert_close(problem.reference(t), expected(v, t["gain"], 3.0))
    if optional:
        # The step that reads it is left out; the output has the same shape.
        bare = make_problem(operator, "small", {"gain": 0})
        steps = [step for step in operator.epilogue if not step.reads(["gain"])]
        assert list(bare.steps) == steps
        assert bare.output.shape == shape
        neutral = torch.ones(5) if "mul: gain" in chain else torch.zeros(5)
        torch.testing.assert_close(bare.reference({**t, "gain": None}), expected(v, neutral.double(), 3.0))
    else:
        with pytest.raises(UnknownName, match="unknown shape field of chained 'gain'"):
            make_problem(operator, "small", {"gain": 0})


def test_a_vector_that_is_not_one_value_a_channel(tmp_path: Path) -> None:
    (tmp_path / "operators").mkdir()
    text = """
operator: wide
family: conv_transpose2d_mean
summary: a vector of another size
channel_vectors: {gain: {shape: [C_out, R]}}
epilogue: [{mul: gain}]
workloads: {small: {N: 2, C_in: 3, C_out: 5, H: 6, W: 4, kernel_size: 2}}
"""
    (tmp_path / "operators" / "wide.yaml").write_text(text)
    operator = catalogue(tmp_path).operator("wide")
    with pytest.raises(
        InputError, match=r"gain is \[5, 2\]; it must have a value for each of the 5 channels"
    ):
        make_problem(operator, "small")
    assert make_problem(operator, "small", {"kernel_size": 1}).output.shape == (2, 5, 1, 1)
