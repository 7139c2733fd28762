# SPDX-License-Identifier: Apache-2.0
"""What one study tunes, resolved and checked: problem, target, templates, and the inputs that name the
study.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..codegen.catalogue import Catalogue
from ..codegen.compile.nvrtc import own_arch
from ..codegen.errors import DeclarationError, InfeasibleConfig, InputError
from ..codegen.problem import Problem
from ..codegen.render import KernelSource, render, source_files
from ..codegen.space import Config, Launch, Space, enumerate_legal
from ..codegen.target import Target
from .identity import StudyInputs, digest_of
from .search import FeasibleSet, Point
from .search.feasible import choice_order


@dataclass(frozen=True)
class Toolchain:
    """What turns sources into measured kernels, besides the sources.

    Attributes:
        compiler: name and version.
        flags: compile flags.
        driver: the device driver's version; empty where there is none.
        verification: version of the verification inputs and bounds.
    """

    compiler: str
    flags: tuple[str, ...]
    driver: str
    verification: str


@dataclass(frozen=True)
class Plan:
    """One study's subject.

    Attributes:
        problem: what is computed; of the error class `precision`, whichever it was of.
        precision: the error class that every variant must meet, and that the spaces' expressions read.
        spaces: template name -> its space; all templates that support the target, or the one asked for.
        toolchain: how variants are compiled and judged.
    """

    problem: Problem
    precision: str
    target: Target
    spaces: dict[str, Space]
    toolchain: Toolchain

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", self.problem.in_class(self.precision))

    def config(self, point: Point) -> Config:
        """The point's config as codegen takes it."""
        return Config(point.config)

    @cached_property
    def _files(self) -> dict[str, tuple[Path, tuple[int, int], str]]:
        """The files that variants are made of, each with a digest of the text that names the study and a
        stamp of the file's state when it had it."""
        paths = {name: path for space in self.spaces.values() for name, path in source_files(space).items()}
        return {name: (path, _stamp(path), _digest(_text(path))) for name, path in paths.items()}

    def source(self, point: Point) -> KernelSource:
        """The point's source text.

        Raises:
            InputError: a file that it is made of was changed since the study was named: what came of it would
                be taken for a result of the old one.
        """
        for name, (path, stamp, digest) in self._files.items():
            state = _stamp(path)
            if state == stamp:
                continue
            if state == (0, 0) or _digest(_text(path)) != digest:
                raise InputError(
                    f"{name} was changed while it was tuned; the same command starts a new study"
                )
            self._files[name] = (path, state, digest)  # touched, but the same
        return render(self.spaces[point.template], self.problem, self.config(point), self.target)

    def launch(self, point: Point) -> Launch:
        """The point's launch geometry at the workload's shape."""
        return self.spaces[point.template].launch(self.problem, self.config(point), self.target)

    @cached_property
    def defaults(self) -> dict[str, Config]:
        """Template -> its default config, or what stands in for it, where one is legal here."""
        return {
            name: default
            for name, space in self.spaces.items()
            if (default := space.default_for(self.problem, self.target)) is not None
        }

    @cached_property
    def portable_templates(self) -> frozenset[str]:
        """The templates whose instructions every newer architecture has too."""
        sources = {name: self.source(Point(name, config)) for name, config in self.defaults.items()}
        return frozenset(name for name, source in sources.items() if own_arch(source.text) is None)

    def feasible(self) -> FeasibleSet:
        """All legal points of all templates, enumerated anew.

        Raises:
            InfeasibleConfig: there is none.
        """
        configs = {name: space.feasible(self.problem, self.target) for name, space in self.spaces.items()}
        if not any(configs.values()):
            reasons = [
                space.check(self.problem, (space.default, *space.fallbacks)[-1], self.target)
                for space in self.spaces.values()
            ]
            reason = next((r for r in reasons if r), "every combination is refused")
            raise InfeasibleConfig(
                f"{self.problem.operator.name}: no config is legal here; for the default: {reason}"
            )
        return FeasibleSet(configs, self.defaults)

    def inputs(self) -> StudyInputs:
        """The inputs that name the study."""
        problem = self.problem
        return StudyInputs(
            operator=problem.operator.name,
            workload=problem.workload,
            operator_digest=problem.operator.digest,
            problem=problem.to_dict(),
            precision=self.precision,
            target=self.target.to_dict(),
            spaces={name: space_digest(space) for name, space in self.spaces.items()},
            sources=self._sources(),
            compiler=self.toolchain.compiler,
            flags=self.toolchain.flags,
            driver=self.toolchain.driver,
            verification=self.toolchain.verification,
            defaults={name: dict(config) for name, config in self.defaults.items()},
        )

    def _sources(self) -> dict[str, str]:
        digests = {name: digest for name, (_, _, digest) in self._files.items()}
        return digests | {f"{name}:rendered": self._rendered(space) for name, space in self.spaces.items()}

    def _rendered(self, space: Space) -> str:
        """One whole rendering stands for the code that renders: context, argument struct, epilogue
        expressions. It is of the first legal config in an order that does not hang on the YAML's.
        """
        parameters = sorted(space.parameters, key=lambda p: p.name)
        ordered = [
            dataclasses.replace(p, values=tuple(sorted(p.values, key=choice_order))) for p in parameters
        ]
        in_order = dataclasses.replace(space, parameters=tuple(ordered))
        config = next(enumerate_legal(in_order, self.problem, self.target), None)
        if config is None:
            return ""
        try:
            text = self.source(Point(space.template, config)).text
        except DeclarationError as error:
            if space.template in self.defaults:  # one that fails for the default too is not worth a search
                self.source(Point(space.template, self.defaults[space.template]))
            text = str(error)
        # Constants come in the order of the YAML, and the banner holds descriptions: so the lines are sorted
        # and the comments left out.
        return _digest("\n".join(sorted(line for line in text.splitlines() if not line.startswith("//"))))


def plan_study(
    catalogue: Catalogue,
    problem: Problem,
    precision: str,
    target: Target,
    toolchain: Toolchain,
    template: str | None = None,
) -> Plan:
    """Resolves the templates of a study.

    Args:
        precision: the error class that every variant must meet.
        template: the only template to tune; all that support the target when not given.

    Raises:
        UnknownName: no such template, or none supports the target's architecture.
    """
    spaces = [s for s in catalogue.spaces(problem.operator, target.kind, template) if target.arch in s.archs]
    if not spaces:
        spaces = [catalogue.space(problem.operator, target, template)]
    return Plan(problem, precision, target, {space.template: space for space in spaces}, toolchain)


def space_digest(space: Space) -> str:
    """SHA-256 (hex) of what decides a config's meaning. Help texts, the default, and the order of mappings
    and of lists (values, constraints, archs) decide nothing.
    """
    return digest_of(
        {
            "kind": space.kind,
            "file": space.file.name,
            "archs": sorted(space.archs),
            "parameters": {
                parameter.name: sorted(map(repr, parameter.values)) for parameter in space.parameters
            },
            "derived": {name: expression.text for name, expression in space.derived.items()},
            "constraints": sorted(rule.require.text for rule in space.constraints),
            "launch": {name: expression.text for name, expression in space.geometry.items()},
        }
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _stamp(path: Path) -> tuple[int, int]:
    """Changes when the file does; (0, 0) when it is gone."""
    try:
        state = path.stat()
    except OSError:
        return (0, 0)
    return (state.st_mtime_ns, state.st_size)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
