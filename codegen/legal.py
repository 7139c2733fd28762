# SPDX-License-Identifier: Apache-2.0
"""Which combinations of a space's values are legal, found parameter by parameter.

A derived value is computed and a constraint tested as soon as the parameters that it hangs on are chosen, so
that a broken one cuts off everything below it; and each is worked out once for each choice of these
parameters and remembered: most hang on three or four of a dozen. A space of millions of combinations takes
some tenths of a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from .errors import DeclarationError
from .expr import Expr, Value

MAX_LEGAL = 200_000
MAX_STEPS = 30_000_000
"""Expressions that one enumeration may ask for, each counted by its length: at worst some tens of seconds."""
_STEP_CHARACTERS = 10
_SMALLER = "give parameters fewer values, or constraints that cut more off"
# More would take memory, and are asked for too seldom each.
_REMEMBERED = 50_000

Environment = dict[str, Value]
Step = Callable[[Environment], bool]
"""Puts values into the environment, or tests rules; answers whether what is chosen may be legal."""


def legal_values(
    name: str,
    parameters: Mapping[str, Sequence[int | str]],
    derived: Mapping[str, Expr],
    rules: Iterable[Expr],
    given: Mapping[str, Value],
) -> Iterator[dict[str, int | str]]:
    """Legal combinations in the order of the declared values, the last parameter fastest.

    Args:
        name: the space's, for messages.
        parameters: each one's values.
        derived: values computed from what stands before them, in order.
        rules: what must hold.
        given: everything else that an expression may read.

    Raises:
        DeclarationError: there are too many combinations, or an expression fails.
    """
    levels = _Levels(parameters, derived, rules, given)
    names, last = list(parameters), len(parameters)
    choices, costs, steps_of = list(parameters.values()), levels.costs, levels.steps
    env: Environment = dict(given)
    done = legal = 0

    def holds(depth: int) -> bool:
        nonlocal done
        done += costs[depth]
        if done > MAX_STEPS:
            raise DeclarationError(f"space {name}: too large to enumerate; {_SMALLER}")
        for step in steps_of[depth]:  # noqa: SIM110 (a generator would cost as much as the steps do)
            if not step(env):
                return False
        return True

    def below(depth: int) -> Iterator[dict[str, int | str]]:
        nonlocal legal
        if depth == last:
            legal += 1
            if legal > MAX_LEGAL:
                raise DeclarationError(f"space {name}: over {MAX_LEGAL:,} legal configs; {_SMALLER}")
            yield {parameter: env[parameter] for parameter in names}  # type: ignore[misc]
            return
        for choice in choices[depth]:
            env[names[depth]] = choice
            if holds(depth + 1):
                yield from below(depth + 1)

    if holds(0):
        yield from below(0)


class _Levels:
    """What is to be done once so many parameters are chosen.

    Attributes:
        steps: by the number of chosen parameters: the values first, then the rules, each in declared order.
        costs: what they count for in MAX_STEPS.
    """

    def __init__(
        self,
        parameters: Mapping[str, Sequence[int | str]],
        derived: Mapping[str, Expr],
        rules: Iterable[Expr],
        given: Mapping[str, Value],
    ) -> None:
        self._counts = {name: len(values) for name, values in parameters.items()}
        self._place = {name: place for place, name in enumerate(parameters, start=1)}
        # The parameters that a value hangs on, itself or by what it is computed from. An unknown name hangs
        # on all: asking for it fails where everything that there is has been chosen.
        self._hangs_on = dict.fromkeys(given, frozenset[str]())
        self._hangs_on |= {name: frozenset((name,)) for name in parameters}
        values: list[list[tuple[str, Expr]]] = [[] for _ in range(len(parameters) + 1)]
        tests: list[list[Expr]] = [[] for _ in range(len(parameters) + 1)]
        for name, expression in derived.items():
            self._hangs_on[name] = self._parameters_of(expression)
            values[self._depth(expression)].append((name, expression))
        for rule in rules:
            tests[self._depth(rule)].append(rule)
        self.steps: list[list[Step]] = []
        self.costs: list[int] = []
        for depth, (made, tested) in enumerate(zip(values, tests, strict=True)):
            characters = sum(len(e.text) for e in (*(e for _, e in made), *tested))
            self.costs.append(1 + characters // _STEP_CHARACTERS)
            self.steps.append([*self._value_steps(made, depth), *self._rule_steps(tested, depth)])

    def _parameters_of(self, expression: Expr) -> frozenset[str]:
        every = frozenset(self._counts)
        return frozenset[str]().union(*(self._hangs_on.get(name, every) for name in expression.names))

    def _depth(self, expression: Expr) -> int:
        return max((self._place[name] for name in self._parameters_of(expression)), default=0)

    def _key_of(self, hangs_on: frozenset[str], depth: int) -> Callable[[Environment], object] | None:
        """What tells the choices of these parameters apart; None where remembering them gains nothing."""
        chosen = [name for name, place in self._place.items() if place <= depth]
        needed = [name for name in chosen if name in hangs_on]
        combinations = math.prod(self._counts[name] for name in needed)
        if not needed or len(needed) == len(chosen) or combinations > _REMEMBERED:
            return None
        return itemgetter(*needed)

    def _value_steps(self, made: list[tuple[str, Expr]], depth: int) -> Iterator[Step]:
        for hangs_on, group in groupby(made, lambda item: self._parameters_of(item[1])):
            yield _values(list(group), self._key_of(hangs_on, depth))

    def _rule_steps(self, tested: list[Expr], depth: int) -> Iterator[Step]:
        for hangs_on, group in groupby(tested, self._parameters_of):
            yield _rules(list(group), self._key_of(hangs_on, depth))


def _values(made: list[tuple[str, Expr]], key_of: Callable[[Environment], object] | None) -> Step:
    def compute(env: Environment) -> bool:
        for name, expression in made:
            env[name] = expression.evaluate(env)
        return True

    if key_of is None:
        return compute
    seen: dict[object, Environment] = {}

    def remember(env: Environment) -> bool:
        key = key_of(env)
        found = seen.get(key)
        if found is None:
            compute(env)
            seen[key] = {name: env[name] for name, _ in made}
        else:
            env.update(found)
        return True

    return remember


def _rules(tested: list[Expr], key_of: Callable[[Environment], object] | None) -> Step:
    def test(env: Environment) -> bool:
        return all(rule.evaluate(env) for rule in tested)

    if key_of is None:
        return test
    seen: dict[object, bool] = {}

    def remember(env: Environment) -> bool:
        key = key_of(env)
        found = seen.get(key)
        if found is None:
            found = seen[key] = test(env)
        return found

    return remember
