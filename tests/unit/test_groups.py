# SPDX-License-Identifier: Apache-2.0
"""Groups of the conv2d family: what is declared of them, their references, and which templates take them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import InputError
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render_body
from coldforge.codegen.space import Space
from coldforge.codegen.target import cpu_target_for, cuda_target

CONV, RELU6 = "conv2d_divide_leaky_relu", "depthwise_conv2d_relu6"
SM90, CPU = cuda_target("sm_90"), cpu_target_for("x86-64-v3")
SHAPES = [
    {"C_in": 6, "C_out": 9, "groups": 3, "stride": 2, "padding": 1},
    {"C_in": 4, "C_out": 4, "groups": 4, "R": 2, "S": 3, "dilation": 2},
    {"C_in": 2, "C_out": 6, "groups": 2, "kernel_size": 1, "bias": 0},
]
# Of every kind of window there has to be a legal config: kernel, stride, dilation, image.
WINDOWS = [
    {},
    {"kernel_size": 1, "padding": 0},
    {"kernel_size": 7, "padding": 3, "stride": 2},
    {"kernel_size": 31, "padding": 15},
    {"R": 1, "S": 40},
    {"R": 40, "S": 1},
    {"kernel_size": 5, "dilation": 30},
    {"kernel_size": 11, "stride": 11},
    {"H": 7, "W": 7},
    {"H": 3, "W": 3, "padding": 0},
    {"H": 5, "W": 511},
    {"C_in": 1, "C_out": 64, "groups": 1},
]


def _depthwise() -> Space:
    return catalogue().space(catalogue().operator(RELU6), SM90, "depthwise")


def _tensors(problem: Problem) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(5)
    return {
        spec.name: torch.randn(spec.shape, generator=generator, dtype=torch.float64) if spec.present else None
        for spec in problem.tensors
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_references_are_those_of_each_group_side_by_side(shape: dict[str, int]) -> None:
    problem = make_problem(catalogue().operator(CONV), "small", {"N": 2, "H": 9, "W": 11, **shape})
    tensors, groups = _tensors(problem), shape["groups"]
    x, weight, bias = tensors["x"], tensors["weight"], tensors["bias"]
    assert x is not None
    assert weight is not None
    how = {name: value for name, value in problem.attributes().items() if name != "groups"}
    biases = (None,) * groups if bias is None else bias.chunk(groups)
    parts = list(zip(x.chunk(groups, 1), weight.chunk(groups), biases, strict=True))
    apart = torch.cat([F.conv2d(*part, **how) for part in parts], 1)
    assert torch.allclose(problem.linear_reference(tensors), apart, rtol=1e-12)
    sizes = [(a.abs(), w.abs(), None if b is None else b.abs()) for a, w, b in parts]
    magnitude = torch.cat([F.conv2d(*part, **how) for part in sizes], 1)
    found = problem.magnitude(tensors)
    assert found is not None
    assert torch.allclose(found, magnitude, rtol=1e-12)


def test_what_a_problem_says_of_groups() -> None:
    problem = make_problem(catalogue().operator(CONV), "small", {"C_in": 6, "C_out": 9, "groups": 3})
    assert {t.name: t.shape for t in problem.tensors}["weight"] == (9, 2, 3, 3)
    assert problem.reduction_length == 2 * 9
    assert problem.flops == 2 * 4 * 9 * 62 * 62 * 18
    assert problem.specialisation["groups"] == 3


@pytest.mark.parametrize(("channels", "groups"), [((8, 64), 3), ((8, 12), 8), ((6, 8), 4), ((4, 8), 8)])
def test_groups_that_do_not_divide_are_refused(channels: tuple[int, int], groups: int) -> None:
    shape = {"C_in": channels[0], "C_out": channels[1], "groups": groups}
    with pytest.raises(InputError) as caught:
        make_problem(catalogue().operator(CONV), "small", shape)
    said = f"groups={groups} does not divide both C_in={channels[0]} and C_out={channels[1]}"
    assert said in str(caught.value)


def test_templates_refuse_groups_that_they_do_not_compute() -> None:
    cat = catalogue()
    conv = cat.operator(CONV)
    grouped = make_problem(conv, "small", {"groups": 4})
    for template in ("tensor", "warpgroup"):
        space = cat.space(conv, SM90, template)
        assert space.feasible(grouped, SM90) == []
        assert "groups=4" in str(space.check(grouped, space.default, SM90))
    assert "groups=1 of C_in=8" in str(
        _depthwise().check(make_problem(conv, "small"), _depthwise().default, SM90)
    )
    direct = cat.space(conv, SM90, "direct")
    assert "PERSISTENT" in str(
        direct.check(grouped, direct.config({"PERSISTENT": 1, "STAGING": "double"}), SM90)
    )
    # Tiles of eight output channels would be one eighth full.
    assert direct.feasible(make_problem(cat.operator(RELU6), "small"), SM90) == []


def test_the_template_is_chosen_by_where_its_default_is_legal() -> None:
    cat = catalogue()
    conv, relu6 = cat.operator(CONV), cat.operator(RELU6)
    assert cat.space(conv, SM90).template == "direct"
    assert cat.space(relu6, SM90).template == "depthwise"
    alone = make_problem(relu6, "small", {"groups": 1})
    assert cat.space(relu6, SM90, problem=alone).template == "direct"
    assert cat.space(relu6, SM90, "tensor").template == "tensor"


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_group_is_a_sample_of_a_smaller_convolution(kind: str) -> None:
    cat, target = catalogue(), SM90 if kind == "cuda" else CPU
    space = cat.space(cat.operator(CONV), target, "direct")
    problem = make_problem(cat.operator(CONV), "small", {"C_in": 6, "C_out": 48, "groups": 3})
    text = render_body(space, problem, space.default, target)
    assert "C_in = 2;" in text
    assert "C_out = 16;" in text
    assert "own.bias += group * Problem::C_out;" in text
    without = problem.operator, "unbiased", {"C_in": 6, "C_out": 48, "groups": 3}
    assert "own.bias +=" not in render_body(space, make_problem(*without), space.default, target)
    launch, one = (
        space.launch(problem, space.default, target),
        space.launch(
            make_problem(cat.operator(CONV), "small", {"C_in": 2, "C_out": 16}), space.default, target
        ),
    )
    assert (launch.grid, launch.units) == (3 * one.grid, 3 * one.units)


def test_the_depthwise_space_at_its_workload() -> None:
    space, operator = _depthwise(), catalogue().operator(RELU6)
    legal = space.feasible(make_problem(operator, "seed"), SM90)
    assert 300 <= len(legal) <= 700
    assert space.default in legal
    assert {config["STAGING"] for config in legal} == {"plain", "shared"}
    assert {config["VEC"] for config in legal} == {4}
    for arch in space.archs:
        for workload in ("seed", "small"):
            problem = make_problem(operator, workload)
            assert space.check(problem, space.default, cuda_target(arch)) is None


@pytest.mark.parametrize("shape", WINDOWS)
def test_every_window_has_a_legal_config(shape: dict[str, int]) -> None:
    problem = make_problem(
        catalogue().operator(RELU6), "seed", shape, "fp16" if "stride" in shape else "fp32"
    )
    space = _depthwise()
    legal = space.feasible(problem, SM90)
    assert legal
    for config in legal[:: max(1, len(legal) // 10)]:
        env, launch = space.environment(problem, config, SM90), space.launch(problem, config, SM90)
        planes = problem.dims["N"] * problem.dims["C_in"]
        pixels = int(problem.values["H_out"]) * int(problem.values["W_out"])
        assert launch.block == config["BLOCK"]
        covered = launch.grid * int(env["PLANES"]) * int(config["TILE_X"]) * int(config["TILE_Y"])
        assert covered >= planes * pixels
        assert launch.shared_bytes <= SM90.attributes["max_shared_bytes"]
