# SPDX-License-Identifier: Apache-2.0
"""Every file coldforge writes goes through here: build aside, flush to disk, rename. A reader never sees
half a file.

What is built aside bears the mark of its process in its name. A killed one leaves it behind; `sweep` tells
that from what a live process is still building.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
import time
from pathlib import Path

from .errors import ColdforgeError
from .liveness import mark_in, own_mark

_ASIDE = ".partial"
_FOREIGN_S = 24 * 3600.0
"""After so long what another machine left, or nobody knows who, is nobody's."""


def write_bytes(path: Path, data: bytes) -> None:
    """Writes ``data`` to ``path`` so that at every moment ``path`` holds the old or the new content, whole.

    Raises:
        ColdforgeError: the file cannot be written (disk full, read-only directory, ...).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=_prefix(path.name), suffix=_ASIDE, dir=path.parent)
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


def folder_aside(path: Path, name: str | None = None) -> Path:
    """Makes an empty folder to build ``path`` in, beside it; rename it into place, or remove it.

    Args:
        name: stands for the name of ``path`` in that of the folder.

    Raises:
        OSError: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=_prefix(name or path.name), suffix=_ASIDE, dir=path.parent))


def sweep(folder: Path) -> int:
    """Removes what processes that are dead were building in this very folder. Never fails: what cannot be
    removed stays.

    Returns:
        How many files and folders went.
    """
    swept = 0
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.name.startswith(".") and entry.name.endswith(_ASIDE) and _left_behind(entry):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
                swept += 1
    return swept


def _left_behind(entry: os.DirEntry[str]) -> bool:
    mark = mark_in(entry.name)
    alive = None if mark is None else mark.alive
    if alive is not None:
        return not alive
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _FOREIGN_S
    except FileNotFoundError:  # whoever built it is done
        return False


def _prefix(name: str) -> str:
    return f".{name[:100]}.{own_mark()}."


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
    aside = destination.with_name(f".{destination.name}.old-{os.getpid()}")  # never swept: it may be the last
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
