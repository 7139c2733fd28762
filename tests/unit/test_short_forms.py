# SPDX-License-Identifier: Apache-2.0
"""Declarations of a user's own: short forms mean what the long ones say, and a mistake is one line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from coldforge.codegen.catalogue import BUILTIN_ROOT, Catalogue, catalogue
from coldforge.codegen.errors import ColdforgeError, DeclarationError, InputError
from coldforge.codegen.freeze.signature import Signature
from coldforge.codegen.freeze.wrapper import render_operator
from coldforge.codegen.problem import make_problem
from coldforge.codegen.reference_file import check_portable
from coldforge.codegen.render import render
from coldforge.codegen.target import archs_of, cpu_target_for
from coldforge.tuner.plan import Plan, Toolchain, plan_study
from coldforge.tuner.search import Point
from own_family import NAME, replace, write_family

LONG_FAMILY = """\
family: row_norm
summary: any text
sizes: [rows, columns]
tensors: {x: {shape: [rows, columns]}, weight: {shape: [columns]}}
output: {name: y, shape: [rows, columns]}
run_time: [rows]
abi_sizes: [rows]
flops: 0
reduction_length: columns
reference: row_norm
"""
LONG_SPACE = """\
template: row_norm
target: cpu
archs: [x86-64-v2, x86-64-v3, x86-64-v4, aarch64]
file: row_norm.cpp.jinja
parameters:
  LANES: {values: [8, 16], help: LANES}
  GRAIN: {values: [1, 8], help: GRAIN}
default: {LANES: 8, GRAIN: 1}
launch: {units: rows, grain: GRAIN}
"""
TARGET = cpu_target_for("x86-64-v3")


def _plan(root: Path) -> Plan:
    declared = Catalogue((BUILTIN_ROOT, root))
    problem = make_problem(declared.operator(NAME), "small")
    return plan_study(declared, problem, "fp32", TARGET, Toolchain("g++", (), "", "1"))


def _refused(root: Path) -> str:
    """What is said of the declarations under ``root``, once all of it was used."""
    with pytest.raises(ColdforgeError) as caught:
        _plan(root).inputs()
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_short_family_is_its_long_form(tmp_path: Path) -> None:
    short = Catalogue((write_family(tmp_path / "a"),))
    long = Catalogue((write_family(tmp_path / "b", family_yaml=LONG_FAMILY),))
    one, other = short.families[NAME], long.families[NAME]
    for name in ("sizes", "tensors", "output", "run_time", "abi_sizes", "channel_dim", "reference_module"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.digest == other.digest
    assert (one.flops.text, one.reduction_length.text) == ("0", "columns")
    assert short.operators[NAME].module == ""
    assert not long.operators, "without workloads a family is no operator"


def test_a_short_space_is_its_long_form(tmp_path: Path) -> None:
    first, second = write_family(tmp_path / "a"), write_family(tmp_path / "b", space_yaml=LONG_SPACE)
    (second / "space.yaml").rename(second / "space.any.name.yaml")
    assert _plan(first).inputs().spaces == _plan(second).inputs().spaces
    assert _plan(first).spaces[NAME].archs == archs_of("cpu")


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("tensors: {x: [n]}\noutput: {y: [n]}", {"sizes": ("n",), "channel_dim": None, "length": "1"}),
        ("tensors: {x: [n]}\noutput: {y: [1]}", {"run_time": ("n",), "channel_dim": None, "length": "n"}),
        (
            "tensors: {x: [a, b, 2 * c]}\noutput: {y: [a, c]}",
            {"sizes": ("a", "b", "c"), "length": "b * (2 * c)"},
        ),
        ("tensors: {x: [a, 1]}\noutput: {y: [a, 1]}", {"sizes": ("a",), "length": "1"}),
        ("tensors: {x: [3]}\noutput: {y: [3]}", {"sizes": (), "run_time": (), "abi_sizes": ()}),
        (
            "tensors: {x: [n, w]}\noutput: {y: [n, out]}\n"
            "derived: {out: w // 2, most: out + 1, k: n * 2, l: k}\n"
            "attributes: {stride: {default: 1, pair: true}}",
            {"sizes": ("n", "w"), "abi_sizes": ("n", "k", "l")},
        ),
        ("tensors: {x: [n, w]}\noutput: {y: [n, w]}\nrun_time: []", {"run_time": (), "abi_sizes": ()}),
        ("tensors: {x: [n, w]}\noutput: {y: [n, w]}\nchannel_dim: null", {"channel_dim": None}),
    ],
)
def test_family_defaults(tmp_path: Path, family: str, expected: dict[str, object]) -> None:
    attributes = ", stride" if "stride" in family else ""
    place = write_family(
        tmp_path,
        family_yaml=f"{family}\nreference: reference:f\n",
        reference_py=f"def f(x{attributes}):\n    return x\n",
    )
    found = Catalogue((place,)).families[NAME]
    for name, value in expected.items():
        assert (found.reduction_length.text if name == "length" else getattr(found, name)) == value, name


def test_roots_of_both_layouts(tmp_path: Path) -> None:
    place = write_family(tmp_path)
    assert set(catalogue(place).operators) == set(catalogue(tmp_path).operators)
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "rows_relu.yaml").write_text(
        "operator: rows_relu\nfamily: row_norm\nsummary: s\nepilogue: [relu]\n"
        "workloads: {small: {rows: 1, columns: 2}}"
    )
    own = Catalogue((BUILTIN_ROOT, tmp_path))
    assert {NAME, "rows_relu"} <= set(own.operators)
    assert not own.is_builtin(own.operator(NAME))
    assert own.is_builtin(own.operator("conv2d_mish"))


def test_roots_that_declare_nothing_or_a_name_twice(tmp_path: Path) -> None:
    first, second = write_family(tmp_path / "a"), write_family(tmp_path / "b")
    with pytest.raises(
        DeclarationError, match=rf"'row_norm' is declared twice: in {first}.* and in {second}"
    ):
        catalogue(first, second).families  # noqa: B018
    assert catalogue(first, first).families[NAME].folder == first, "one folder given twice is one"
    with pytest.raises(DeclarationError, match="declares nothing"):
        catalogue(tmp_path)
    with pytest.raises(DeclarationError, match="not a folder"):
        catalogue(first / "family.yaml")
    with pytest.raises(DeclarationError, match="cannot be read: File name too long"):
        catalogue(tmp_path / ("a" * 5000))


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("family.yaml", "tensors:", "tensor:", "family.yaml: missing key 'tensors'"),
        ("family.yaml", "x: [rows, columns], weight", "x: rows, weight", "tensors.x"),
        ("family.yaml", "{x: [rows, columns], weight: [columns]}", "{}", "tensors: at least one"),
        ("family.yaml", "{x: [rows, columns], weight: [columns]}", "[x]", "family.yaml: tensors"),
        ("family.yaml", "weight: [columns]", "weight: []", "tensors.weight: shape"),
        ("family.yaml", "weight: [columns]", "weight: ['columns +']", "malformed expression"),
        ("family.yaml", "weight: [columns]", "weight: [lambda]", "malformed expression"),
        ("family.yaml", "weight: [columns]", "class: [columns]", "'class' is already taken"),
        ("family.yaml", "weight: [columns]", "columns: [columns]", "'columns' is already taken"),
        ("family.yaml", "{y: [rows, columns]}", "{y: [rows], z: [rows]}", "output: expected one output"),
        ("family.yaml", "{y: [rows, columns]}", "{y: [rows, width]}", "unknown name 'width'"),
        ("family.yaml", "{y: [rows, columns]}", "[rows, columns]", "output: expected a mapping"),
        ("family.yaml", "{y: [rows, columns]}", "{y: rows}", "output: shape"),
        ("family.yaml", "reference:row_norm", "a:b:c", "must be module:function"),
        ("family.yaml", "reference:row_norm", "../x:f", "must be module:function"),
        ("family.yaml", "reference:row_norm", "other:row_norm", "cannot read"),
        ("family.yaml", "reference:row_norm", "reference:norm", "defines no function 'norm'"),
        ("family.yaml", "{rows: 64, columns: 96}", "{rows: 64}", "gives no columns"),
        ("family.yaml", "{rows: 64, columns: 96}", "{rows: 64, depth: 2}", "unknown key 'depth'"),
        ("family.yaml", "{rows: 64, columns: 96}", "{rows: 64, columns: 0}", "columns=0"),
        ("family.yaml", "{small: {rows: 64, columns: 96}}", "small", "workloads"),
        ("family.yaml", "reference:row_norm", "reference:row_norm\nfamily: reductions", "already taken"),
        *(
            (
                "family.yaml",
                "reference:row_norm",
                f"reference:row_norm\nfamily: {name}",
                f"'{name}' is already taken",
            )
            for name in ("linear", "int", "super", "max")
        ),
        ("family.yaml", "tensors:", "sizes:\ntensors:", "family.yaml: sizes"),
        ("family.yaml", "tensors:", 'summary: "\\0"\ntensors:', "expected one line of text"),
        ("family.yaml", "reference:row_norm", "'" + 5000 * "-" + "'", "at most 1000"),
        ("reference.py", "def row_norm(x, weight)", "def row_norm(weight, x)", "arguments (x, weight)"),
        ("reference.py", "def row_norm(x, weight)", "def row_norm(x)", "arguments (x, weight)"),
        ("reference.py", "def row_norm(x, weight)", "def row_norm(x, weight, eps)", "arguments (x, weight)"),
        ("reference.py", "def row_norm(x, weight)", "def row_norm(x, weight", "malformed Python"),
        ("space.yaml", "[8, 16]", "[]", "parameters.LANES"),
        ("space.yaml", "[8, 16]", "8", "parameters.LANES"),
        ("space.yaml", "[8, 16]", "[8, 8]", "stands twice"),
        ("space.yaml", "GRAIN: [", "rows: [", "'rows' is already taken"),
        ("space.yaml", "GRAIN: [", "y: [", "'y' is already taken"),
        ("space.yaml", "units: rows", "units: lines", "launch.units: 'lines' reads unknown name 'lines'"),
        ("space.yaml", "units: rows,", "", "missing key 'units'"),
        ("space.yaml", "launch:", "target: tpu\nlaunch:", "must be cuda or cpu"),
        ("space.yaml", "launch:", "target: cuda\nlaunch:", "no *.cu.jinja"),
        ("space.yaml", "launch:", "file: other.cpp.jinja\nlaunch:", "does not stand beside it"),
        ("space.yaml", "launch:", "file: mean.hpp\nlaunch:", "tells no target"),
        (
            "space.yaml",
            "launch:",
            "derived: {A: B + 1}\nlaunch:",
            "derived.A: 'B + 1' reads unknown name 'B'",
        ),
        ("space.yaml", "launch:", "default: {LANES: 8}\nlaunch:", "missing key 'GRAIN'"),
        ("space.yaml", "launch:", "constraints: [LANES > 8]\nlaunch:", "constraints"),
        ("row_norm.cpp.jinja", "mean.hpp", "main.hpp", "no header 'main.hpp' beside the template"),
        ("row_norm.cpp.jinja", "mean.hpp", "../row_norm/mean.hpp", "no header"),
        ("row_norm.cpp.jinja", "mean.hpp", "coldforge/none.hpp", "under templates/include"),
        ("row_norm.cpp.jinja", "kernel.cpu_units", "kernel.gpu_units", "row_norm.cpp.jinja"),
        ("row_norm.cpp.jinja", "{% endcall %}", "", "row_norm.cpp.jinja:"),
        ("row_norm.cpp.jinja", "LANES", "{{ LANES }}", "'LANES' is undefined"),
        (
            "row_norm.cpp.jinja",
            "{% endcall %}",
            "{% include 'row_norm.cpp.jinja' %}{% endcall %}",
            "recursion",
        ),
        ("row_norm.cpp.jinja", "LANES", "{{ '%d' % 'a' }}", "row_norm.cpp.jinja"),
    ],
)
def test_one_line_names_file_and_part(tmp_path: Path, file: str, old: str, new: str, expected: str) -> None:
    place = write_family(tmp_path)
    replace(place / file, old, new)
    said = _refused(place)
    assert expected in said
    assert len(said) < 500
    assert file in said or NAME in said or "reference.py" in said


def test_two_spaces_of_one_template(tmp_path: Path) -> None:
    place = write_family(tmp_path)
    (place / "space.more.yaml").write_text((place / "space.yaml").read_text())
    assert "another space is for template row_norm on cpu too" in _refused(place)
    (place / "space.more.yaml").write_text((place / "space.yaml").read_text() + "template: second\n")
    assert set(_plan(place).spaces) == {"row_norm", "second"}


def test_two_templates_need_names(tmp_path: Path) -> None:
    place = write_family(tmp_path)
    (place / "other.cpp.jinja").write_text("")
    assert "row_norm.cpp.jinja; add file: NAME" in _refused(place)


def test_a_folder_that_cannot_name_a_family(tmp_path: Path) -> None:
    place = write_family(tmp_path).rename(tmp_path / "row-norm")
    assert "add family: NAME" in _refused(place)
    (place / "family.yaml").write_text((place / "family.yaml").read_text() + "family: row_norm\n")
    assert _plan(place).problem.operator.name == NAME


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("family.yaml", "weight: [columns]", "weight: [columns + 0]"),
        ("family.yaml", "workloads:", "reduction_length: 1\nworkloads:"),
        ("reference.py", "eps=1e-6", "eps=1e-5"),
        ("reference.py", "import torch", "import torch  # a comment"),
        ("row_norm.cpp.jinja", "{% endcall %}", "{# a comment #}{% endcall %}"),
        ("mean.hpp", "static inline", "// a comment\nstatic inline"),
        ("space.yaml", "[8, 16]", "[8, 16, 32]"),
        ("space.yaml", "grain: GRAIN", "grain: GRAIN + 0"),
    ],
)
def test_a_change_makes_a_new_study(tmp_path: Path, file: str, old: str, new: str) -> None:
    place = write_family(tmp_path)
    before = _plan(place).inputs().name
    assert _plan(place).inputs().name == before
    replace(place / file, old, new)
    assert _plan(place).inputs().name != before


@pytest.mark.parametrize("file", ["row_norm.cpp.jinja", "mean.hpp"])
def test_a_change_on_the_way_ends_the_run(tmp_path: Path, file: str) -> None:
    place = write_family(tmp_path)
    plan = _plan(place)
    point = Point(NAME, dict(plan.spaces[NAME].default))
    plan.inputs()
    assert plan.source(point).text
    (place / file).write_text((place / file).read_text() + "\n")
    with pytest.raises(InputError, match=f"row_norm/{file} was changed while it was tuned"):
        plan.source(point)
    assert _plan(place).source(point).text


def test_what_says_nothing_keeps_the_study(tmp_path: Path) -> None:
    place = write_family(tmp_path)
    before = _plan(place).inputs().name
    replace(place / "family.yaml", "workloads:", "# a comment\nsummary: some words\nworkloads:")
    replace(place / "space.yaml", "parameters", "# a comment\nparameters")
    (place / "notes.txt").write_text("not part of it")
    assert _plan(place).inputs().name == before


def test_an_included_template_counts(tmp_path: Path) -> None:
    place = write_family(tmp_path)
    replace(place / "row_norm.cpp.jinja", "{% endcall %}", "{% include 'tail.' ~ 'jinja' %}{% endcall %}")
    (place / "tail.jinja").write_text("// one\n")
    before = _plan(place).inputs().name
    (place / "tail.jinja").write_text("// two\n")
    assert _plan(place).inputs().name != before


def test_the_source_is_complete_and_knows_no_place(tmp_path: Path) -> None:
    plan = _plan(write_family(tmp_path))
    space = plan.spaces[NAME]
    text = render(space, plan.problem, space.default, TARGET).text
    assert '#line 1 "mean.hpp"' in text
    assert '#include "' not in text
    assert str(tmp_path) not in text
    assert text.count("static inline float mean") == 1


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("import math, torch.nn.functional as F", ""),
        ("from __future__ import annotations", ""),
        ("import helpers", "imports 'helpers'"),
        ("from . import helpers", "imports '.'"),
        ("    import numpy as np", "imports 'numpy'"),
        ("from coldforge.codegen import expr", "imports 'coldforge.codegen'"),
    ],
)
def test_what_a_frozen_reference_may_import(tmp_path: Path, line: str, refused: str) -> None:
    path = tmp_path / "reference.py"
    path.write_text(f"if True:\n{line}\n" if line.startswith(" ") else f"{line}\n")
    if refused:
        with pytest.raises(InputError, match="cannot be frozen") as caught:
            check_portable(path)
        assert refused in str(caught.value)
    else:
        check_portable(path)


def test_a_summary_cannot_leave_its_docstring(tmp_path: Path) -> None:
    summary = 'it says "x"""; import os; """ and \\'
    place = write_family(tmp_path)
    replace(place / "family.yaml", "tensors:", f"summary: '{summary}'\ntensors:")
    module = ast.parse(render_operator(Signature(Catalogue((place,)).operators[NAME])))
    assert ast.get_docstring(module) == f"{summary}."
    assert not [
        n for node in module.body if isinstance(node, ast.Import) for n in node.names if n.name == "os"
    ]


def test_frozen_entries_still_belong_to_their_operator() -> None:
    # Frozen kernels are keyed by this digest: another one would take them out of use.
    digest = catalogue().operator("conv2d_divide_leaky_relu").digest
    assert digest == "79ead48bb7a81113536bc491e337c276e2b0ef993c2336286e53902c3b4c6e1a"
