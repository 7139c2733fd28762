# SPDX-License-Identifier: Apache-2.0
"""What `aa.py` and `ten_tunings.py` share: variants of one problem, compiled, and held as finals by the very
code that ends a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache, compile_source
from coldforge.codegen.dtypes import precision_named
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.space import Config
from coldforge.codegen.target import Target
from coldforge.tuner.client import WorkerClient
from coldforge.tuner.ranking import Ranking, rank
from coldforge.tuner.request import TrialRequest, trial_request


def problem_of(operator: str, target: Target, workload: str | None, dtype: str, precision: str) -> Problem:
    """An operator at a workload: `seed` on a GPU and `small` on a CPU when none is given."""
    declared = catalogue().operator(operator)
    name = workload or ("seed" if target.kind == "cuda" else "small")
    problem = make_problem(declared, name, {}, dtype)
    return problem.in_class(precision_named(precision or None, problem.dtype))


def request_of(
    problem: Problem, target: Target, template: str | None, config: Mapping[str, Any] | None, cache: Cache
) -> TrialRequest:
    """A variant, compiled; the template's default config when none is given."""
    space = catalogue().space(problem.operator, target, template)
    chosen = Config(config) if config is not None else space.default_for(problem, target) or space.default
    reason = space.check(problem, chosen, target)
    if reason:
        raise SystemExit(f"{space.template} {chosen.key}: {reason}")
    artifact = compile_source(render(space, problem, chosen, target), target, cache)
    return trial_request(space, problem, chosen, artifact, precision=problem.precision)


def under_another_name(request: TrialRequest, path: Path) -> TrialRequest:
    """The same variant from a copy of its binary, which is loaded anew."""
    artifact = Artifact.from_dict(request.artifact)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Path(artifact.path).read_bytes())
    return replace(request, artifact={**artifact.to_dict(), "path": str(path), "name": path.stem})


def held(client: WorkerClient, requests: Sequence[TrialRequest]) -> tuple[Ranking, int]:
    """Finals of the variants; who won, and in how many rounds."""
    results = client.finals(requests)
    bad = [result.reason for result in results if not result.ok]
    if bad:
        raise SystemExit(f"{len(bad)} of {len(results)} variants do not work: {bad[0]}")
    rounds = {result.details.get("rounds") for result in results}
    if len(rounds) != 1 or None in rounds:
        raise SystemExit("the worker was lost; the variants were not timed side by side")
    return rank([dict(enumerate(result.samples_ms)) for result in results]), rounds.pop()
