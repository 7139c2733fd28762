# SPDX-License-Identifier: Apache-2.0
"""What is needed of a cubin, the ELF file that NVRTC makes for one GPU architecture."""

from __future__ import annotations

from .elf import Section, code_bytes, code_digest, sections

_TEXT = ".text."


def kernels(cubin: bytes) -> tuple[str, ...]:
    """Names of the functions that have machine code, in file order.

    Raises:
        ValueError: Not a whole ELF file.
    """
    return tuple(section.name.removeprefix(_TEXT) for section in sections(cubin) if _is_code(section))


def machine_code_digest(cubin: bytes) -> str:
    """SHA-256 (hex) of the machine code alone.

    Two variants with the same digest run the same instructions: literals are part of them, and the constant
    banks beside them hold only the arguments and addresses of symbols.

    Raises:
        ValueError: Not a whole ELF file.
    """
    return code_digest(cubin, _is_code)


def machine_code_bytes(cubin: bytes) -> int:
    """Size of the machine code.

    Raises:
        ValueError: Not a whole ELF file.
    """
    return code_bytes(cubin)


def _is_code(section: Section) -> bool:
    return section.executable and section.name.startswith(_TEXT)
