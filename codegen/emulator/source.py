# SPDX-License-Identifier: Apache-2.0
"""CUDA text -> text for g++: the very lines that NVRTC gets, in the same places, save for `__shared__`.

C++ has no word for memory of a block. Each declaration becomes, on its own line, one that asks the emulator
for it; what the words mean otherwise is in native/shim.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import DeclarationError
from .lines import OWN_LINES, LineMap

ENTRIES = ("coldforge_kernel", "coldforge_finish")
"""The kernels that a source may define, in the order of their launch."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DECLARATION = re.compile(r"\b(extern\s+)?(?:static\s+)?__shared__\b([^;{}]*);")
_ALIGNMENT = re.compile(r"\b(?:alignas|__align__)\s*\(([^()]*)\)")
_VARIABLE = re.compile(
    r"^(?P<type>.*[\s*&>])(?P<name>[A-Za-z_]\w*)\s*(?P<extents>(?:\[[^\[\]]*\]\s*)*)$", re.DOTALL
)
_EXTENT = re.compile(r"\[([^\[\]]*)\]")


def without_comments(text: str) -> str:
    """The text with comments blanked out; every other character keeps its place."""
    return _COMMENT.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def defined_entries(text: str) -> tuple[str, ...]:
    """Which of ENTRIES the text defines."""
    bare = without_comments(text)
    return tuple(name for name in ENTRIES if re.search(rf"\b{name}\s*\(", bare))


def for_host(text: str, template: Path | None = None) -> str:
    """The text as g++ compiles it behind `-include shim.h`.

    Args:
        text: rendered.
        template: what it was rendered from, for the lines in messages.

    Raises:
        DeclarationError: A `__shared__` declaration of a form that is not understood; the message names the
            line.
    """
    lines = LineMap(text, template)
    bare = without_comments(text)
    pieces: list[str] = []
    position = 0
    for index, match in enumerate(_DECLARATION.finditer(bare)):
        pieces += [text[position : match.start()], _rewritten(match, index, bare, lines)]
        position = match.end()
    pieces.append(text[position:])
    stray = _DECLARATION.sub(_blank, bare).find("__shared__")
    if stray >= 0:
        place = lines.at(bare.count("\n", 0, stray) + 1)
        raise DeclarationError(f"{place}: a __shared__ that is not followed by `type name[extents];`")
    entries = "".join(f"COLDFORGE_EMULATOR_ENTRY({name})\n" for name in defined_entries(text))
    return "".join(pieces) + f'\n#line 1 "{OWN_LINES}/entries"\n{entries}'


def _rewritten(match: re.Match[str], index: int, text: str, lines: LineMap) -> str:
    place = lines.at(text.count("\n", 0, match.start()) + 1)
    alignments = [found.strip() for found in _ALIGNMENT.findall(match[2])]
    variable = _VARIABLE.match(_ALIGNMENT.sub(" ", match[2]).strip())
    if variable is None or _has_several(match[2]):
        raise DeclarationError(
            f"{place}: a __shared__ declaration must be `type name[extents];`, one variable each"
        )
    kind, name = variable["type"].strip(), variable["name"]
    extents = [extent.strip() for extent in _EXTENT.findall(variable["extents"])]
    breaks = "\n" * match[0].count("\n")
    if match[1]:
        if extents != [""]:
            raise DeclarationError(
                f"{place}: `extern __shared__` declares an array of no extent: `type name[];`"
            )
        return f"{kind}* {name} = coldforge_emulator::dynamic_shared();{breaks}"
    whole = kind + "".join(f"[({extent})]" for extent in extents)
    alignment = alignments[0] if alignments else "1"
    return (
        f'auto& {name} = coldforge_emulator::static_shared<{whole}, {index}>("{name}", {alignment});{breaks}'
    )


def _has_several(declaration: str) -> bool:
    """Whether a comma separates variables: one outside of all brackets."""
    depth = 0
    for character in declaration:
        depth += (character in "(<[") - (character in ")>]")
        if character == "," and depth == 0:
            return True
    return False
