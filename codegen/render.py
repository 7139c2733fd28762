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

from .catalogue import BUILTIN_ROOT
from .epilogue import epilogue_code
from .errors import DeclarationError
from .problem import Problem
from .space import Config, Space
from .target import Target

SYMBOL = "coldforge_kernel"
INCLUDE_FOLDER = BUILTIN_ROOT / "include"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"(coldforge/[A-Za-z0-9_./]+)"[^\n]*$', re.MULTILINE)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.MULTILINE)
LANGUAGES = {"cuda": "cuda", "cpu": "cpp"}


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
    """The derived values that do not read a run-time size: one that does must not get into a source, which is
    right for every such size."""
    late = {*problem.operator.family.run_time, *problem.operator.family.abi_sizes}
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
    text = inline_headers(render_body(space, problem, config, target), space.file.name)
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
    try:
        template = _environment(space.file.parent).get_template(space.file.name)
        body = template.render(context_fields(space, problem, config, target))
    except jinja2.TemplateSyntaxError as error:
        file = Path(error.filename or space.file).name
        raise DeclarationError(f"{space.family}/{file}:{error.lineno}: {error.message}") from None
    except (jinja2.TemplateError, UnicodeDecodeError, ArithmeticError, LookupError, TypeError) as error:
        raise DeclarationError(f"{space.family}/{space.file.name}: {error}") from None
    return body.rstrip("\n") + "\n"


def inline_headers(text: str, name: str) -> str:
    """Replaces each ``#include "coldforge/..."`` by the header's text, once; ``#line`` marks keep errors
    readable.

    Raises:
        DeclarationError: a header that does not exist.
    """
    seen: set[str] = set()

    def expand(body: str, file: str) -> str:
        pieces: list[str] = []
        position = 0
        for match in _INCLUDE.finditer(body):
            pieces.append(body[position : match.start()])
            position = match.end()
            header = match.group(1)
            if header in seen:
                continue
            seen.add(header)
            line = body.count("\n", 0, match.end()) + 2
            inner = expand(_header(header, file), header).rstrip("\n")
            pieces.append(f'#line 1 "{header}"\n{inner}\n#line {line} "{file}"')
        pieces.append(body[position:])
        return "".join(pieces)

    return expand(text, name)


@lru_cache(maxsize=128)
def _read(path: Path, _stamp: int) -> str:
    return _PRAGMA_ONCE.sub("", path.read_text(encoding="utf-8"))


def _header(header: str, file: str) -> str:
    path = INCLUDE_FOLDER / header
    if ".." in header or not path.is_file():
        raise DeclarationError(f"{file}: no header {header!r} under templates/include")
    return _read(path, path.stat().st_mtime_ns)


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
