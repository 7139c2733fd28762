# SPDX-License-Identifier: Apache-2.0
"""The built extension as the loader sees it: loaded once, its variants named, enabled, and run by choice."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import torch

from .manifest import PackageError
from .namespace import NAMESPACE

_MARK = b"coldforge-build-key:"


class Extension:
    """A loaded extension. Its variants are numbered; a name is ``<entry>@<arch>``.

    Args:
        path: the shared library.
        build_key: what it must have been built from.

    Raises:
        PackageError: it was built from something else, its namespace is taken, or PyTorch cannot load it.
    """

    def __init__(self, path: Path, build_key: str) -> None:
        # Looked for in the file, before loading: once its operators are registered there is no way back.
        if not is_whole(path, build_key):
            raise PackageError(f"{path} is damaged, or was built from another manifest")
        if _namespace_is_taken():
            raise PackageError(
                f"another library has registered the PyTorch namespace {NAMESPACE!r} in this process"
            )
        try:
            torch.ops.load_library(str(path))
        except (OSError, RuntimeError) as error:
            raise PackageError(f"PyTorch {torch.__version__} cannot load {path}: {error}") from None
        self._library = ctypes.CDLL(str(path))
        self._library.coldforge_variant_name.restype = ctypes.c_char_p
        count = self._library.coldforge_variant_count()
        self.variants = [self._library.coldforge_variant_name(number).decode() for number in range(count)]

    def runs_here(self, number: int) -> bool:
        """Whether this machine's CPU can run the variant; true for a GPU's, whose device is known at the
        call only.
        """
        return bool(self._library.coldforge_variant_runs_here(number))

    def enable(self, number: int, enabled: bool) -> None:
        """Lets the variant be dispatched, or not."""
        self._library.coldforge_enable_variant(number, int(enabled))

    def enabled(self) -> list[str]:
        """The variants that may be dispatched."""
        return [name for n, name in enumerate(self.variants) if self._library.coldforge_variant_enabled(n)]

    def last(self) -> str | None:
        """The variant that answered this thread's last call; None for the PyTorch reference."""
        number = self._library.coldforge_last_variant()
        return self.variants[number] if number >= 0 else None

    @contextlib.contextmanager
    def only(self, number: int) -> Iterator[None]:
        """Makes this thread's calls take that variant or the reference, nothing else."""
        self._library.coldforge_force_variant(number)
        try:
            yield
        finally:
            self._library.coldforge_force_variant(-1)


def is_whole(path: Path, build_key: str) -> bool:
    """Whether the library is there, bears the build's mark and reaches to its end (its table of sections)."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            (offset,) = struct.unpack_from("<Q", content, 40)  # of a 64-bit ELF file
            size, count = struct.unpack_from("<HH", content, 58)
            marked = content.find(_MARK + build_key.encode()) >= 0
            return marked and offset + size * count <= len(content)
    except (OSError, ValueError, struct.error):  # missing, empty, cut off in its header
        return False


def _namespace_is_taken() -> bool:
    # A second library that defines the same namespace aborts the process, so it is asked before.
    names = torch._C._dispatch_get_all_op_names()
    return any(name.startswith(f"{NAMESPACE}::") for name in names)
