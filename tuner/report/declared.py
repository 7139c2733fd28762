# SPDX-License-Identifier: Apache-2.0
"""What the declarations on this machine add to a study: its arithmetic and traffic, the default config's
source, and the words that name its workload. All of it may be missing: then the report says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...codegen.catalogue import Catalogue, catalogue
from ...codegen.errors import ColdforgeError
from ...codegen.problem import make_problem
from ...codegen.render import render
from ...codegen.space import Config
from ...codegen.target import Target

if TYPE_CHECKING:
    from ...codegen.problem import Problem

_DAMAGED = (LookupError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class Declared:
    """The declarations of a study's operator.

    Attributes:
        problem: what is computed; None when the operator is not declared here as it was.
        reason: why not.
        builtin: whether coldforge itself declares it.
    """

    problem: Problem | None
    reason: str = ""
    builtin: bool = True
    _catalogue: Catalogue | None = field(default=None, repr=False)
    _target: Target | None = field(default=None, repr=False)

    @property
    def flops(self) -> int | None:
        """Floating-point operations of one call; None where they are not known, or there are none."""
        return (self.problem.flops or None) if self.problem else None

    @property
    def bytes_moved(self) -> int | None:
        """The fewest bytes of one call: every input read and every output written once."""
        return self.problem.bytes_read + self.problem.bytes_written if self.problem else None

    def source(self, template: str, config: Mapping[str, Any]) -> str | None:
        """A config's source text as it is rendered here; None where it is not."""
        if self.problem is None or self._catalogue is None or self._target is None:
            return None
        try:
            spaces = self._catalogue.spaces(self.problem.operator, self._target.kind, template)
            return render(spaces[0], self.problem, Config(config), self._target).text
        except (ColdforgeError, *_DAMAGED, OSError):
            return None

    def templates(self) -> list[str]:
        """The templates that a study of this target spans when none is named."""
        if self.problem is None or self._catalogue is None or self._target is None:
            return []
        try:
            spaces = self._catalogue.spaces(self.problem.operator, self._target.kind)
            return [space.template for space in spaces if self._target.arch in space.archs]
        except (ColdforgeError, OSError):
            return []

    def overrides(self) -> dict[str, int] | None:
        """The fields in which the problem differs from the workload it is named after; None when the workload
        is not declared, or more than sizes differ."""
        problem = self.problem
        if problem is None:
            return None
        try:
            named = make_problem(problem.operator, problem.workload.rstrip("+"), {}, problem.dtype.name)
        except (ColdforgeError, *_DAMAGED):
            return None
        if named.absent != problem.absent or dict(named.scalars) != dict(problem.scalars):
            return None
        return {name: size for name, size in problem.dims.items() if named.dims.get(name) != size}


def declared_for_study(about: Mapping[str, Any], roots: tuple[str, ...]) -> Declared:
    """Looks the operator up, in the folders that the study remembers too.

    Args:
        about: as the study stored it.
        roots: folders with declarations beside the built-in ones.
    """
    name = about["operator"]
    try:
        found = catalogue(*(Path(root) for root in roots if Path(root).is_dir()))
        if name not in found.operators:
            return Declared(None, f"the operator {name} is not declared on this machine", builtin=False)
        operator = found.operator(name)
        builtin = found.is_builtin(operator)
        if operator.digest != about.get("operator_digest"):
            return Declared(None, f"the declaration of {name} has changed since it was tuned", builtin)
        problem = found.problem_from_dict(about["problem"]).in_class(about["precision"])
        return Declared(problem, "", builtin, found, Target.from_dict(about["target"]))
    except (ColdforgeError, *_DAMAGED, OSError) as error:
        why = " ".join(str(error).split())[:200]
        return Declared(None, f"the declarations of {name} cannot be read here ({why})", builtin=False)
