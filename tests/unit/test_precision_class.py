# SPDX-License-Identifier: Apache-2.0
"""The error class that is asked for: what knows it, what follows from it, and what must not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import UnknownName
from coldforge.codegen.expr import parse
from coldforge.codegen.freeze.signature import Signature
from coldforge.codegen.freeze.table import launch_code
from coldforge.codegen.freeze.winner import Winner
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import context_fields, render
from coldforge.codegen.space_file import load_space
from coldforge.codegen.target import cuda_target
from coldforge.tuner.check.instantiations import subjects
from coldforge.tuner.plan import Plan, Toolchain, plan_study

SM90 = cuda_target("sm_90")
OPERATOR = catalogue().operator("conv2d_divide_leaky_relu")
TENSOR = catalogue().space(OPERATOR, SM90, "tensor")
PROBLEM = make_problem(OPERATOR, "seed")


def _plan(precision: str, dtype: str = "fp32") -> Plan:
    toolchain = Toolchain("nvrtc 13.0", (), "580", "1")
    return plan_study(
        catalogue(), make_problem(OPERATOR, "seed", dtype=dtype), precision, SM90, toolchain, "tensor"
    )


def test_a_problem_carries_the_class_and_has_the_dtypes_own_without_one() -> None:
    assert PROBLEM.precision == "fp32"
    assert make_problem(OPERATOR, "seed", dtype="bf16").precision == "bf16"
    asked = PROBLEM.in_class("tf32")
    assert asked != PROBLEM
    assert asked.with_dims(N=3).precision == "tf32"
    assert catalogue().problem_from_dict(asked.to_dict()) == asked
    before = {name: value for name, value in PROBLEM.to_dict().items() if name != "precision"}
    assert catalogue().problem_from_dict(before) == PROBLEM
    with pytest.raises(UnknownName, match="precision"):
        PROBLEM.in_class("fp8")


def test_the_class_is_no_part_of_what_is_compiled() -> None:
    asked = PROBLEM.in_class("tf32")
    assert asked.specialisation == PROBLEM.specialisation
    assert asked.constants == PROBLEM.constants
    config = TENSOR.default
    assert render(TENSOR, asked, config, SM90) == render(TENSOR, PROBLEM, config, SM90)


def test_a_derived_value_that_reads_the_class_stays_out_of_the_source() -> None:
    derived = {
        **TENSOR.derived,
        "COARSE": parse("1 if precision == 'tf32' else 0"),
        "TWICE": parse("2 * COARSE"),
    }
    space = dataclasses.replace(TENSOR, derived=derived)
    assert space.environment(PROBLEM.in_class("tf32"), space.default, SM90)["TWICE"] == 2
    shown = context_fields(space, PROBLEM, space.default, SM90)["derived"]
    assert "PARTS" in shown
    assert not {"COARSE", "TWICE"} & set(shown)


def test_one_product_is_legal_where_a_weaker_class_is_asked() -> None:
    single = TENSOR.config({"PRODUCTS": 1})
    reason = TENSOR.check(PROBLEM, single, SM90)
    assert "PRODUCTS=1 meets the error class tf32, and fp32 is asked" in str(reason)
    for precision in ("tf32", "bf16"):
        assert TENSOR.check(PROBLEM.in_class(precision), single, SM90) is None
    half = make_problem(OPERATOR, "seed", dtype="fp16")
    assert TENSOR.check(half, single, SM90) is None
    assert "one part" in str(TENSOR.check(half, TENSOR.config({"PRODUCTS": 3}), SM90))


def test_a_stricter_config_stays_legal_in_a_weaker_class() -> None:
    strict = TENSOR.feasible(PROBLEM, SM90)
    weaker = TENSOR.feasible(PROBLEM.in_class("tf32"), SM90)
    assert set(strict) < set(weaker)
    assert {config["PRODUCTS"] for config in strict} == {3}
    assert {config["PRODUCTS"] for config in set(weaker) - set(strict)} == {1}


def test_a_study_holds_the_class_and_searches_its_space() -> None:
    plans = {precision: _plan(precision) for precision in ("fp32", "tf32")}
    names = {precision: plan.inputs().name for precision, plan in plans.items()}
    assert "-tf32-" in names["tf32"]
    assert names["fp32"].rpartition("-")[2] != names["tf32"].rpartition("-")[2]
    assert plans["tf32"].inputs().problem["precision"] == "tf32"
    chosen = {p: {point.config["PRODUCTS"] for point in plan.feasible().points} for p, plan in plans.items()}
    assert chosen == {"fp32": {3}, "tf32": {1, 3}}
    assert _plan("fp16", "fp16").problem.precision == "fp16"


def test_a_ledger_is_about_the_configs_of_every_class() -> None:
    (subject,) = subjects(catalogue(), OPERATOR, "tensor")
    assert [problem.precision for problem in subject.classes] == ["fp32", "tf32"]
    classes = {int(c["PRODUCTS"]): subject.problem_of(c).precision for c in subject.configs}
    assert classes == {3: "fp32", 1: "tf32"}
    (direct,) = subjects(catalogue(), OPERATOR, "direct")
    assert [problem.precision for problem in direct.classes] == ["fp32"]


def test_an_expression_that_reads_the_class_is_declared_as_any_other(tmp_path: Path) -> None:
    for name in ("space.tensor.cuda.yaml", "tensor.cu.jinja"):
        (tmp_path / name).write_bytes((TENSOR.file.parent / name).read_bytes())
    names = [*OPERATOR.family.value_names, *(t.name for t in OPERATOR.family.tensors)]
    loaded = load_space(tmp_path / "space.tensor.cuda.yaml", OPERATOR.family.name, names)
    assert loaded.reads("precision")


def test_a_frozen_launch_knows_the_class(fake_cuda_winner: Callable[..., Winner]) -> None:
    launch = {"grid": "N * COARSE", "block": "32", "shared_bytes": "0"}
    derived = {"COARSE": "2 if precision == 'tf32' else 1"}
    winner = fake_cuda_winner(precision="tf32", launch=launch, derived=derived)
    _, code = launch_code(Signature(catalogue().operator(winner.operator)), winner)
    assert dict(code)["grid"] == "(N * INT64_C(2))"
    assert "_fp32_tf32_sm_90_" in winner.name
    assert "tf32" not in fake_cuda_winner().name
    assert winner.key != fake_cuda_winner(launch=launch, derived=derived).key
