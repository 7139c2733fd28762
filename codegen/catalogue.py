# SPDX-License-Identifier: Apache-2.0
"""Finds what is declared: families, operators and spaces under the template roots. Reads files on demand,
keeps none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from .errors import DeclarationError, UnknownName
from .family import Family, load_family
from .operator import Operator, load_operator
from .problem import Problem, problem_from_parts
from .space import Space, load_space
from .target import Target

BUILTIN_ROOT = Path(__file__).resolve().parent.parent / "templates"


@dataclass(frozen=True)
class Catalogue:
    """The declarations under ``roots``; a name may be declared once only.

    Attributes:
        roots: folders laid out like ``templates/``: ``<family>/family.yaml`` and ``operators/*.yaml``.
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
            for path in sorted(root.glob("*/family.yaml")):
                family = load_family(path.parent)
                if family.name in found:
                    raise DeclarationError(f"family {family.name!r} is declared twice")
                found[family.name] = family
        return found

    @cached_property
    def operators(self) -> dict[str, Operator]:
        """Operators by name.

        Raises:
            DeclarationError: one is malformed or declared twice.
        """
        found: dict[str, Operator] = {}
        for root in self.roots:
            for path in sorted((root / "operators").glob("*.yaml")):
                operator = load_operator(path, self.families)
                if operator.name in found:
                    raise DeclarationError(f"operator {operator.name!r} is declared twice")
                found[operator.name] = operator
        return found

    def operator(self, name: str) -> Operator:
        """The operator called ``name``.

        Raises:
            UnknownName: there is none.
        """
        if name not in self.operators:
            raise UnknownName("operator", name, list(self.operators))
        return self.operators[name]

    @cached_property
    def _spaces(self) -> dict[str, list[Space]]:
        return {
            name: [load_space(path, name) for path in sorted(family.folder.glob("space.*.yaml"))]
            for name, family in self.families.items()
        }

    def spaces(self, operator: Operator, kind: str | None = None, template: str | None = None) -> list[Space]:
        """The spaces of an operator's templates.

        Args:
            kind: only those for ``cuda`` or ``cpu``.
            template: only the one of this name.

        Raises:
            UnknownName: no template of that name for that kind.
        """
        spaces = [s for s in self._spaces[operator.family.name] if kind is None or s.kind == kind]
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

    def space(self, operator: Operator, target: Target, template: str | None = None) -> Space:
        """One space for a target: the named template's, else the first that supports the architecture.

        Raises:
            UnknownName: no such template, or the architecture is not supported by any.
        """
        spaces = self.spaces(operator, target.kind, template)
        for space in spaces:
            if template is not None or target.arch in space.archs:
                return space
        archs = [a for s in spaces for a in s.archs]
        raise UnknownName(f"{target.kind} arch of {operator.name}", target.arch, sorted(set(archs)))

    def problem_from_dict(self, data: Mapping[str, Any]) -> Problem:
        """The inverse of ``Problem.to_dict``.

        Raises:
            UnknownName: the operator is not declared here.
        """
        return problem_from_parts(self.operator(data["operator"]), data)


@lru_cache(maxsize=8)
def catalogue(*extra_roots: Path) -> Catalogue:
    """The built-in declarations together with those under ``extra_roots``.

    Raises:
        DeclarationError: an extra root is no folder.
    """
    for root in extra_roots:
        if not root.is_dir():
            raise DeclarationError(f"--templates {root}: not a folder")
    return Catalogue((BUILTIN_ROOT, *extra_roots))
