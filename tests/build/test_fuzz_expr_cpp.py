# SPDX-License-Identifier: Apache-2.0
"""Random expressions mean the same in C++ as in the tuner: a launch grid is written once."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from coldforge.codegen.errors import DeclarationError
from coldforge.codegen.expr import MAX_MAGNITUDE, parse

NAMES = ("A", "B", "C", "Z")
VALUES = (0, 1, -1, 2, 3, 7, -7, 12, 1000, 2**31, -(2**31), 2**40, MAX_MAGNITUDE, -MAX_MAGNITUDE)
COUNT = 400


def _text(random_: random.Random, depth: int) -> str:
    """An expression that C++ can mean: no chained comparison, no word, no quotient that is no integer."""
    if depth == 0 or random_.random() < 0.15:
        return random_.choice([*NAMES, str(random_.choice(VALUES[:6])), str(random_.randrange(50))])

    def part() -> str:
        return _text(random_, depth - 1)

    kind = random_.randrange(6)
    if kind == 0:
        return f"({random_.choice(['-', 'not '])}{part()})"
    if kind == 1:
        return f"({part()} if {part()} else {part()})"
    if kind == 2:
        function = random_.choice(["ceil_div", "round_up", "min", "max"])
        return f"{function}({part()}, {part()})"
    if kind == 3:
        return f"abs({part()})"
    signs = ["+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=", "and", "or"]
    return f"({part()} {random_.choice(signs)} {part()})"


def _cases() -> list[tuple[str, dict[str, int], int]]:
    """Expressions that have a value: (text, the names' values, the value)."""
    random_, cases = random.Random(20), []
    while len(cases) < COUNT:
        text = _text(random_, random_.randrange(1, 5))
        env = {name: random_.choice(VALUES) for name in NAMES}
        try:
            value = parse(text).evaluate(env)
        except DeclarationError:  # a division by zero, or more than 64 bits on the way
            continue
        cases.append((text, env, int(value)))
    return cases


@pytest.mark.build
def test_random_expressions_mean_the_same_in_cpp(tmp_path: Path) -> None:
    cases = _cases()
    lines = []
    for text, env, _ in cases:
        names = " ".join(f"volatile int64_t {name} = {value};" for name, value in env.items())
        lines.append(f'  {{ {names} std::printf("%lld\\n", (long long)({parse(text).to_cpp()})); }}\n')
    header = Path(__file__).parents[2] / "generated" / "runtime" / "native" / "expressions.h"
    source, program = tmp_path / "expr.cpp", tmp_path / "expr"
    source.write_text(
        f'#include <cstdint>\n#include <cstdio>\n#include "{header}"\nint main() {{\n{"".join(lines)}}}\n'
    )
    # What wraps or divides in an undefined way ends the program.
    checks = ["-fsanitize=undefined", "-fno-sanitize-recover=undefined"]
    subprocess.run(["g++", "-std=c++17", "-w", "-O0", *checks, "-o", str(program), str(source)], check=True)
    run = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-1000:]
    found = [int(line) for line in run.stdout.split()]
    wrong = [
        (text, env, value, got) for (text, env, value), got in zip(cases, found, strict=True) if value != got
    ]
    assert wrong == []
