# SPDX-License-Identifier: Apache-2.0
"""(Problem, Config, Target) -> the text of one kernel variant. Pure: the same input gives the same bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta

from .catalogue import BUILTIN_ROOT
from .epilogue import epilogue_code
from .errors import DeclarationError
from .places import placed
from .problem import Problem
from .space import Config, Space
from .target import Target

SYMBOL = "coldforge_kernel"
INCLUDE_FOLDER = BUILTIN_ROOT / "include"
MACROS = "kernel.jinja"
OWN_PREFIX = "coldforge/"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.MULTILINE)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.MULTILINE)
LANGUAGES = {"cuda": "cuda", "cpu": "cpp"}
_FOREIGN = {"cuda": ".hpp", "cpu": ".cuh"}  # how the other kind's own headers end


@dataclass(frozen=True)
class KernelSource:
    """One variant's source.

    Attributes:
        text: complete: the project's own headers are inlined once each; only system includes remain.
        symbol: the entry point, the same in every variant, so that machine code can be compared.
        digest: sha256 of the text, hexadecimal.
        name: ``<operator>_<template>_<dtype>_<parameters>_<arch>_<first 8 of the digest>``: file and log key.
        language: ``cuda`` or ``cpp``.
    """

    text: str
    symbol: str
    digest: str
    name: str
    language: str


@dataclass(frozen=True)
class ArgField:
    """A field of the kernel's argument struct: 8 bytes each, in the order of the call."""

    name: str
    ctype: str


def context_fields(space: Space, problem: Problem, config: Config, target: Target) -> dict[str, Any]:
    """What a template may use. A test holds that every template uses exactly these names."""
    env = space.environment(problem, config, target)
    language = LANGUAGES[space.kind]
    return {
        "banner": _banner(space, problem, config, target),
        "symbol": SYMBOL,
        "dtype": problem.dtype,
        "problem": problem.constants,
        "config": dict(config),
        "derived": {name: env[name] for name in _compile_time(space, problem)},
        "args": kernel_args(space, problem),
        "epilogue": epilogue_code(problem.operator, language, problem.absent),
    }


def _compile_time(space: Space, problem: Problem) -> list[str]:
    """The derived values that read neither a run-time size nor the error class asked: one that does must not
    get into a source, which is right for every such size and is of the class that its config makes it."""
    late = {"precision", *problem.operator.family.run_time, *problem.operator.family.abi_sizes}
    names = []
    for name, expression in space.derived.items():
        if expression.names.isdisjoint(late):
            names.append(name)
        else:
            late.add(name)
    return names


def kernel_args(space: Space, problem: Problem) -> tuple[ArgField, ...]:
    """The argument struct: inputs, output, workspace if declared, run-time sizes, scalars."""
    element = problem.dtype.c_name
    fields = [ArgField(t.name, f"const {element}*") for t in problem.tensors]
    fields.append(ArgField(problem.output.name, f"{element}*"))
    if "workspace_bytes" in space.launch_exprs:
        fields.append(ArgField("workspace", "void*"))
    fields += [ArgField(name, "long long") for name in problem.sizes]
    fields += [ArgField(name, "double") for name in problem.scalar_names]
    return tuple(fields)


def render(space: Space, problem: Problem, config: Config, target: Target) -> KernelSource:
    """Renders one variant. The config must be legal (``Space.require``).

    Raises:
        DeclarationError: the template uses a name that the context lacks, or is malformed, or a header is
            missing.
    """
    with placed(space.file.parent):
        body = render_body(space, problem, config, target)
        text = inline_headers(body, space.file.name, space.file.parent)
    digest = hashlib.sha256(text.encode()).hexdigest()
    parameters = "_".join(str(value) for value in config.values())
    arch = target.arch.replace("-", "_")
    name = f"{problem.operator.name}_{space.template}_{problem.dtype.name}_{parameters}_{arch}_{digest[:8]}"
    return KernelSource(text, SYMBOL, digest, name, LANGUAGES[space.kind])


def render_body(space: Space, problem: Problem, config: Config, target: Target) -> str:
    """The template's own text, its headers still named and not inlined.

    Raises:
        DeclarationError: the template uses a name that the context lacks, or is malformed.
    """
    environment = _environment(space.file.parent)
    fields = context_fields(space, problem, config, target)
    try:
        macros = environment.get_template(MACROS).make_module(fields)
        body = environment.get_template(space.file.name).render(fields, kernel=macros)
    except jinja2.TemplateSyntaxError as error:
        raise _syntax_error(error, space.file, space.family) from None
    except Exception as error:  # a template runs code: whatever is raised there is its own fault
        said = " ".join(str(error).split()) or type(error).__name__
        raise DeclarationError(f"{space.family}/{space.file.name}: {said}") from None
    return body.rstrip("\n") + "\n"


def inline_headers(text: str, name: str, folder: Path = INCLUDE_FOLDER) -> str:
    """Replaces each ``#include "..."`` by the header's text, once; ``#line`` marks keep errors readable.

    Args:
        text: of a source.
        name: what the marks call it.
        folder: where its own headers stand.

    Raises:
        DeclarationError: a header that does not exist.
    """
    seen: set[Path] = set()

    def expand(body: str, file: str, beside: Path) -> str:
        pieces: list[str] = []
        position = 0
        for match in _INCLUDE.finditer(body):
            pieces.append(body[position : match.start()])
            position = match.end()
            path = header_path(match.group(1), beside, folder, file)
            if path in seen:
                continue
            seen.add(path)
            header = _shown(path, folder)
            line = body.count("\n", 0, match.end()) + 2
            inner = expand(_read(path, path.stat().st_mtime_ns), header, path.parent).rstrip("\n")
            pieces.append(f'#line 1 "{header}"\n{inner}\n#line {line} "{file}"')
        pieces.append(body[position:])
        return "".join(pieces)

    return expand(text, name, folder)


def header_path(header: str, beside: Path, folder: Path, file: str) -> Path:
    """The file that ``#include "header"`` names: coldforge's own under ``coldforge/``, else one beside the
    file that includes it, else one of the family's folder.

    Args:
        beside: the folder of the including file.
        folder: the family's.
        file: the including file's name, for messages.

    Raises:
        DeclarationError: there is none.
    """
    own = header.startswith(OWN_PREFIX)
    places = [INCLUDE_FOLDER] if own else [beside, folder]
    if ".." not in Path(header).parts and not Path(header).is_absolute():
        for place in places:
            if (place / header).is_file():
                return place / header
    where = "under templates/include" if own else "beside the template; a system header is written <...>"
    raise DeclarationError(f"{file}: no header {header!r} {where}")


def _shown(path: Path, folder: Path) -> str:
    """A header's name in line marks: never its place on this machine."""
    for place in (folder, INCLUDE_FOLDER):
        if path.is_relative_to(place):
            return str(path.relative_to(place))
    return path.name


def source_files(space: Space) -> dict[str, Path]:
    """Every file that a space's variants are made of, by the name that a study knows it by: the template,
    the macros and templates that it names, and all their headers.

    Raises:
        DeclarationError: a template or header is malformed or missing.
    """
    with placed(space.file.parent):
        return _source_files(space)


def _source_files(space: Space) -> dict[str, Path]:
    folder = space.file.parent
    found: dict[str, Path] = {}
    waiting = [space.file, INCLUDE_FOLDER / MACROS]
    while waiting:
        path = waiting.pop()
        name = f"{folder.name if path.is_relative_to(folder) else INCLUDE_FOLDER.name}/{_shown(path, folder)}"
        if name in found:
            continue
        found[name] = path
        text = _text(path)
        for header in _INCLUDE.findall(text):
            # The shared macros name the headers of both kinds of target.
            if not header.startswith(OWN_PREFIX) or not header.endswith(_FOREIGN[space.kind]):
                waiting.append(header_path(header, path.parent, folder, _shown(path, folder)))
        if path.suffix == ".jinja":
            waiting += _named_templates(text, path, folder)
    return found


def _named_templates(text: str, path: Path, folder: Path) -> list[Path]:
    """The templates that a template includes, imports or extends; where it computes a name, all that it can
    be."""
    named: list[Path] = []
    try:
        names = list(meta.find_referenced_templates(_environment(folder).parse(text)))
    except jinja2.TemplateSyntaxError as error:
        raise _syntax_error(error, path, folder.name) from None
    except RecursionError:
        raise DeclarationError(f"{folder.name}/{path.name}: nested too deeply") from None
    for name in names:
        if name is None:
            named += [p for p in sorted(folder.rglob("*")) if p.is_file()]
            continue
        named += [p for p in (folder / name, INCLUDE_FOLDER / name) if p.is_file()][:1]
    return named


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"cannot read {path}: {error}") from None


@lru_cache(maxsize=128)
def _read(path: Path, _stamp: int) -> str:
    return _PRAGMA_ONCE.sub("", _text(path))


def _syntax_error(error: jinja2.TemplateSyntaxError, path: Path, family: str) -> DeclarationError:
    file = Path(error.filename or path).name
    return DeclarationError(f"{family}/{file}:{error.lineno}: {error.message}")


@lru_cache(maxsize=16)
def _environment(folder: Path) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(folder), str(INCLUDE_FOLDER)]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _banner(space: Space, problem: Problem, config: Mapping[str, int | str], target: Target) -> str:
    choice = ", ".join(f"{name}={value}" for name, value in config.items())
    fixed = ", ".join(f"{name}={value}" for name, value in problem.specialisation.items())
    return (
        f"// Generated by coldforge from {space.family}/{space.file.name}; do not edit.\n"
        f"// operator: {problem.operator.name} ({problem.operator.summary})\n"
        f"// fixed:    {fixed}\n"
        f"// config:   {choice}\n"
        f"// target:   {target.arch}"
    )
