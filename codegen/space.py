# SPDX-License-Identifier: Apache-2.0
"""A space: the tunable parameters of one template on one kind of target, and which combinations are legal.

Legality is decided by expressions alone, before anything is compiled; each refusal carries a reason with the
numbers.
The same declaration gives the launch geometry, so that tuner and frozen extension cannot disagree about it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .errors import DeclarationError, InfeasibleConfig, InputError, UnknownName
from .expr import Expr, Value, evaluate_int
from .family import Rule
from .legal import legal_values
from .problem import Problem
from .target import Target


@dataclass(frozen=True)
class Parameter:
    """A tunable: its legal values in the order written, and one line of help."""

    name: str
    values: tuple[int | str, ...]
    help: str


class Config(Mapping[str, "int | str"]):
    """One choice for every parameter of a space: an immutable, hashable mapping in the space's order."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, int | str]) -> None:
        self._items = dict(items)

    def __getitem__(self, name: str) -> int | str:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self._items) == dict(other)

    def __repr__(self) -> str:
        return f"Config({self.key})"

    @property
    def key(self) -> str:
        """``TILE_X=32,TILE_Y=8,...``"""
        return ",".join(f"{name}={value}" for name, value in self._items.items())


@dataclass(frozen=True)
class Launch:
    """Evaluated launch geometry.

    Attributes:
        grid, block, shared_bytes: CUDA: blocks, threads a block, dynamic shared memory.
        units, grain: cpu: work units, and the least number of them a thread takes.
        workspace_bytes: scratch memory of the call; 0 for none.
        zeroed_bytes: how much of it, from its start, is zero when the kernel starts; the rest is
            uninitialised.
        finish_grid, finish_block, finish_shared_bytes: CUDA: geometry of the second kernel,
            ``coldforge_finish``, which follows on the same stream; no blocks: it is not launched.
        finish_units, finish_grain: cpu: the same of the second range function.

    Raises:
        DeclarationError: zeroed_bytes is negative or more than workspace_bytes.
    """

    grid: int = 0
    block: int = 0
    shared_bytes: int = 0
    units: int = 0
    grain: int = 1
    workspace_bytes: int = 0
    zeroed_bytes: int = 0
    finish_grid: int = 0
    finish_block: int = 0
    finish_shared_bytes: int = 0
    finish_units: int = 0
    finish_grain: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.zeroed_bytes <= self.workspace_bytes:
            raise DeclarationError(
                f"launch: zeroed_bytes is {self.zeroed_bytes}; it must be from 0 to "
                f"workspace_bytes, which is {self.workspace_bytes}"
            )

    def to_dict(self) -> dict[str, int]:
        """Plain JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Space:
    """A declared space. See ``templates/conv2d/space.direct.cuda.yaml``.

    Attributes:
        template: the template's name (``direct``).
        kind: target kind, ``cuda`` or ``cpu``.
        archs: architectures that the template supports.
        file: the Jinja file.
        derived: values computed from parameters, problem and target, in order; visible to the template.
        default: what is timed first and fills in for `config`, where it is legal.
        fallbacks: what stands in for the default where that is not legal; the first legal one.
        launch_exprs: the launch geometry, as expressions that may also read the run-time sizes; and `work`,
            what the time of a launch grows with. Frozen kernels of several sizes are chosen from by it.
    """

    family: str
    template: str
    kind: str
    archs: tuple[str, ...]
    file: Path
    parameters: tuple[Parameter, ...]
    derived: Mapping[str, Expr] = field(hash=False)
    constraints: tuple[Rule, ...] = ()
    default: Config = field(default_factory=lambda: Config({}))
    fallbacks: tuple[Config, ...] = ()
    launch_exprs: Mapping[str, Expr] = field(default_factory=dict, hash=False)

    @property
    def geometry(self) -> dict[str, Expr]:
        """The launch geometry alone: what is executed. `work` changes no launch and no time, so neither a
        study nor what is known of an executed config hangs on it."""
        return {name: expression for name, expression in self.launch_exprs.items() if name != "work"}

    @property
    def name(self) -> str:
        """``conv2d/direct/cuda``"""
        return f"{self.family}/{self.template}/{self.kind}"

    def reads(self, name: str) -> bool:
        """Whether some expression of the space reads the value ``name``."""
        rules = [rule.require for rule in self.constraints]
        expressions = (*self.derived.values(), *rules, *self.launch_exprs.values())
        return any(name in expression.names for expression in expressions)

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """The parameters by name."""
        return {p.name: p for p in self.parameters}

    def default_for(self, problem: Problem, target: Target) -> Config | None:
        """The default, or the first of `fallbacks`, that is legal; None where none is."""
        candidates = (self.default, *self.fallbacks)
        return next((c for c in candidates if self.check(problem, c, target) is None), None)

    def config(self, given: Mapping[str, int | str], base: Mapping[str, int | str] | None = None) -> Config:
        """A complete config: ``base`` with ``given`` over it, in the space's order.

        Args:
            given: values of some parameters.
            base: those of all; the default when not given.

        Raises:
            UnknownName: no such parameter.
            InputError: a value that the parameter does not list, or several mistakes, which it names all.
        """
        base = self.default if base is None else base
        wrong = [error for name, value in given.items() if (error := self._mistake(name, value))]
        if len(wrong) == 1:
            raise wrong[0]
        if wrong:
            raise InputError("; ".join(map(str, wrong)))
        return Config({p.name: given.get(p.name, base[p.name]) for p in self.parameters})

    def _mistake(self, name: str, value: int | str) -> InputError | None:
        """What is wrong with one parameter's value."""
        if name not in self.by_name:
            return UnknownName(f"parameter of template {self.name}", name, list(self.by_name))
        values = self.by_name[name].values
        if isinstance(value, bool | float) or value not in values:
            return InputError(f"{name}={value} is not a value of template {self.name}; it has {list(values)}")
        return None

    def environment(
        self, problem: Problem, config: Mapping[str, int | str], target: Target
    ) -> dict[str, Value]:
        """Everything an expression of this space may read, derived values included.

        Raises:
            DeclarationError: a derived expression fails.
        """
        env: dict[str, Value] = {**target.attributes, **problem.values, **config}
        for name, expression in self.derived.items():
            env[name] = expression.evaluate(env)
        return env

    def check(self, problem: Problem, config: Mapping[str, int | str], target: Target) -> str | None:
        """Why ``config`` is not legal there; None when it is. Pure: nothing is compiled."""
        if target.kind != self.kind:
            return f"template {self.name} is for {self.kind}, not {target.kind}"
        if target.arch not in self.archs:
            return f"template {self.name} supports {', '.join(self.archs)}, not {target.arch}"
        return self._broken_rule(self.environment(problem, config, target))

    def _broken_rule(self, env: Mapping[str, Value]) -> str | None:
        return next(self._broken_rules(env), None)

    def _broken_rules(self, env: Mapping[str, Value]) -> Iterator[str]:
        for rule in self.constraints:
            if not rule.require.evaluate(env):
                yield f"{rule.explain(env)} (requires {rule.require.text})"

    def require(self, problem: Problem, config: Mapping[str, int | str], target: Target) -> None:
        """``check`` that raises, with every reason that there is.

        Raises:
            InfeasibleConfig: the reasons.
        """
        reason = self.check(problem, config, target)
        if reason is None:
            return
        reasons = [reason]
        if target.kind == self.kind and target.arch in self.archs:
            # A rule may rely on those before it: where they are broken, it may have no value.
            with contextlib.suppress(DeclarationError):
                for other in self._broken_rules(self.environment(problem, config, target)):
                    reasons += [other] if other != reason else []
        if len(reasons) > 1:
            reason = f"{len(reasons)} constraints are broken: " + " ".join(
                f"({number}) {each}" for number, each in enumerate(reasons, start=1)
            )
        raise InfeasibleConfig(f"infeasible config of {self.name}: {reason}")

    @cached_property
    def size(self) -> int:
        """Combinations before any constraint."""
        count = 1
        for parameter in self.parameters:
            count *= len(parameter.values)
        return count

    def feasible(self, problem: Problem, target: Target) -> list[Config]:
        """Every legal config, in the order of the declared values (last parameter fastest)."""
        if target.kind != self.kind or target.arch not in self.archs:
            return []
        return list(enumerate_legal(self, problem, target))

    def launch(self, problem: Problem, config: Mapping[str, int | str], target: Target) -> Launch:
        """The launch geometry at the problem's shape.

        Raises:
            DeclarationError: an expression fails or is not an integer.
        """
        env = self.environment(problem, config, target)
        return Launch(**{name: evaluate_int(e.text, env) for name, e in self.geometry.items()})


def enumerate_legal(space: Space, problem: Problem, target: Target) -> Iterator[Config]:
    """Legal configs in order; see `legal_values`."""
    parameters = {p.name: p.values for p in space.parameters}
    rules = [rule.require for rule in space.constraints]
    given = {**target.attributes, **problem.values}
    for values in legal_values(space.name, parameters, space.derived, rules, given):
        yield Config(values)
