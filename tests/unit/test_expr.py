# SPDX-License-Identifier: Apache-2.0
"""The expression language: what it computes, what it refuses, and that C++ means the same."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from coldforge.codegen.errors import DeclarationError
from coldforge.codegen.expr import evaluate_int, parse
from hypothesis import given
from hypothesis import strategies as st

ENV = {"A": 7, "B": 3, "W": "shared", "Z": 0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A + B * 2", 13),
        ("(A - B) // 2", 2),
        ("-A // B", -3),
        ("-A % B", 2),
        ("ceil_div(A, B)", 3),
        ("round_up(A, 4)", 8),
        ("min(A, B, 5)", 3),
        ("max(A, B, 9)", 9),
        ("abs(B - A)", 4),
        ("A if B > 5 else B", 3),
        ("1 <= B <= A", True),
        ("W == 'shared' and not Z", True),
        ("W in ('global', 'shared')", True),
        ("A not in (1, 2, 3)", True),
        ("Z or B", True),
    ],
)
def test_value(text: str, value: object) -> None:
    assert parse(text).evaluate(ENV) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "A +",
        "__import__('os')",
        "A.__class__",
        "(lambda: 1)()",
        "[x for x in (1, 2)]",
        "A[0]",
        "open('x')",
        "min(A)",
        "ceil_div(A, B, 1)",
        "min(*A)",
        "min(A, B, key=A)",
        "f'{A}'",
        "A := 3",
        "2 ** 3",
        "A @ B",
        "b'x'",
        "None",
        "1" * 5000,
        "(" * 500 + "A" + ")" * 500,
        "A # a comment",
        '"a" == "b"',
        "(A\n+ 1)",
        "'\\x41' == 'A'",
    ],
)
def test_refused_when_parsed(text: str) -> None:
    with pytest.raises(DeclarationError):
        parse(text)


@pytest.mark.parametrize(
    "text", ["missing + 1", "A // Z", "A % Z", "W + 1", "A < W", "9000000000 * 9000000000", "ceil_div(A, Z)"]
)
def test_refused_when_evaluated(text: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse(text).evaluate(ENV)
    assert text in str(caught.value)


def test_integer_wanted() -> None:
    with pytest.raises(DeclarationError, match="expected an integer"):
        evaluate_int("A / B", ENV)


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(DeclarationError):
        parsed = parse(text)
        assert isinstance(parsed.evaluate(dict.fromkeys(parsed.names, 1)), int | float | str)


@pytest.mark.build
def test_cpp_means_the_same(tmp_path: Path) -> None:
    texts = ["(A - B) // 2", "-A // B", "-A % B", "ceil_div(-A, B)", "round_up(A, 4)", "min(A, B, 5)"]
    texts += ["max(A, 9, B)", "abs(B - A)", "A if B > 5 and A > 1 else B * 2", "(A >= 7) + (not Z)"]
    lines = "".join(f'  std::printf("%lld\\n", (long long)({parse(t).to_cpp()}));\n' for t in texts)
    header = Path(__file__).parents[2] / "generated" / "runtime" / "native" / "expressions.h"
    source = tmp_path / "expr.cpp"
    source.write_text(
        f'#include <cstdint>\n#include <cstdio>\n#include "{header}"\n'
        f"int main() {{ int64_t A = 7, B = 3, Z = 0;\n{lines}}}\n"
    )
    subprocess.run(["g++", "-std=c++17", "-o", str(tmp_path / "expr"), str(source)], check=True)
    run = subprocess.run([str(tmp_path / "expr")], capture_output=True, text=True, check=True)
    assert [int(line) for line in run.stdout.split()] == [int(parse(t).evaluate(ENV)) for t in texts]
