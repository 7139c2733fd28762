# SPDX-License-Identifier: Apache-2.0
"""The instantiations that a ledger is about: every legal config of a template at its family's founding
operator, and which of them have not been executed yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...codegen.problem import make_problem
from ...codegen.render import KernelSource, render
from ...codegen.target import cuda_target
from .device_code import instantiation_digest
from .ledger import Ledger, claims, config_text

if TYPE_CHECKING:
    from ...codegen.catalogue import Catalogue
    from ...codegen.operator import Operator
    from ...codegen.problem import Problem
    from ...codegen.space import Config, Space
    from ...codegen.target import Target

WORKLOAD, ARCH = "seed", "sm_90"
MOST_CONFIGS = 3000
"""Of one space: so that executing all of them stays a matter of minutes on a GPU."""


@dataclass(frozen=True)
class Instantiation:
    """One config of a template, rendered.

    Attributes:
        digest: names what is executed: see `device_code`.
    """

    config: Config
    source: KernelSource
    digest: str


@dataclass(frozen=True)
class Subject:
    """What one ledger is about.

    Attributes:
        space: the template's space.
        problem: the founding operator at its workload.
        target: what for.
        ledger: where it is written.
        also_read: ledgers that count too and are not written.
        roots: folders with declarations beside the built-in ones.
    """

    space: Space
    problem: Problem
    target: Target
    ledger: Ledger
    also_read: tuple[Path, ...] = ()
    roots: tuple[str, ...] = ()

    @cached_property
    def classes(self) -> tuple[Problem, ...]:
        """The problem in each error class whose configs differ, the strictest first."""
        return classes_of(self.space, self.problem)

    @cached_property
    def configs(self) -> list[Config]:
        """Every config that is legal in any class."""
        legal = (self.space.feasible(problem, self.target) for problem in self.classes)
        return list(dict.fromkeys(config for configs in legal for config in configs))

    def problem_of(self, config: Config) -> Problem:
        """The problem in the strictest class in which a legal config is legal: what it is judged by."""
        legal = (p for p in self.classes if self.space.check(p, config, self.target) is None)
        return next(legal, self.problem)

    def instantiation(self, config: Config) -> Instantiation:
        """A config, rendered and named."""
        source = render(self.space, self.problem, config, self.target)  # the same in every class
        return Instantiation(config, source, instantiation_digest(self.space, source))

    @cached_property
    def digests(self) -> dict[str, str]:
        """The digest of every config, by its values."""
        return {config_text(config): self.instantiation(config).digest for config in self.configs}

    def digest(self, config: Config) -> str:
        """The digest of a legal config."""
        return self.digests[config_text(config)]

    def lacking(self, place: str | None = None) -> list[Config]:
        """The configs that did not pass at `place`; when that is not given: that passed nowhere."""
        return [
            config
            for config, places in self._places()
            if (not places if place is None else place not in places)
        ]

    def passed(self) -> dict[str, int]:
        """How many of the configs passed at each place."""
        return dict(Counter(place for _, places in self._places() for place in places))

    def _places(self) -> list[tuple[Config, frozenset[str]]]:
        """Where each config passed as it is now."""
        rows = claims([self.ledger.path, *self.also_read])
        return [
            (config, rows.get((config_text(config), self.digest(config)), frozenset()))
            for config in self.configs
        ]


def classes_of(space: Space, problem: Problem) -> tuple[Problem, ...]:
    """A problem, and where the space's expressions read the class that is asked, also in the class of one
    rounding of each float to a shorter one."""
    if problem.precision == "fp32" and space.reads("precision"):
        return problem, problem.in_class("tf32")
    return (problem,)


def ledger_path(space: Space) -> Path:
    """Where a space's ledger is kept: beside it."""
    return space.file.parent / f"ledger.{space.template}.{space.kind}.jsonl"


def subjects(
    catalogue: Catalogue,
    operator: Operator | None = None,
    template: str | None = None,
    folder: Path | None = None,
) -> list[Subject]:
    """What there are ledgers of: each CUDA space of each family.

    Args:
        catalogue: the declarations.
        operator: only its family.
        template: only this template.
        folder: where ledgers are written instead, `<family>.<file name>` each; those beside the spaces are
            read too.
    """
    wanted = {operator.family.name} if operator else set(catalogue.families)
    found = []
    for founder in founders(catalogue):
        if founder.family.name in wanted:
            for space in catalogue.spaces(founder, "cuda", template):
                problem = _problem(space, founder, catalogue)
                found.append(_subject(space, problem, folder, tuple(map(str, catalogue.roots[1:]))))
    return found


def founders(catalogue: Catalogue) -> list[Operator]:
    """The founding operator of each family: the first that is declared."""
    first: dict[str, Operator] = {}
    for operator in catalogue.operators.values():
        first.setdefault(operator.family.name, operator)
    return list(first.values())


def _problem(space: Space, founder: Operator, catalogue: Catalogue) -> Problem:
    """The founding operator at its workload; for a template whose default is not legal there, the first
    operator of the family for which it is."""
    operators = [o for o in catalogue.operators.values() if o.family.name == founder.family.name]
    problems = []
    for operator in (founder, *operators):
        workload = WORKLOAD if WORKLOAD in operator.workloads else next(iter(operator.workloads))
        problems.append(make_problem(operator, workload))
    target = _target(space)
    legal = (p for p in problems if space.default_for(p, target) is not None)
    return next(legal, problems[0])


def _target(space: Space) -> Target:
    return cuda_target(ARCH if ARCH in space.archs else space.archs[0])


def _subject(space: Space, problem: Problem, folder: Path | None, roots: tuple[str, ...]) -> Subject:
    target = _target(space)
    about: dict[str, Any] = {
        "template": space.name,
        "operator": problem.operator.name,
        "workload": problem.workload,
        "arch": target.arch,
        "dtype": problem.dtype.name,
        "parameters": [parameter.name for parameter in space.parameters],
    }
    beside = ledger_path(space)
    if folder is None:
        return Subject(space, problem, target, Ledger(beside, about), (), roots)
    path = folder / f"{space.family}.{beside.name}"
    return Subject(space, problem, target, Ledger(path, about), (beside,), roots)


def merge(found: Iterable[Subject], folder: Path) -> int:
    """Adds to each ledger what another run wrote into a folder.

    Args:
        found: of `subjects`.
        folder: what `subjects` was given then.

    Returns:
        For how many of them there was a ledger.
    """
    count = 0
    for subject in found:
        other = folder / f"{subject.space.family}.{subject.ledger.path.name}"
        if other.is_file():
            subject.ledger.tidy(subject.digests, [other])
            count += 1
    return count
