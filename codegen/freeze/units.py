# SPDX-License-Identifier: Apache-2.0
"""What the extension is made of: one translation unit for each frozen cpu source and level, one cubin for
each source.

Entries may share a source (the same config won twice); then they share its units and its cubin.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ..errors import InputError
from .winner import Winner

KERNELS = PurePosixPath("kernels")
PORTABLE_ARCH = "x86-64-v2"
_NAME = re.compile(r"[A-Za-z0-9_]{1,180}\Z")
_FLAG = re.compile(r"-[A-Za-z0-9_=+,.-]+\Z")
_LEVELS = {"x86-64-v2": 2, "x86-64-v3": 3, "x86-64-v4": 4, "aarch64": 0}
_MARCH = {"aarch64": "armv8-a"}


@dataclass(frozen=True)
class Unit:
    """A frozen cpu source compiled for one instruction-set level.

    Attributes:
        source: path in the package.
        symbol: what ``coldforge_kernel`` is renamed to; ``coldforge_finish`` gets the same with ``_finish``.
        arch: the level.
        flags: compiler flags, ``-march`` included.
    """

    source: str
    symbol: str
    arch: str
    flags: tuple[str, ...]

    @property
    def machine(self) -> str:
        """The machine it is built on, as ``platform.machine()`` names it."""
        return "aarch64" if self.arch == "aarch64" else "x86_64"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, as the package's build reads it."""
        return {
            "source": self.source,
            "symbol": self.symbol,
            "arch": self.arch,
            "machine": self.machine,
            "flags": list(self.flags),
        }


@dataclass(frozen=True)
class Image:
    """What a GPU's driver loads: a measured cubin, or PTX.

    Attributes:
        file: path in the package.
        symbol: its name in the extension.
    """

    file: str
    symbol: str
    data: bytes


def level_of(arch: str) -> int:
    """The number by which variants are chosen: 2, 3, 4 on x86-64; the compute capability of ``sm_90`` or
    ``sm_90a``.

    Raises:
        InputError: no such architecture.
    """
    if arch in _LEVELS:
        return _LEVELS[arch]
    digits = arch.removeprefix("sm_").rstrip("a")
    if arch.startswith("sm_") and digits.isascii() and digits.isdigit():
        return int(digits)
    raise InputError(f"architecture {arch!r} cannot be frozen; known: {', '.join(_LEVELS)}, sm_NN, sm_NNa")


def source_path(winner: Winner) -> str:
    """Where the winner's source stands in the package.

    Raises:
        InputError: the source's name is no safe file name.
    """
    if not _NAME.match(winner.source_name):
        raise InputError(f"source name {winner.source_name!r} is no file name")
    return str(KERNELS / f"{winner.source_name}.{'cu' if winner.kind == 'cuda' else 'cpp'}")


def entry_units(winner: Winner) -> list[Unit]:
    """The builds of a cpu winner, the preferred one first: its own level, then the portable one."""
    if winner.kind != "cpu":
        return []
    archs = [winner.arch]
    if winner.arch != "aarch64" and winner.arch != PORTABLE_ARCH:
        archs.append(PORTABLE_ARCH)
    return [_unit(winner, arch) for arch in archs]


def _unit(winner: Winner, arch: str) -> Unit:
    for flag in winner.flags:
        if not _FLAG.match(flag):
            raise InputError(f"entry {winner.name}: compiler flag {flag!r} is not accepted")
    kept = [flag for flag in winner.flags if not flag.startswith("-march=")]
    flags = (*kept, f"-march={_MARCH.get(arch, arch)}")
    # The same text under other flags is another unit.
    mark = hashlib.sha256(" ".join(flags).encode()).hexdigest()[:6]
    symbol = f"coldforge_{winner.source_name}_{arch.replace('-', '_')}_{mark}"
    return Unit(source_path(winner), symbol, arch, flags)


def all_units(winners: Sequence[Winner]) -> list[Unit]:
    """The units of all winners, each once, in the order of their symbols."""
    units = {unit.symbol: unit for winner in winners for unit in entry_units(winner)}
    return [units[symbol] for symbol in sorted(units)]


def cubins_by_entry(winners: Sequence[Winner]) -> dict[str, Image]:
    """The cubin of each cuda winner, by entry name. A source compiled in two ways has two files."""
    binaries: dict[str, set[str]] = {}
    for winner in winners:
        if winner.binary is not None:
            binaries.setdefault(winner.source_name, set()).add(winner.binary_digest)
    found: dict[str, Image] = {}
    for winner in winners:
        if winner.binary is None:
            continue
        several = len(binaries[winner.source_name]) > 1
        stem = winner.source_name + (f"_{winner.binary_digest[:8]}" if several else "")
        found[winner.name] = Image(str(KERNELS / f"{stem}.cubin"), f"coldforge_cubin_{stem}", winner.binary)
    return found


def ptx_by_entry(winners: Sequence[Winner]) -> dict[str, Image]:
    """The PTX of each winner that has some, by entry name. Entries of one source share the first's."""
    texts: dict[str, str] = {}
    for winner in winners:
        if winner.ptx is not None:
            texts.setdefault(winner.source_name, winner.ptx)
    return {
        w.name: Image(
            str(KERNELS / f"{w.source_name}.ptx"),
            f"coldforge_ptx_{w.source_name}",
            texts[w.source_name].encode("ascii"),
        )
        for w in winners
        if w.ptx is not None
    }
