# SPDX-License-Identifier: Apache-2.0
"""What a compiler left behind: one loadable binary and what its report says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Resources:
    """What one variant uses, as its compiler reports it; zero where a target has no such thing.

    Of a variant of two kernels each figure is the larger one; they run one after the other.

    Attributes:
        registers: Registers a thread (CUDA only).
        spill_store_bytes: Bytes stored by register spills, a thread (CUDA only).
        spill_load_bytes: Bytes loaded by register spills, a thread (CUDA only).
        shared_bytes: Static shared memory a block (CUDA only).
        stack_bytes: Local memory a thread (CUDA only).
        code_bytes: Size of the machine code, all of it.
    """

    registers: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    code_bytes: int = 0

    def to_dict(self) -> dict[str, int]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Resources:
        """The inverse of `to_dict`; unknown keys are ignored."""
        return cls(**{name: int(data[name]) for name in cls.__dataclass_fields__ if name in data})


@dataclass(frozen=True)
class Artifact:
    """One compiled kernel on disk.

    Attributes:
        path: The cubin or shared library.
        source_digest: SHA-256 of the source text (hex).
        name: The variant's name, for logs and file names.
        resources: What the kernel uses.
        code_digest: SHA-256 of the machine code alone (hex): equal for variants that differ in text only.
        compiler: Compiler and version, e.g. "g++ 12.2.0" or "nvrtc 13.0".
        flags: The compile flags, in order.
        seconds: What the compilation took; the first time, if this came from the cache.
        cached: Whether this came from the cache.
    """

    path: Path
    source_digest: str
    name: str
    resources: Resources
    code_digest: str
    compiler: str
    flags: tuple[str, ...]
    seconds: float
    cached: bool = field(default=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; the path as text."""
        return {
            "path": str(self.path),
            "source_digest": self.source_digest,
            "name": self.name,
            "resources": self.resources.to_dict(),
            "code_digest": self.code_digest,
            "compiler": self.compiler,
            "flags": list(self.flags),
            "seconds": self.seconds,
            "cached": self.cached,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Artifact:
        """The inverse of `to_dict`.

        Raises:
            KeyError: A field is missing.
        """
        return cls(
            path=Path(data["path"]),
            source_digest=str(data["source_digest"]),
            name=str(data["name"]),
            resources=Resources.from_dict(data["resources"]),
            code_digest=str(data["code_digest"]),
            compiler=str(data["compiler"]),
            flags=tuple(data["flags"]),
            seconds=float(data["seconds"]),
            cached=bool(data["cached"]),
        )
