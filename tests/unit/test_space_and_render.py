# SPDX-License-Identifier: Apache-2.0
"""Spaces and rendering on a small declared family, and what every built-in space and template keeps to."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import jinja2
import jinja2.meta
import pytest
from coldforge.codegen.catalogue import BUILTIN_ROOT, Catalogue, catalogue
from coldforge.codegen.epilogue import epilogue_code, float_literal
from coldforge.codegen.errors import DeclarationError, InfeasibleConfig, InputError, UnknownName
from coldforge.codegen.operator import ChannelVector
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import context_fields, inline_headers, render
from coldforge.codegen.space import Config, Space
from coldforge.codegen.steps import EpilogueStep
from coldforge.codegen.target import Target, cpu_target_for, cuda_target

SM90 = cuda_target("sm_90")

SPACE = """\
template: toy
target: cuda
archs: [sm_90]
file: toy.cu.jinja
parameters:
  TILE_X: {values: [16, 32], help: output columns of a block}
  WEIGHTS: {values: [shared, direct], help: where weights are read}
derived: {THREADS: TILE_X * 8}
constraints:
  - {require: THREADS <= 128 or WEIGHTS == 'shared', reason: "{THREADS} threads with {WEIGHTS} weights"}
default: {TILE_X: 16, WEIGHTS: shared}
launch: {grid: "N * ceil_div(W_out, TILE_X)", block: THREADS, shared_bytes: 0, workspace_bytes: 4 * N}
"""
TEMPLATE = """\
{{ banner }}
constexpr int X = {{ config.TILE_X }}, T = {{ derived.THREADS }}, C = {{ problem.C_in }};
{% import "kernel.jinja" as kernel %}
{{ kernel.args_struct(args) }}
{{ kernel.epilogue_struct(epilogue, dtype, "__device__") }}
void {{ symbol }}();
"""


@pytest.fixture
def toy(tmp_path: Path) -> tuple[Catalogue, Path]:
    root = tmp_path / "templates"
    shutil.copytree(BUILTIN_ROOT, root, ignore=shutil.ignore_patterns("__pycache__", "space.*", "*.jinja"))
    (root / "conv2d" / "space.toy.cuda.yaml").write_text(SPACE)
    (root / "conv2d" / "toy.cu.jinja").write_text(TEMPLATE)
    return Catalogue((root,)), root / "conv2d" / "toy.cu.jinja"


def _space(cat: Catalogue) -> Space:
    return cat.space(cat.operator("conv2d_divide_leaky_relu"), SM90)


def test_feasible_check_and_launch(toy) -> None:
    cat, _ = toy
    space, problem = _space(cat), make_problem(cat.operator("conv2d_divide_leaky_relu"), "seed")
    feasible = space.feasible(problem, SM90)
    assert [c.key for c in feasible] == [
        "TILE_X=16,WEIGHTS=shared",
        "TILE_X=16,WEIGHTS=direct",
        "TILE_X=32,WEIGHTS=shared",
    ]
    config = space.config({"TILE_X": 32})
    launch = space.launch(problem, config, SM90)
    assert (launch.grid, launch.block, launch.workspace_bytes) == (128 * 4, 256, 512)
    with pytest.raises(InfeasibleConfig, match="256 threads with direct weights"):
        space.require(problem, space.config({"TILE_X": 32, "WEIGHTS": "direct"}), SM90)
    assert "supports sm_90, not sm_80" in (space.check(problem, config, cuda_target("sm_80")) or "")
    assert "is for cuda" in (space.check(problem, config, cpu_target_for("x86-64-v2")) or "")


def test_a_rule_that_relies_on_a_broken_one_is_left_out(toy) -> None:
    cat, template = toy
    guarded = 'constraints:\n  - {require: TILE_X > 16, reason: "small"}\n'
    guarded += '  - {require: 64 // (TILE_X - 16) > 5, reason: "never"}\n'
    file = template.with_name("space.toy.cuda.yaml")
    file.write_text(SPACE.replace("constraints:\n", guarded))
    cat = Catalogue((template.parents[1],))
    space, problem = _space(cat), make_problem(cat.operator("conv2d_divide_leaky_relu"), "seed")
    with pytest.raises(InfeasibleConfig) as caught:
        space.require(problem, space.default, SM90)
    assert str(caught.value) == "infeasible config of conv2d/toy/cuda: small (requires TILE_X > 16)"
    with pytest.raises(InfeasibleConfig, match=r"2 constraints are broken: \(1\) never .* \(2\) 256 threads"):
        space.require(problem, space.config({"TILE_X": 32, "WEIGHTS": "direct"}), SM90)


def test_unknown_parameter_and_value(toy) -> None:
    space = _space(toy[0])
    with pytest.raises(UnknownName, match="unknown parameter"):
        space.config({"TILE_Q": 1})
    with pytest.raises(InputError, match=r"TILE_X=17 is not a value .* \[16, 32\]"):
        space.config({"TILE_X": 17})


def test_config_is_a_value() -> None:
    one, two = Config({"A": 1, "B": "x"}), Config({"A": 1, "B": "x"})
    assert one == two == {"A": 1, "B": "x"}
    assert len({one, two}) == 1
    assert one.key == "A=1,B=x"


def test_render_is_pure_and_named_by_content(toy) -> None:
    cat, _ = toy
    space, problem = _space(cat), make_problem(cat.operator("conv2d_divide_leaky_relu"), "seed")
    source = render(space, problem, space.default, SM90)
    assert source == render(space, problem, space.default, SM90)
    assert source.name == f"conv2d_divide_leaky_relu_toy_fp32_16_shared_sm_90_{source.digest[:8]}"
    other = make_problem(cat.operator("conv2d_divide_leaky_relu"), "seed", {"N": 1, "H": 64})
    assert render(space, other, space.default, SM90).text == source.text
    for text in (
        "const float* x;",
        "void* workspace;",
        "long long H_out;",
        "double divisor;",
        "1.0f / (divisor",
        "X = 16, T = 128, C = 8",
    ):
        assert text in source.text


def test_missing_template_value_is_an_error(toy) -> None:
    cat, file = toy
    file.write_text("constexpr int X = {{ config.TILE_Z }};\n")
    space, problem = _space(cat), make_problem(cat.operator("conv2d_mish"), "seed")
    with pytest.raises(DeclarationError, match="TILE_Z"):
        render(space, problem, space.default, SM90)
    file.write_text("{{ nothing }}\n")
    with pytest.raises(DeclarationError, match="nothing"):
        render(space, problem, space.default, SM90)
    file.write_text("{% if %}\n")
    with pytest.raises(DeclarationError, match=r"toy\.cu\.jinja:1"):
        render(space, problem, space.default, SM90)


def test_headers_are_inlined_once() -> None:
    with pytest.raises(DeclarationError, match="no header"):
        inline_headers('#include "coldforge/none.cuh"\n', "t")
    with pytest.raises(DeclarationError, match="no header"):
        inline_headers('#include "coldforge/../kernel.jinja"\n', "t")
    text = inline_headers('#include "coldforge/types.cuh"\n#include "coldforge/types.cuh"\nint x;\n', "t")
    assert text.count('#line 1 "coldforge/types.cuh"') == 1
    assert '#line 2 "t"' in text
    assert '#include "coldforge' not in text


@pytest.mark.parametrize(
    ("value", "text"), [(2.0, "2.0f"), (-0.5, "(-0.5f)"), (0.01, "0.00999999978f"), (1e20, "1.00000002e+20f")]
)
def test_float_literal(value: float, text: str) -> None:
    assert float_literal(value) == text


def test_epilogue_statements() -> None:
    operator = catalogue().operator("conv2d_divide_leaky_relu")
    code = epilogue_code(operator, "cpp")
    assert code.scalars == ("divisor", "negative_slope")
    assert code.lines[0].startswith("v = v * scale_of_step_0 * reciprocal_of_step_0;")
    assert [name for name, _ in code.hoisted] == ["scale_of_step_0", "reciprocal_of_step_0"]
    assert all("divisor" in expression and "value" not in expression for _, expression in code.hoisted)
    assert "v * negative_slope" in code.lines[1]
    assert epilogue_code(operator, "cuda").hoisted == ()


def test_a_channel_vector_is_not_hoisted() -> None:
    steps = (EpilogueStep("div", (("value", "gain"),)), EpilogueStep("div", (("value", 3.0),)))
    operator = dataclasses.replace(
        catalogue().operator("conv2d_mish"), epilogue=steps, vectors=(ChannelVector("gain"),), digest="other"
    )
    code = epilogue_code(operator, "cpp")
    assert code.lines[0].startswith("v = v / float(gain[channel]);")
    assert [name for name, _ in code.hoisted] == ["scale_of_step_1", "reciprocal_of_step_1"]


def _builtin_spaces() -> list[Space]:
    cat = catalogue()
    found = {s.name: s for operator in cat.operators.values() for s in cat.spaces(operator)}
    return list(found.values())


def _founding(space: Space) -> str:
    """The first operator of its family at whose workload `seed` the space's default is legal."""
    operators = [o for o in catalogue().operators.values() if o.family.name == space.family]
    target = _target(space, space.archs[0])
    legal = (o for o in operators if space.check(make_problem(o, "seed"), space.default, target) is None)
    return next(legal).name


def _target(space: Space, arch: str) -> Target:
    return cuda_target(arch) if space.kind == "cuda" else cpu_target_for(arch)


@pytest.mark.parametrize("space", _builtin_spaces(), ids=lambda s: s.name)
def test_builtin_default_is_feasible_everywhere_it_claims(space: Space) -> None:
    operator = catalogue().operator(_founding(space))
    for arch in space.archs:
        for workload in ("seed", "small"):
            assert space.check(make_problem(operator, workload), space.default, _target(space, arch)) is None


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_cpu_template_refuses_what_it_cannot_compute(dtype: str) -> None:
    target = cpu_target_for("x86-64-v3")
    for operator in catalogue().operators.values():
        problem = make_problem(operator, "small", dtype=dtype)
        for space in catalogue().spaces(operator, "cpu"):
            assert "fp32 only" in str(space.check(problem, space.default, target))


@pytest.mark.parametrize("space", _builtin_spaces(), ids=lambda s: s.name)
def test_template_uses_exactly_the_context(space: Space) -> None:
    problem = make_problem(catalogue().operator(_founding(space)), "seed")
    tree = jinja2.Environment().parse(space.file.read_text())
    used = jinja2.meta.find_undeclared_variables(tree)
    offered = set(context_fields(space, problem, space.default, _target(space, space.archs[0])))
    assert used <= offered
    assert {"banner", "symbol", "args", "epilogue", "config"} <= used


@pytest.mark.parametrize("space", _builtin_spaces(), ids=lambda s: s.name)
def test_every_refusal_has_numbers(space: Space) -> None:
    problem = make_problem(catalogue().operator(_founding(space)), "seed")
    target = _target(space, space.archs[0])
    refused = set()
    for parameter in space.parameters:
        for value in parameter.values:
            for other in space.parameters:
                for second in other.values:
                    config = space.config({parameter.name: value, other.name: second})
                    refused.add(space.check(problem, config, target))
    reasons = refused - {None}
    assert reasons, "some pair of values must be illegal, or the constraints check nothing"
    assert all(any(ch.isdigit() for ch in str(reason)) for reason in reasons)


def test_a_fallback_stands_in_for_an_illegal_default() -> None:
    cat = catalogue()
    operator = cat.operator("conv2d_divide_leaky_relu")
    for template in ("tensor", "warpgroup"):
        space = cat.space(operator, SM90, template)
        assert space.default_for(make_problem(operator, "seed"), SM90) == space.default
        half = make_problem(operator, "seed", dtype="fp16")
        assert space.check(half, space.default, SM90) is not None
        assert space.default_for(half, SM90) == {**space.default, "PRODUCTS": 1}
        assert space.config({"TILE_Y": 2}, space.default_for(half, SM90))["PRODUCTS"] == 1
        assert space.default_for(make_problem(operator, "seed", {"groups": 2}), SM90) is None


def test_few_channels_a_group_have_a_default_on_cpu() -> None:
    cat = catalogue()
    operator = cat.operator("depthwise_conv2d_relu6")
    target = cpu_target_for("x86-64-v3")
    space = cat.space(operator, target)
    default = space.default_for(make_problem(operator, "small"), target)
    assert default is not None
    assert default["OC_PER_THREAD"] == 2
