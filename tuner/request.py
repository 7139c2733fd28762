# SPDX-License-Identifier: Apache-2.0
"""What the worker is asked to judge: plain data, complete in itself, fit to cross processes and machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..codegen.compile import Artifact
from ..codegen.expr import Value, evaluate_int, parse
from ..codegen.problem import Problem
from ..codegen.space import Launch, Space
from ..codegen.target import Target


@dataclass(frozen=True)
class TrialRequest:
    """One compiled variant on one problem.

    Attributes:
        problem: `Problem.to_dict()`.
        artifact: `Artifact.to_dict()`.
        template: The template's name.
        config: The parameters.
        launch: The launch geometry as expression texts: the worker needs it at every shape that it checks.
        derived: What those expressions read besides problem, config and target, in order.
        precision: The error class.
        best_ms: The best time so far, None to time in full.
        roots: Folders with declarations beside the built-in ones.
        operator_digest: Of the operator as the study knows it; empty: it is not compared.
        flops: The problem's arithmetic, for time limits.
        seed: Of the inputs.
    """

    problem: Mapping[str, Any]
    artifact: Mapping[str, Any]
    template: str
    config: Mapping[str, int | str]
    launch: Mapping[str, str]
    derived: Mapping[str, str] = field(default_factory=dict)
    precision: str = "fp32"
    best_ms: float | None = None
    roots: tuple[str, ...] = ()
    operator_digest: str = ""
    flops: int = 0
    seed: int = 0

    @property
    def has_workspace(self) -> bool:
        """Whether the kernel's argument struct has a workspace pointer."""
        return "workspace_bytes" in self.launch

    @property
    def study_key(self) -> tuple[Any, ...]:
        """What the checks and the timed inputs hang on: equal for all variants of one study."""
        problem = {name: self.problem[name] for name in ("operator", "dims", "dtype", "absent", "scalars")}
        return (repr(sorted(problem.items())), self.precision, self.roots, self.seed)

    def launch_at(self, problem: Problem, target: Target) -> Launch:
        """Evaluates the launch at a shape.

        Raises:
            DeclarationError: An expression fails.
        """
        env: dict[str, Value] = {**target.attributes, **problem.values, **self.config}
        for name, text in self.derived.items():
            env[name] = parse(text).evaluate(env)
        return Launch(**{name: evaluate_int(text, env) for name, text in self.launch.items()})

    def in_full(self) -> TrialRequest:
        """The same, to be timed without comparing it with a best time."""
        return replace(self, best_ms=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "problem": dict(self.problem),
            "artifact": dict(self.artifact),
            "template": self.template,
            "config": dict(self.config),
            "launch": dict(self.launch),
            "derived": dict(self.derived),
            "precision": self.precision,
            "best_ms": self.best_ms,
            "roots": list(self.roots),
            "operator_digest": self.operator_digest,
            "flops": self.flops,
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrialRequest:
        """The inverse of `to_dict`."""
        return cls(**{**data, "roots": tuple(data.get("roots", ()))})


def trial_request(
    space: Space,
    problem: Problem,
    config: Mapping[str, int | str],
    artifact: Artifact,
    *,
    precision: str | None = None,
    best_ms: float | None = None,
    roots: tuple[str, ...] = (),
) -> TrialRequest:
    """Builds the request for a variant of a declared space.

    Args:
        space: Where the config comes from; gives the launch expressions.
        problem: What it is verified and timed on.
        config: The parameters.
        artifact: The compiled variant.
        precision: The error class; the problem's when not given.
        best_ms: The best time so far.
        roots: Folders with declarations beside the built-in ones.
    """
    return TrialRequest(
        problem=problem.to_dict(),
        artifact=artifact.to_dict(),
        template=space.template,
        config=dict(config),
        launch={name: expression.text for name, expression in space.geometry.items()},
        derived={name: expression.text for name, expression in space.derived.items()},
        precision=precision or problem.precision,
        best_ms=best_ms,
        roots=roots,
        operator_digest=problem.operator.digest,
        flops=problem.flops,
    )
