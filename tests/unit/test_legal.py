# SPDX-License-Identifier: Apache-2.0
"""Enumerating a space: the same configs as asking each combination, and few expressions worked out for it."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import DeclarationError
from coldforge.codegen.expr import Expr, Value, parse
from coldforge.codegen.legal import legal_values
from coldforge.codegen.problem import make_problem
from coldforge.codegen.target import cuda_target

PARAMETERS = {"A": (1, 2, 3), "B": ("x", "y"), "C": (0, 1, 4), "D": (2, 5)}
GIVEN = {"size": 6}
TERMS = ("A", "C", "D", "size", "P", "Q")
TESTS = ("{} < {}", "{} + {} != 7", "{} * {} <= 12", "{} % 2 == 0 or B == 'x'", "{} > 1 or {} >= 4")


def _drawn(rng: random.Random) -> tuple[dict[str, Expr], list[Expr]]:
    """Derived values P, of parameters, and Q, of P too; and a few rules of all of these."""
    p = f"{rng.choice(TERMS[:4])} * {rng.choice(TERMS[:4])}"
    q = f"{rng.choice(TERMS[:5])} + {rng.choice(TERMS[:5])}"
    rules = [parse(rng.choice(TESTS).format(*rng.sample(TERMS, 2))) for _ in range(rng.randrange(1, 5))]
    return {"P": parse(p), "Q": parse(q)}, rules


@pytest.mark.parametrize("seed", range(40))
def test_it_finds_what_asking_each_combination_finds(seed: int) -> None:
    derived, rules = _drawn(random.Random(seed))

    def legal(combination: tuple[int | str, ...]) -> bool:
        env: dict[str, Value] = {**GIVEN, **dict(zip(PARAMETERS, combination, strict=True))}
        for name, expression in derived.items():
            env[name] = expression.evaluate(env)
        return all(rule.evaluate(env) for rule in rules)

    every = itertools.product(*PARAMETERS.values())
    expected = [dict(zip(PARAMETERS, one, strict=True)) for one in every if legal(one)]
    assert list(legal_values("toy", PARAMETERS, derived, rules, GIVEN)) == expected


def test_what_hangs_on_few_parameters_is_worked_out_once_for_each_choice_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Counter[str]()
    evaluate = Expr.evaluate

    def counted(self: Expr, env: Mapping[str, Value]) -> Value:
        asked[self.text] += 1
        return evaluate(self, env)

    monkeypatch.setattr(Expr, "evaluate", counted)
    # A and D are wide apart: the rule is asked for at every A, B, C and D, and hangs on two of them.
    assert len(list(legal_values("toy", PARAMETERS, {}, [parse("A < D")], GIVEN))) == 4 * 6
    assert asked["A < D"] == 6
    asked.clear()
    operator, target = catalogue().operator("conv2d_divide_leaky_relu"), cuda_target("sm_90")
    problem = make_problem(operator, "seed")
    spaces = catalogue().spaces(operator, "cuda")
    assert sum(len(space.feasible(problem, target)) for space in spaces) > 3000
    assert asked.total() < 60_000  # without remembering, 360,000


def test_an_expression_that_fails_is_said_to_at_any_depth() -> None:
    for name in PARAMETERS:
        bad = parse(f"1 // ({name} - {name}) > 0" if name != "B" else "B + 1 > 0")
        with pytest.raises(DeclarationError, match="expression"):
            list(legal_values("toy", PARAMETERS, {}, [bad], GIVEN))
