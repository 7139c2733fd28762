# SPDX-License-Identifier: Apache-2.0
"""Expressions of every shape, legal and hostile: a value or a DeclarationError, and nothing else."""

from __future__ import annotations

import ast
import contextlib
import warnings
from typing import Any

import pytest
from coldforge.codegen.errors import DeclarationError
from coldforge.codegen.expr import MAX_MAGNITUDE, MAX_TEXT, ceil_div, parse, round_up
from fuzz import HOSTILE_TEXTS, profile
from hypothesis import example, given
from hypothesis import strategies as st

NAMES = ("A", "B", "C", "Z")
numbers = st.integers(-100, 100) | st.sampled_from([0, 1, -1, 2**31, 2**62, MAX_MAGNITUDE, -MAX_MAGNITUDE])
environments = st.fixed_dictionaries(dict.fromkeys(NAMES, numbers))

leaves = st.sampled_from(NAMES) | st.integers(0, 40).map(str)
HOSTILE_LEAVES = (
    "missing",
    "'x'",
    "1.5",
    "1e999",
    "True",
    "None",
    "...",
    "b'x'",
    "1j",
    "A.__class__",
    "A.real",
    "A[0]",
    "(A,)",
    "[A]",
    "{A}",
    "{A: B}",
    "(lambda: A)()",
    "[x for x in (A,)]",
    "(x for x in (A,))",
    "(x := A)",
    "f'{A}'",
    "min(*A)",
    "min(A, key=B)",
    "open('x')",
    "exec('x')",
    "__import__('os')",
    "(yield)",
    "await A",
    "9" * 100,
    "0x10",
    "0o7",
    "1_000",
    "é",
    "\uff45xec",
    "~A",
    "+A",
    "A @ B",
    "A << B",
    "A | B",
    "A is B",
    "A in B",
    "A in ()",
    "A in (B, 'x')",
    "1if A else 2",
    "",
    " ",
)


def _grown(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Larger expressions out of smaller ones."""
    binary = st.sampled_from(["+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=", "and", "or"])
    return st.one_of(
        st.tuples(parts, binary, parts).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["-", "not "]), parts).map(lambda t: f"({t[0]}{t[1]})"),
        st.tuples(parts, parts, parts).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(st.sampled_from(["ceil_div", "round_up", "min", "max"]), parts, parts).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        parts.map(lambda p: f"abs({p})"),
    )


legal = st.recursive(leaves, _grown, max_leaves=12)
hostile = st.recursive(leaves | st.sampled_from(HOSTILE_LEAVES), _grown, max_leaves=8)


def _meaning(text: str, env: dict[str, int]) -> object:
    """The value by Python itself, of an expression that the grammar above makes; what goes wrong as its
    kind. An `and` and an `or` are truth values, as in C++."""
    functions = {"min": min, "max": max, "abs": abs, "ceil_div": ceil_div, "round_up": round_up}
    tree = ast.parse(text, mode="eval")

    class Truth(ast.NodeTransformer):
        def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
            self.generic_visit(node)
            return ast.Call(ast.Name("bool", ast.Load()), [node], [])

    whole = ast.fix_missing_locations(Truth().visit(tree))
    with warnings.catch_warnings(action="ignore"):  # of `1 if 2 else 3` and the like
        code = compile(whole, "expression", "eval")
    try:
        return eval(code, {"__builtins__": {}, "bool": bool, **functions}, dict(env))
    except ZeroDivisionError:
        return ZeroDivisionError


def _outcome(text: str, env: dict[str, int]) -> tuple[Any, str]:
    """(The value, "") or (None, why there is none). A warning of Python's would be a second line."""
    with warnings.catch_warnings(action="error"):
        try:
            expression = parse(text)
            return expression.evaluate(env), ""
        except DeclarationError as error:
            return None, str(error)


@profile(200)
@given(text=legal, env=environments)
@example("(A // Z)", {"A": 1, "B": 1, "C": 1, "Z": 0})
@example("((-A) % B)", {"A": 7, "B": 3, "C": 1, "Z": 0})
@example("(A and B)", {"A": 7, "B": 3, "C": 1, "Z": 0})
def test_a_legal_expression_has_pythons_value(text: str, env: dict[str, int]) -> None:
    expected = _meaning(text, env)
    value, why = _outcome(text, env)
    if why:  # a value past 64 bits on the way is refused too, though the result may fit
        assert expected is ZeroDivisionError or "64 bits" in why
        return
    assert value == expected
    assert abs(value) <= MAX_MAGNITUDE
    assert "\n" not in parse(text).to_cpp()


@profile(200)
@given(text=hostile, env=environments)
def test_any_expression_has_a_value_or_is_refused(text: str, env: dict[str, int]) -> None:
    value, why = _outcome(text, env)
    assert why or isinstance(value, int | float | str)
    assert "\n" not in why
    assert len(why) < 1000
    if not why:
        with contextlib.suppress(DeclarationError):
            assert "\n" not in parse(text).to_cpp()


@profile(150)
@given(
    pieces=st.lists(
        st.sampled_from(
            [*HOSTILE_LEAVES, *"()[]{},.:;=!<>+-*/%&|^~@#'\"\\\0\n\t ", "if", "else", "in", "not"]
        ),
        max_size=25,
    )
)
def test_any_row_of_signs(pieces: list[str]) -> None:
    with warnings.catch_warnings(action="error"):
        try:
            expression = parse("".join(pieces))
            expression.evaluate(dict.fromkeys(expression.names, 3))
        except DeclarationError:
            return


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=lambda text: repr(text[:20]))
def test_hostile_texts(text: str) -> None:
    with warnings.catch_warnings(action="error"):
        try:
            expression = parse(text)
            expression.evaluate(dict.fromkeys(expression.names, 3))
            expression.to_cpp()
        except DeclarationError:
            return
    assert len(text) <= MAX_TEXT


# Python's own ways of writing numbers, and what an expression may be though nothing says that it is right.
_LEGAL = ("missing", "'x'", "1.5", "True", "A in ()", "A in (B, 'x')", "0x10", "0o7", "1_000")


@pytest.mark.parametrize("text", _LEGAL)
def test_legal(text: str) -> None:
    assert parse(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        *(text for text in HOSTILE_LEAVES if text not in _LEGAL),
        "A ** 2",
        "2 ** (2 ** 40)",
        "1 << 10000",
        "(" * 90 + "A" + ")" * 90 + " ** 2",
        "not " * 101 + "A",
        "A" + " + A" * 101,
        "-" * 101 + "A",
        "A + \0",
        "A\n+ 1",
        "A if B",
        "A # B",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(DeclarationError):
        parse(text)


@pytest.mark.parametrize("depth", [99, 95])
def test_the_deepest_expressions_work_everywhere(depth: int) -> None:
    """Also where the stack is deep already, as in a test or under a command."""

    def at(frames: int) -> None:
        if frames:
            at(frames - 1)
            return
        for text in ("not " * depth + "A", "A" + " + A" * depth):
            expression = parse(text)
            assert expression.evaluate({"A": 1}) == eval(text, {"A": 1})
            assert expression.to_cpp()

    at(300)
