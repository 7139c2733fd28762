# SPDX-License-Identifier: Apache-2.0
"""What of a rendered text a compiler sees, and its digest: the name of an instantiation in the ledger.

A comment, an indentation or a moved line in a header must not make thousands of results worthless; a changed
token must. Both branches of the preprocessor's conditions count: the GPU takes one, the emulator the other.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache

from ...codegen.render import KernelSource
from ...codegen.space import Space

DIGEST_LETTERS = 16
_LINE_MARK = re.compile(r"^[ \t]*#[ \t]*line\b[^\n]*\n?", re.MULTILINE)
_LITERAL = (
    r'R"(?P<edge>[^()\\\s]{0,16})\(.*?\)(?P=edge)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'"  # not the separator of digits
)
_COMMENT = re.compile(rf"(?P<literal>{_LITERAL})|//(?:\\\n|[^\n])*|/\*.*?\*/", re.DOTALL)
_BLANK = re.compile(rf"(?P<literal>{_LITERAL})|\s+", re.DOTALL)

_APART = "()[]{};,"


def device_code(text: str) -> str:
    """A source text without comments, `#line` marks and layout. Directives keep their lines."""
    return "\n".join(filter(None, map(_bare, _LINE_MARK.split(text))))


@lru_cache(maxsize=256)  # most pieces are headers, the same in every variant
def _bare(piece: str) -> str:
    """One file's share of a text."""
    lines: list[str] = []
    running: list[str] = []

    def flush() -> None:
        if running:
            lines.append(_BLANK.sub(_least_space, " ".join(running)))
            running.clear()

    uncommented = _COMMENT.sub(_one_space, piece).replace("\\\n", " ")
    for line in uncommented.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            flush()
            lines.append(_BLANK.sub(_one_space, stripped))
        elif stripped:
            running.append(stripped)
    flush()
    return "\n".join(lines)


def _least_space(match: re.Match[str]) -> str:
    """None at the ends and beside brackets and separators, where it tells nothing apart."""
    if match["literal"]:
        return match["literal"]
    text, start, end = match.string, match.start(), match.end()
    alone = start == 0 or end == len(text) or text[start - 1] in _APART or text[end] in _APART
    return "" if alone else " "


def _one_space(match: re.Match[str]) -> str:
    return match["literal"] or " "


def instantiation_digest(space: Space, source: KernelSource) -> str:
    """Names what is executed: the device code of a variant and how it is launched.

    Args:
        space: where the variant comes from.
        source: the rendered variant.

    Returns:
        The first letters of a SHA-256 (hex).
    """
    whole = device_code(source.text) + "\0" + json.dumps(_launch(space), sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:DIGEST_LETTERS]


def _launch(space: Space) -> dict[str, str]:
    """The launch expressions, and of the derived ones those that they read."""
    found = {name: expression.text for name, expression in space.geometry.items()}
    wanted = {name for expression in space.geometry.values() for name in expression.names}
    for name, expression in reversed(list(space.derived.items())):
        if name in wanted:
            found[f"derived {name}"] = expression.text
            wanted |= expression.names
    return found
