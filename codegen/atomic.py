# SPDX-License-Identifier: Apache-2.0
"""Every file coldforge writes goes through here: build aside, flush to disk, rename. A reader never sees
half a file."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from pathlib import Path

from .errors import ColdforgeError


def write_bytes(path: Path, data: bytes) -> None:
    """Writes ``data`` to ``path`` so that at every moment ``path`` holds the old or the new content, whole.

    Raises:
        ColdforgeError: the file cannot be written (disk full, read-only directory, ...).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise ColdforgeError(f"cannot write {path}: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """``write_bytes`` for UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def replace_tree(source: Path, destination: Path) -> None:
    """Moves the finished directory ``source`` to ``destination``, replacing what stands there.

    Both must be on one file system. Where the kernel can exchange two directories in one step, there is no
    moment without a tree; elsewhere the old tree is renamed aside before the new one takes its place. The old
    tree is removed last.

    Raises:
        ColdforgeError: a rename failed; the old tree is then back in place.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        if not destination.exists():
            os.replace(source, destination)
            return
        if not _exchange(source, destination):
            _rename_aside(source, destination)
        shutil.rmtree(source, ignore_errors=True)
    except OSError as error:
        raise ColdforgeError(f"cannot replace {destination}: {error.strerror or error}") from error


def _rename_aside(source: Path, destination: Path) -> None:
    """Puts ``source`` in the place of ``destination`` and the old tree in the place of ``source``."""
    aside = destination.with_name(f".{destination.name}.old-{os.getpid()}")
    os.replace(destination, aside)
    try:
        os.replace(source, destination)
    except OSError:
        os.replace(aside, destination)
        raise
    os.replace(aside, source)


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges two directories by renameat2; False where the system or the file system cannot."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0
