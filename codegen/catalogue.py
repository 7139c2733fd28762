# SPDX-License-Identifier: Apache-2.0
"""Finds what is declared: families, operators and spaces under the template roots. Reads files on demand,
keeps none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from .errors import DeclarationError, InputError, UnknownName
from .family import Family
from .family_file import load_family
from .operator import Operator, load_operator, own_operator
from .places import BUILTIN_ROOT, placed
from .problem import Problem, make_problem, problem_from_parts
from .space import Space
from .space_file import load_space
from .target import Target

_HOW_TO_OPERATE = "give it `workloads:`, or declare an operator of it in operators/<operator>.yaml"


@dataclass(frozen=True)
class Catalogue:
    """The declarations under ``roots``; a name may be declared once only.

    Attributes:
        roots: folders laid out like ``templates/`` (``<family>/family.yaml`` and ``operators/*.yaml``), or
            family folders themselves.
    """

    roots: tuple[Path, ...]

    @cached_property
    def families(self) -> dict[str, Family]:
        """Families by name.

        Raises:
            DeclarationError: one is malformed or declared twice.
        """
        found: dict[str, Family] = {}
        for root in self.roots:
            for folder in family_folders(root):
                with placed(folder):
                    family = load_family(folder)
                if family.name in found:
                    places = (found[family.name].folder / "family.yaml", folder / "family.yaml")
                    raise _twice(f"family {family.name!r}", *places)
                found[family.name] = family
        return found

    @cached_property
    def operators(self) -> dict[str, Operator]:
        """Operators by name.

        Raises:
            DeclarationError: one is malformed or declared twice.
        """
        found: dict[str, Operator] = {}
        places: dict[str, Path] = {}
        declared: list[tuple[Operator | None, Path]] = []
        for family in self.families.values():
            with placed(family.folder):
                declared.append((own_operator(family), family.folder / "family.yaml"))
        for root in self.roots:
            for path in sorted((root / "operators").glob("*.yaml")):
                with placed(path.parent):
                    declared.append((load_operator(path, self.families), path))
        for operator, path in declared:
            if operator is None:
                continue
            if operator.name in found:
                raise _twice(f"operator {operator.name!r}", places[operator.name], path)
            found[operator.name], places[operator.name] = operator, path
        return found

    def is_builtin(self, operator: Operator) -> bool:
        """Whether coldforge itself declares it, and its family."""
        own = BUILTIN_ROOT / "operators" / f"{operator.name}.yaml"
        return operator.family.folder.parent == BUILTIN_ROOT and own.is_file()

    def operator(self, name: str) -> Operator:
        """The operator called ``name``.

        Raises:
            UnknownName: there is none.
            InputError: it is a family's name, and no operator's.
        """
        if name in self.operators:
            return self.operators[name]
        if name not in self.families:
            raise UnknownName("operator", name, list(self.operators))
        of_it = sorted(o.name for o in self.operators.values() if o.family.name == name)
        raise InputError(
            f"the family {name} declares no workloads of its own, so it is no operator; "
            + (f"its operators: {', '.join(of_it)}" if of_it else _HOW_TO_OPERATE)
        )

    @cached_property
    def _spaces(self) -> dict[str, list[Space]]:
        """Of the families that were asked for: a mistake in one is not in the way of another."""
        return {}

    def spaces(self, operator: Operator, kind: str | None = None, template: str | None = None) -> list[Space]:
        """The spaces of an operator's templates.

        Args:
            kind: only those for ``cuda`` or ``cpu``.
            template: only the one of this name.

        Raises:
            UnknownName: no template of that name for that kind.
        """
        family = operator.family
        if family.name not in self._spaces:
            with placed(family.folder):
                self._spaces[family.name] = _spaces_of(family)
        spaces = [s for s in self._spaces[family.name] if kind is None or s.kind == kind]
        if template is None:
            return spaces
        chosen = [s for s in spaces if s.template == template]
        if not chosen:
            raise UnknownName(
                f"template of {operator.name} for {kind or 'any target'}",
                template,
                [s.template for s in spaces],
            )
        return chosen

    def space(
        self,
        operator: Operator,
        target: Target,
        template: str | None = None,
        problem: Problem | None = None,
    ) -> Space:
        """One space for a target: the named template's; else the first that supports the architecture and
        whose default is legal, or the first of that architecture where there is none.

        Args:
            problem: where the default has to be legal; the operator's first workload when not given.

        Raises:
            UnknownName: no such template, or the architecture is not supported by any.
            InputError: there is no template for that kind of target.
        """
        spaces = self.spaces(operator, target.kind, template)
        if not spaces:
            others = sorted({s.kind for s in self.spaces(operator)})
            raise InputError(
                f"{operator.name} has no template for {target.kind}"
                + (
                    f"; give --target {others[0]}"
                    if others
                    else f", and none at all in {operator.family.folder}"
                )
            )
        if template is not None:
            return spaces[0]
        fitting = [space for space in spaces if target.arch in space.archs]
        for space in fitting if len(fitting) > 1 else ():
            at = problem or make_problem(operator, next(iter(operator.workloads)))
            if space.default_for(at, target) is not None:
                return space
        if fitting:
            return fitting[0]
        archs = [a for s in spaces for a in s.archs]
        raise UnknownName(f"{target.kind} arch of {operator.name}", target.arch, sorted(set(archs)))

    def problem_from_dict(self, data: Mapping[str, Any]) -> Problem:
        """The inverse of ``Problem.to_dict``.

        Raises:
            UnknownName: the operator is not declared here.
        """
        return problem_from_parts(self.operator(data["operator"]), data)


def family_folders(root: Path) -> list[Path]:
    """The folders of ``root`` that hold a family: itself, and those directly in it."""
    found = [root] if (root / "family.yaml").is_file() else []
    return found + sorted(path.parent for path in root.glob("*/family.yaml"))


def _spaces_of(family: Family) -> list[Space]:
    spaces: list[Space] = []
    for path in sorted([*family.folder.glob("space.yaml"), *family.folder.glob("space.*.yaml")]):
        tensors = [tensor.name for tensor in (*family.tensors, family.output)]
        space = load_space(path, family.name, (*family.value_names, *tensors))
        if any((space.template, space.kind) == (other.template, other.kind) for other in spaces):
            raise DeclarationError(
                f"{family.name}/{path.name}: another space is for template {space.template} on {space.kind} "
                "too; give one of them another template: NAME"
            )
        spaces.append(space)
    return spaces


def _twice(what: str, first: Path, second: Path) -> DeclarationError:
    return DeclarationError(f"{what} is declared twice: in {first} and in {second}")


@lru_cache(maxsize=8)
def catalogue(*extra_roots: Path) -> Catalogue:
    """The built-in declarations together with those under ``extra_roots``.

    Raises:
        DeclarationError: an extra root is no folder, or declares nothing.
    """
    roots = {BUILTIN_ROOT: BUILTIN_ROOT}
    for root in extra_roots:
        try:
            declares = family_folders(root) or any((root / "operators").glob("*.yaml"))
            is_folder = root.is_dir()
        except OSError as error:
            raise DeclarationError(f"--templates {root}: cannot be read: {error.strerror or error}") from None
        if not is_folder:
            raise DeclarationError(f"--templates {root}: not a folder")
        if not declares:
            raise DeclarationError(
                f"--templates {root}: declares nothing; it must hold a family.yaml, folders with one, or "
                "operators/*.yaml"
            )
        roots.setdefault(root.resolve(), root)
    return Catalogue(tuple(roots.values()))
