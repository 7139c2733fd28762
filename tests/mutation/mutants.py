# SPDX-License-Identifier: Apache-2.0
"""Mutations of the CUDA templates and what they are executed on: the declared lists, and one process that
applies them to a copy of the templates and checks what is rendered from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from coldforge.codegen import render
from coldforge.codegen.atomic import write_text
from coldforge.codegen.catalogue import BUILTIN_ROOT, Catalogue
from coldforge.codegen.compile import Cache
from coldforge.codegen.errors import ColdforgeError
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import cuda_target
from coldforge.tuner.check.cases import Case, build_cases
from coldforge.tuner.check.run import Fault, check_config

HERE = Path(__file__).parent
TARGET = cuda_target("sm_90")


@dataclass(frozen=True)
class Exercise:
    """What some lines of the templates' code are executed with: a config at a specialisation of a family, or
    a kernel written for a test.

    Attributes:
        family: exercises of one family stand in for each other.
        operator: of coldforge, or of the folder `operators` here.
        shape: words over the operator's workload `small`.
        config: what differs from the space's default.
        kernel: of `accumulator_kernels`, in place of an operator.
        template: of the family's; the first of them where none is named.
    """

    name: str
    family: str
    operator: str = ""
    shape: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, int | str] = field(default_factory=dict)
    dtype: str = "fp32"
    kernel: str = ""
    template: str | None = None


@dataclass(frozen=True)
class Mutation:
    """A change of one line.

    Attributes:
        file: below `templates/`.
        old: stands once in that file; may include neighbouring lines that stay as they are.
        new: what it becomes.
        run: names of exercises, tried first to last.
        equivalent: why nothing that it changes can be seen from outside; empty for one that must be caught.
        survives: why it is known not to be caught; empty for one that must be.
    """

    file: str
    old: str
    new: str
    run: tuple[str, ...]
    equivalent: str = ""
    survives: str = ""

    @property
    def name(self) -> str:
        """File, line and the change itself."""
        before, after = self.changed_line
        return f"{Path(self.file).name}:{self.line}: {before or '(nothing)'} -> {after or '(nothing)'}"

    @cached_property
    def line(self) -> int:
        """The number, from 1, of the line that it changes."""
        text = (BUILTIN_ROOT / self.file).read_text("utf-8")
        first = text.count("\n", 0, text.index(self.old)) + 1
        return first + self._differing[0]

    @cached_property
    def changed_line(self) -> tuple[str, str]:
        """The words before and after, of the one line that differs."""
        index, end_old, end_new = self._differing
        old, new = self.old.split("\n"), self.new.split("\n")
        return " ".join(old[index:end_old]).strip(), " ".join(new[index:end_new]).strip()

    @cached_property
    def _differing(self) -> tuple[int, int, int]:
        old, new = self.old.split("\n"), self.new.split("\n")
        first = 0
        while first < min(len(old), len(new)) and old[first] == new[first]:
            first += 1
        last = 0
        while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
            last += 1
        return first, len(old) - last, len(new) - last

    def require_one_line(self) -> None:
        """Raises ValueError unless it stands once in its file and changes one line."""
        text = (BUILTIN_ROOT / self.file).read_text("utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} stands there {text.count(self.old)} times")
        first, end_old, end_new = self._differing
        if max(end_old - first, end_new - first) != 1:
            raise ValueError(f"{self.file}: {self.old!r} -> {self.new!r} changes more than one line, or none")


@dataclass(frozen=True)
class Result:
    """What became of a mutation.

    Attributes:
        outcome: "caught", "survived", or "compile_error": g++ refused it.
        exercise: with which it was caught.
        causes: what saw it: build -> kinds of fault, in the order of their first occurrence.
        text: the first fault.
    """

    mutation: Mutation
    outcome: str
    exercise: str = ""
    causes: Mapping[str, tuple[str, ...]] | None = None
    text: str = ""


def load(path: Path = HERE / "mutations.yaml") -> tuple[dict[str, Exercise], list[Mutation]]:
    """The declared exercises by name, and the mutations.

    Raises:
        ValueError: a mutation that cannot be applied, or names an exercise that there is not.
    """
    declared = yaml.safe_load(path.read_text("utf-8"))
    exercises = {
        name: Exercise(name, family, **fields)
        for family, group in declared["exercises"].items()
        for name, fields in group.items()
    }
    mutations = [
        Mutation(file, **{**fields, "run": tuple(fields["run"].split())})
        for file, group in declared["mutations"].items()
        for fields in group
    ]
    for mutation in mutations:
        mutation.require_one_line()
        for name in mutation.run:
            if name not in exercises:
                raise ValueError(f"{mutation.name}: no exercise {name!r}")
    return exercises, mutations


class Tree:
    """A copy of the templates, from which this process renders while the tree is in use."""

    def __init__(self, folder: Path, cache: Cache) -> None:
        self.root, self.cache = folder / "templates", cache
        shutil.copytree(BUILTIN_ROOT, self.root, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(HERE / "operators", self.root / "operators", dirs_exist_ok=True)
        self._catalogue = Catalogue((self.root,))
        self._prepared: dict[str, tuple[Space, Config, Problem, tuple[Case, ...]]] = {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Headers and macros come from here, not from the installed templates."""
        installed, render.INCLUDE_FOLDER = render.INCLUDE_FOLDER, self.root / "include"
        render._environment.cache_clear()
        try:
            yield
        finally:
            render.INCLUDE_FOLDER = installed
            render._environment.cache_clear()

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """The copy with one change."""
        path = self.root / mutation.file
        before = path.read_text("utf-8")
        write_text(path, before.replace(mutation.old, mutation.new))
        try:
            yield
        finally:
            write_text(path, before)

    def faults(self, exercise: Exercise) -> tuple[Fault, ...]:
        """What `coldforge check` says of the copy as it is, at one config; or the same of a test's kernel."""
        if exercise.kernel:
            import accumulator_kernels  # of tests/support

            return accumulator_kernels.faults(exercise.kernel, self.cache)
        space, config, _, cases = self._prepare(exercise)
        return check_config(space, config, TARGET, cases, self.cache).faults

    def _chosen(self, exercise: Exercise) -> tuple[Space, Config, Problem]:
        operator = self._catalogue.operator(exercise.operator)
        problem = make_problem(operator, "small", exercise.shape, exercise.dtype)
        space = self._catalogue.space(operator, TARGET, exercise.template)
        config = space.config({**space.default, **exercise.config})
        space.require(problem, config, TARGET)
        return space, config, problem

    def _text(self, exercise: Exercise) -> str:
        """What is rendered for it now; empty for a kernel of its own, or if that fails."""
        if exercise.kernel:
            return ""
        space, config, problem = self._chosen(exercise)
        try:
            return render.render(space, problem, config, TARGET).text
        except ColdforgeError as error:
            return str(error)

    def _prepare(self, exercise: Exercise) -> tuple[Space, Config, Problem, tuple[Case, ...]]:
        if exercise.name not in self._prepared:
            space, config, problem = self._chosen(exercise)
            self._prepared[exercise.name] = (space, config, problem, build_cases(problem, exercise.dtype))
        return self._prepared[exercise.name]

    def judge(self, mutation: Mutation, exercises: Sequence[Exercise]) -> Result:
        """Runs a mutation on one exercise after the other, to the first that catches it."""
        refused = ""
        before = {exercise.name: self._text(exercise) for exercise in exercises}
        with self.mutated(mutation):
            for exercise in exercises:
                if not exercise.kernel and self._text(exercise) == before[exercise.name]:
                    continue  # another template's
                faults = self.faults(exercise)
                seen = [fault for fault in faults if fault.cause != "compile_error"]
                if seen:
                    return Result(mutation, "caught", exercise.name, _causes(seen), seen[0].text)
                refused = refused or next((fault.text for fault in faults), "")
        return Result(mutation, "compile_error" if refused else "survived", text=refused)


def _causes(faults: Sequence[Fault]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for fault in faults:
        found.setdefault(fault.build, {})[fault.cause] = None
    return {build: tuple(causes) for build, causes in found.items()}


def key(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells one mutation in a file of results from another."""
    return tuple(fields[name] for name in ("file", "line", "old", "new"))


def from_dict(mutation: Mutation, fields: Mapping[str, Any]) -> Result:
    """The inverse of `to_dict`."""
    causes = {build: tuple(kinds) for build, kinds in fields.get("causes", {}).items()}
    exercise, text = fields.get("exercise", ""), fields.get("first_fault", "")
    return Result(mutation, fields["outcome"], exercise, causes or None, text)


def to_dict(result: Result) -> dict[str, Any]:
    """Plain JSON."""
    mutation = result.mutation
    before, after = mutation.changed_line
    fields: dict[str, Any] = {
        "file": mutation.file,
        "line": mutation.line,
        "old": before,
        "new": after,
        "outcome": result.outcome,
    }
    if result.outcome == "caught":
        causes = {build: list(kinds) for build, kinds in (result.causes or {}).items()}
        fields |= {"exercise": result.exercise, "causes": causes}
    reason = {
        "equivalent": mutation.equivalent,
        "survives": mutation.survives,
        "first_fault": result.text.replace(f"{BUILTIN_ROOT.parent}/", ""),
    }
    return fields | {name: text for name, text in reason.items() if text}
