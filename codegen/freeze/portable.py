# SPDX-License-Identifier: Apache-2.0
"""PTX beside a measured cubin: the same source, for GPUs of newer architectures, compiled by their driver.

Only a template whose instructions every newer architecture has can give it. A driver takes PTX of its own
CUDA version and older: so a package reaches the more machines the older the NVRTC was that froze it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..catalogue import Catalogue
from ..errors import CompileError, InputError, ToolMissing, UnknownName
from .units import level_of
from .winner import Winner

_VERSION = re.compile(r"^\.version (\d+)\.(\d+)$", re.MULTILINE)
_TARGET = re.compile(r"^\.target sm_(\d+)$", re.MULTILINE)
_ENTRY = re.compile(r"^(\.visible )?\.entry coldforge_kernel\(", re.MULTILINE)


@dataclass(frozen=True)
class PtxFacts:
    """What PTX says of itself.

    Attributes:
        least: the least compute capability that it may be compiled for, 80 for 8.0.
        isa: its version, 805 for 8.5.
    """

    least: int
    isa: int

    @property
    def arch(self) -> str:
        """The virtual architecture: ``compute_80``."""
        return f"compute_{self.least}"

    @property
    def version(self) -> str:
        """The version as NVIDIA writes it: ``8.5``."""
        return f"{self.isa // 100}.{self.isa % 100}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"arch": self.arch, "isa": self.version}


def ptx_facts(text: str, where: str = "PTX") -> PtxFacts:
    """Reads the head of PTX.

    Args:
        where: what a message calls it.

    Raises:
        InputError: it is no PTX of a kernel, or one of an architecture's own instructions (``sm_90a``).
    """
    version, target = _VERSION.search(text), _TARGET.search(text)
    if version is None or target is None or not _ENTRY.search(text) or not text.isascii() or "\0" in text:
        raise InputError(f"{where}: its PTX is no portable PTX of a kernel")
    return PtxFacts(int(target[1]), 100 * int(version[1]) + int(version[2]))


def with_ptx(
    winners: Sequence[Winner], known: Catalogue, held: Sequence[Winner] = ()
) -> tuple[list[Winner], dict[str, str]]:
    """Gives each cuda winner its PTX, where it has none.

    Args:
        known: the declarations; a template says there for which architectures it is.
        held: winners that may have it already: the same source keeps the same PTX, whatever NVRTC is here.

    Returns:
        The winners in their order, and for each cuda winner without PTX (by name) why it has none. One that
        would be frozen for its PTX alone and has none is left out.
    """
    there = {w.source_digest: w.ptx for w in (*held, *winners) if w.ptx is not None}
    found, why = [], {}
    for winner in winners:
        if winner.kind == "cuda" and winner.ptx is None:
            text = there.get(winner.source_digest)
            try:
                text = text or _compiled(winner, known)
                winner = dataclasses.replace(winner, ptx=text)
                there[winner.source_digest] = text
            except (CompileError, ToolMissing, InputError) as error:
                why[winner.name] = str(error)
                if winner.portable_only:
                    continue
        found.append(winner)
    return found, why


def _compiled(winner: Winner, known: Catalogue) -> str:
    from ..compile.nvrtc import own_arch, portable_ptx

    own = own_arch(winner.source_text)
    if own is not None:
        raise InputError(f"its instructions are those of {own} alone")
    text = portable_ptx(winner.source_text, winner.source_name, _least_arch(winner, known))
    ptx_facts(text, winner.name)
    return text


def _least_arch(winner: Winner, known: Catalogue) -> str:
    """The oldest architecture that the winner's template is for; its own when that is not declared."""
    try:
        operator = known.operator(winner.operator)
        spaces = known.spaces(operator, "cuda", winner.template)
    except UnknownName:
        return winner.arch
    archs = [arch for space in spaces for arch in space.archs]
    older = [arch for arch in archs if level_of(arch) <= level_of(winner.arch)]
    return min(older, key=level_of, default=winner.arch)
