# SPDX-License-Identifier: Apache-2.0
"""The error bound through reductions: it holds what fp32 arithmetic gives, and little more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from coldforge.codegen.catalogue import Catalogue, catalogue
from coldforge.codegen.dtypes import PRECISIONS
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.steps import EpilogueStep
from coldforge.templates.reductions import REDUCTIONS
from coldforge.tuner.bound import CONSTANTS, expect, judge, moved_by, samples_apart
from coldforge.tuner.inputs import Tensors, draw, ragged_kinds
from coldforge.tuner.shapes import ragged_problems
from own_family import NAME, write_family

EPS = 2.0**-24


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are tiny: waking threads would cost more than the work
    yield
    torch.set_num_threads(threads)


def reducing(*chain: EpilogueStep, **shape: int) -> Problem:
    """conv_transpose2d_mean with 1x1 kernels on one pixel, and a chain: the linear part is one product."""
    operator = catalogue().operator("conv_transpose2d_mean_logsumexp")
    small = {"N": 1, "C_in": 1, "H": 1, "W": 1, "kernel_size": 1, "conv_bias": 0, "bias": 0, **shape}
    problem = make_problem(operator, "small", small)
    return replace(problem, operator=replace(operator, epilogue=chain))


def over_channels(name: str) -> EpilogueStep:
    return EpilogueStep(name, (), "channels", True)


def values(v: torch.Tensor) -> Tensors:
    """Inputs whose linear part is exactly ``v``."""
    return {"x": torch.ones(1, 1, 1, 1), "weight": v.float().reshape(1, -1, 1, 1)}


def in_pairs(terms: np.ndarray) -> np.ndarray:
    return terms.sum(1, dtype=np.float32)


def in_lanes(terms: np.ndarray) -> np.ndarray:
    padded = np.pad(terms, ((0, 0), (0, -terms.shape[1] % 8))).reshape(len(terms), -1, 8)
    return np.add.accumulate(padded, axis=1, dtype=np.float32)[:, -1].sum(1, dtype=np.float32)


def _logsumexp(v: np.ndarray, add: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    most = v.max(1, keepdims=True)
    terms = torch.from_numpy(v - most).exp().numpy()
    return most[:, 0] + torch.from_numpy(add(terms)).log().numpy()


def _patterns(count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(count)
    rows = 64
    alone = np.repeat(-3 * random.random((rows, 1)), count, 1)
    alone[:, 0] = 0.0  # every other exponential is the same number, rounded the same way
    found = {
        "normal": random.standard_normal((rows, count)),
        "wide": 1e4 * random.standard_normal((rows, count)),
        "alike": 5 * random.standard_normal((rows, 1)) + 1e-3 * random.standard_normal((rows, count)),
        "one stands out": alone,
        "a result near 0": 1e-2 * random.standard_normal((rows, count)) - math.log(count),
        "ascending": np.sort(3 * random.standard_normal((rows, count)), 1),
    }
    return {name: value.astype(np.float32) for name, value in found.items()}


@pytest.mark.parametrize("count", [1, 2, 48, 128, 1000])
def test_logsumexp_in_fp32_is_within_its_rounding(count: int) -> None:
    row = REDUCTIONS["logsumexp"]
    for name, v in _patterns(count).items():
        exact = torch.from_numpy(v).double().logsumexp(1).numpy()
        allowed = EPS * row.roundings * (np.abs(exact) + 1 + math.log(count))
        for add in (in_pairs, in_lanes):
            error = np.abs(_logsumexp(v, add) - exact)
            assert (error / allowed).max() < 0.75, (name, add.__name__)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_of_one_value_is_no_arithmetic(name: str) -> None:
    problem = reducing(over_channels(name), C_out=1)
    expected = expect(problem, values(torch.tensor([0.7])), problem.scalars, "fp32")
    linear = 2 * EPS * math.sqrt(4) * 0.7
    own = EPS * 8 * 1.7 if name == "logsumexp" else 0.0
    assert float(expected.tolerance) == pytest.approx(linear + own, rel=1e-5)


@pytest.mark.parametrize(("name", "roundings"), [("sum", 2), ("mean", 4)])
def test_sums_of_channels_follow_the_size_of_their_terms(name: str, roundings: int) -> None:
    problem = reducing(over_channels(name), C_out=16)
    v = torch.full((16,), 3.0)
    v[::2] = -3.0  # a sum of 0 whose terms are not
    expected = expect(problem, values(v), problem.scalars, "fp32")
    assert float(expected.reference) == 0.0
    total = 48.0 if name == "sum" else 3.0
    allowed = (2 * math.sqrt(4) + roundings * math.sqrt(16)) * EPS * total
    assert float(expected.tolerance) == pytest.approx(allowed, rel=1e-5)


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_extremes_round_nothing(name: str) -> None:
    problem = reducing(over_channels(name), C_out=3)
    expected = expect(problem, values(torch.tensor([1.0, 5.0, -3.0])), problem.scalars, "fp32")
    extreme = 5.0 if name == "amax" else 3.0
    assert float(expected.reference.abs()) == extreme
    assert float(expected.tolerance) == pytest.approx(2 * EPS * 2 * extreme, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "v", "result"),
    [
        ("logsumexp", [math.inf, 1.0], math.inf),
        ("logsumexp", [-math.inf, 1.0], 1.0),
        ("logsumexp", [-math.inf, -math.inf], -math.inf),
        ("logsumexp", [math.nan, 1.0], math.nan),
        ("amin", [math.inf, 2.0], 2.0),
        ("sum", [math.inf, -math.inf], math.nan),
    ],
)
def test_infinities_go_through_reductions(name: str, v: list[float], result: float) -> None:
    problem = reducing(over_channels(name), C_out=2)
    expected = expect(problem, values(torch.tensor(v)), problem.scalars, "fp32")
    right = torch.full((1, 1, 1, 1), result)
    assert judge(right, expected).wrong == 0
    assert bool(expected.tolerance.isfinite().all())
    for wrong in (0.0, 1.001, math.inf, -math.inf, math.nan):
        same = wrong == result or (math.isnan(wrong) and math.isnan(result))
        assert same or judge(torch.full_like(right, wrong), expected).wrong == 1


def test_what_follows_a_reduction_is_bounded_too() -> None:
    step = EpilogueStep("mul", (("value", 1000.0),))
    alone = reducing(over_channels("logsumexp"), C_out=8)
    chain = reducing(over_channels("logsumexp"), step, C_out=8)
    inputs = values(torch.randn(8))
    before, after = (expect(p, inputs, p.scalars, "fp32") for p in (alone, chain))
    grown = 1000 * (before.tolerance.double() + 2 * EPS * before.reference.abs())
    assert torch.allclose(after.tolerance.double(), grown, rtol=1e-4)


@pytest.mark.parametrize("operator", ["conv_transpose2d_mean_logsumexp", "conv_transpose2d_scale_mean"])
@pytest.mark.parametrize(
    "shape",
    [
        {"C_in": 1, "C_out": 3, "kernel_size": 1, "padding": 0, "stride": 1, "output_padding": 0},
        {"C_in": 2, "C_out": 130, "kernel_size": 1, "padding": 0, "stride": 1, "output_padding": 0},
        {"C_in": 8, "C_out": 16, "padding": 1, "stride": 1, "output_padding": 0},
        {"C_in": 5, "C_out": 6, "padding": 1, "stride": 2, "output_padding": 1},
    ],
)
def test_fp32_pytorch_is_within_the_bound(operator: str, shape: dict[str, int]) -> None:
    problem = make_problem(catalogue().operator(operator), "small", shape)
    worst = 0.0
    for small in (*ragged_problems(problem)[1:], problem.with_dims(N=2, H=57, W=59)):
        for kind in ragged_kinds(problem):
            drawn = draw(small, kind)
            expected = expect(small, drawn, small.scalars, "fp32")
            worst = max(worst, judge(small.reference(drawn), expected).ratio)
    assert 0.01 < worst < 0.9


def test_bounds_are_a_few_roundings() -> None:
    """One constant a class, of which none may hide a wrong kernel."""
    assert set(CONSTANTS) == set(PRECISIONS)
    assert all(1 <= constant <= 8 for constant in CONSTANTS.values())


def test_the_bound_of_a_mean_does_not_grow_with_the_plane() -> None:
    operator = catalogue().operator("conv_transpose2d_scale_mean")
    relative = []
    for side in (16, 256):
        problem = make_problem(operator, "small", {"N": 1, "C_in": 4, "C_out": 4, "H": side, "W": side})
        drawn = draw(problem, "common_offset")
        magnitude = problem.magnitude({name: value.double() for name, value in drawn.items()})
        assert magnitude is not None
        tolerance = expect(problem, drawn, problem.scalars, "fp32").tolerance
        relative.append(float((tolerance / (0.5 * magnitude)).max()) / EPS)
    least = 2 * math.sqrt(4 * 9 + 3)
    assert all(least <= one <= least + 2.1 for one in relative)


def _own(folder: Path, body: str) -> Problem:
    function = f"def row_norm(x, weight):\n    return {body}\n"
    place = write_family(folder, reference_py=function)
    return make_problem(Catalogue((place,)).operator(NAME), "small")


def test_a_batch_is_cut_only_where_samples_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, together = _own(tmp_path / "a", "x.softmax(1) * weight"), _own(tmp_path / "b", "x.softmax(0)")
    assert samples_apart(apart)
    assert not samples_apart(together)
    for problem in (apart, together):
        drawn = draw(problem, "normal")
        whole = expect(problem, drawn, {}, "fp32")
        with monkeypatch.context() as patched:
            patched.setattr("coldforge.tuner.bound.CHUNK_ELEMENTS", 500)
            parts = expect(problem, drawn, {}, "fp32")
        assert torch.allclose(parts.reference, whole.reference, rtol=1e-13)


def test_moved_by_is_the_least_over_the_samples_that_say_anything() -> None:
    problem = make_problem(catalogue().operator("conv_transpose2d_scale_mean"), "small", {"N": 3})
    expected = expect(problem, draw(problem, "offset"), problem.scalars, "fp32")
    other = expected.reference.clone()
    assert moved_by(problem, expected, other) == 0.0
    other += 5 * expected.tolerance
    other[1, 3] += 45 * expected.tolerance[1, 3]
    assert moved_by(problem, expected, other) == pytest.approx(5, rel=1e-5)
    lost = replace(expected, reference=torch.full_like(expected.reference, math.nan))
    assert moved_by(problem, lost, lost.reference) == 0.0
    assert moved_by(problem, lost, other) == math.inf
    partly = expected.reference.clone()
    partly[[0, 2]] = math.nan
    assert moved_by(
        problem, replace(expected, reference=partly), torch.where(partly.isnan(), partly, other)
    ) == (pytest.approx(50, rel=1e-5))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_either_side_of_the_largest_value(sign: float) -> None:
    """Values between 65504 and 65520 round to the one, those from 65520 on to infinity; an error decides."""
    operator = catalogue().operator("conv2d_plain")
    shape = {"N": 1, "C_in": 1, "H": 1, "W": 3, "C_out": 1, "kernel_size": 1, "padding": 0, "bias": 0}
    problem = make_problem(operator, "small", shape, dtype="fp16")
    x = torch.tensor([1040.0, 1041.0, 2000.0]).half().reshape(1, 1, 1, 3)
    # 65487.5 and 65550.5 are below and above the edge by less than the tolerance, 125937.5 is far beyond.
    weight = torch.tensor([sign * 62.96875]).half().reshape(1, 1, 1, 1)
    expected = expect(problem, {"x": x, "weight": weight}, problem.scalars, "fp16")
    assert expected.edge == 65520.0
    finite, infinite = sign * 65504.0, sign * math.inf
    for right in ([finite, finite], [infinite, infinite], [finite, infinite], [infinite, finite]):
        assert judge(torch.tensor([*right, infinite]).half().reshape(1, 1, 1, 3), expected).wrong == 0
    for wrong in (-infinite, math.nan, sign * 65000.0, 0.0):
        assert judge(torch.tensor([wrong, finite, infinite]).half().reshape(1, 1, 1, 3), expected).wrong == 1
    assert judge(torch.tensor([finite, finite, finite]).half().reshape(1, 1, 1, 3), expected).wrong == 1
    far = expect(problem, {"x": x / 2, "weight": weight / 2}, problem.scalars, "fp16")
    assert far.edge == math.inf
    assert judge(torch.full((1, 1, 1, 3), infinite).half(), far).wrong == 3
