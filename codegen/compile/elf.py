# SPDX-License-Identifier: Apache-2.0
"""Reads what is needed of 64-bit little-endian ELF files (.o, .so, cubin): sections and symbols."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _NOBITS, _DYNSYM = 2, 8, 11
_EXECUTABLE = 0x4
_BINDINGS = {0: "local", 1: "global", 2: "weak", 10: "unique"}


@dataclass(frozen=True)
class Section:
    """One section; `data` is empty for one that takes no space in the file."""

    name: str
    data: bytes
    executable: bool


@dataclass(frozen=True)
class Symbol:
    """One symbol. `binding` is local, global, weak or unique; `defined` is false for an import."""

    name: str
    binding: str
    defined: bool
    size_bytes: int


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode("utf-8", "replace")


def _raw_sections(data: bytes) -> list[tuple[tuple[int, ...], bytes]]:
    if len(data) < _HEADER.size or data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    header = _HEADER.unpack_from(data)
    offset, size, count = header[6], header[11], header[12]
    raw = []
    for index in range(count):
        fields = _SECTION.unpack_from(data, offset + index * size)
        start, length = fields[4], fields[5]
        raw.append((fields, b"" if fields[1] == _NOBITS else data[start : start + length]))
    return raw


def sections(data: bytes) -> list[Section]:
    """All sections in file order.

    Raises:
        ValueError: `data` is not a whole 64-bit little-endian ELF file.
    """
    try:
        raw = _raw_sections(data)
        names = raw[_HEADER.unpack_from(data)[13]][1] if raw else b""
        return [Section(_text(names, f[0]), content, bool(f[2] & _EXECUTABLE)) for f, content in raw]
    except (struct.error, IndexError) as error:
        raise ValueError(f"a damaged ELF file: {error}") from error


def symbols(data: bytes) -> list[Symbol]:
    """All named symbols, static and dynamic.

    Raises:
        ValueError: `data` is not a whole 64-bit little-endian ELF file.
    """
    found = []
    try:
        raw = _raw_sections(data)
        for fields, content in raw:
            if fields[1] not in (_SYMTAB, _DYNSYM):
                continue
            names = raw[fields[6]][1]
            for name, info, _other, section, _value, size in _SYMBOL.iter_unpack(content):
                if name:
                    binding = _BINDINGS.get(info >> 4, str(info >> 4))
                    found.append(Symbol(_text(names, name), binding, section != 0, size))
    except (struct.error, IndexError) as error:
        raise ValueError(f"a damaged ELF file: {error}") from error
    return found


def _machine_code(section: Section) -> bool:
    return section.executable and section.name.startswith(".text")


def code_digest(data: bytes, wanted: Callable[[Section], bool] = _machine_code) -> str:
    """SHA-256 (hex) of the sections `wanted` picks: by default all executable `.text*`, in file order."""
    digest = hashlib.sha256()
    for section in sections(data):
        if wanted(section):
            digest.update(f"{section.name}:{len(section.data)}\n".encode())
            digest.update(section.data)
    return digest.hexdigest()


def code_bytes(data: bytes) -> int:
    """Bytes of machine code in all executable `.text*` sections."""
    return sum(len(section.data) for section in sections(data) if _machine_code(section))


_VERNEED, _VERNAUX = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_GNU_VERNEED = 0x6FFFFFFE


def needed_versions(data: bytes) -> set[str]:
    """The symbol versions that a library asks of others, as ``GLIBC_2.34`` or ``GLIBCXX_3.4.21``.

    Raises:
        ValueError: `data` is not a whole 64-bit little-endian ELF file.
    """
    found = set()
    try:
        raw = _raw_sections(data)
        for fields, content in raw:
            if fields[1] != _GNU_VERNEED:
                continue
            names, at = raw[fields[6]][1], 0
            for _ in range(fields[7]):  # sh_info: how many libraries
                _version, count, _file, auxiliary, following = _VERNEED.unpack_from(content, at)
                place = at + auxiliary
                for _ in range(count):
                    _hash, _flags, _other, name, step = _VERNAUX.unpack_from(content, place)
                    found.add(_text(names, name))
                    place += step
                at += following
    except (struct.error, IndexError) as error:
        raise ValueError(f"a damaged ELF file: {error}") from error
    return found
