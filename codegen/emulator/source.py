# SPDX-License-Identifier: Apache-2.0
"""CUDA text -> text for g++: the very lines that NVRTC gets, in the same places, save for `__shared__`.

C++ has no word for memory of a block. Each declaration becomes, on its own line, one that asks the emulator
for it; what the words mean otherwise is in native/shim.
"""

from __future__ import annotations

import re

from ..errors import DeclarationError
from .lines import OWN_LINES

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
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def defined_entries(text: str) -> tuple[str, ...]:
    """Which of ENTRIES the text defines."""
    bare = without_comments(text)
    return tuple(name for name in ENTRIES if re.search(rf"\b{name}\s*\(", bare))


def for_host(text: str) -> str:
    """The text as g++ compiles it behind `-include shim.h`.

    Raises:
        DeclarationError: A `__shared__` declaration of a form that is not understood; the message names the
            line.
    """
    bare = without_comments(text)
    pieces: list[str] = []
    position = 0
    for index, match in enumerate(_DECLARATION.finditer(bare)):
        pieces += [text[position : match.start()], _rewritten(match, index, bare)]
        position = match.end()
    pieces.append(text[position:])
    stray = bare.count("__shared__") - len(_DECLARATION.findall(bare))
    if stray:
        raise DeclarationError("a __shared__ that is not followed by `type name[extents];`")
    entries = "".join(f"COLDFORGE_EMULATOR_ENTRY({name})\n" for name in defined_entries(text))
    return "".join(pieces) + f'\n#line 1 "{OWN_LINES}/entries"\n{entries}'


def _rewritten(match: re.Match[str], index: int, text: str) -> str:
    line = text.count("\n", 0, match.start()) + 1
    alignments = [found.strip() for found in _ALIGNMENT.findall(match[2])]
    variable = _VARIABLE.match(_ALIGNMENT.sub(" ", match[2]).strip())
    if variable is None or _has_several(match[2]):
        raise DeclarationError(
            f"line {line}: a __shared__ declaration must be `type name[extents];`, one variable each"
        )
    kind, name = variable["type"].strip(), variable["name"]
    extents = [extent.strip() for extent in _EXTENT.findall(variable["extents"])]
    lines = "\n" * match[0].count("\n")
    if match[1]:
        if extents != [""]:
            raise DeclarationError(
                f"line {line}: `extern __shared__` declares an array of no extent: `type name[];`"
            )
        return f"{kind}* {name} = coldforge_emulator::dynamic_shared();{lines}"
    whole = kind + "".join(f"[({extent})]" for extent in extents)
    alignment = alignments[0] if alignments else "1"
    return (
        f'auto& {name} = coldforge_emulator::static_shared<{whole}, {index}>("{name}", {alignment});{lines}'
    )


def _has_several(declaration: str) -> bool:
    """Whether a comma separates variables: one outside of all brackets."""
    depth = 0
    for character in declaration:
        depth += (character in "(<[") - (character in ")>]")
        if character == "," and depth == 0:
            return True
    return False
