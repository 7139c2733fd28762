# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels by the content that made them.

An entry is a folder named by a digest of everything that decides the machine code. It is built aside and
renamed into place, so it is there whole or not at all; a damaged one (a disk that filled up, a stray
edit) fails its digest and is built again. Any number of processes may share a cache: the first to rename
wins, the others take its entry. What a killed process left half built goes with the next `sweep`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ..atomic import folder_aside, sweep, write_text
from ..errors import ColdforgeError
from .artifact import Artifact

_FORMAT = 1
_RECORD = "artifact.json"


def entry_key(text: str, compiler: str, flags: Sequence[str], arch: str) -> str:
    """The key of one compilation: a digest (hex) of the self-contained text, compiler, flags and arch."""
    payload = json.dumps([_FORMAT, text, compiler, list(flags), arch])
    return hashlib.sha256(payload.encode()).hexdigest()


class Cache:
    """A folder of compiled kernels. Making one touches no disk; it may be sent to other processes."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"

    def entry_path(self, key: str) -> Path:
        """Where the entry of `key` stands, whether or not it exists."""
        return self.root / key[:2] / key

    def load(self, key: str) -> Artifact | None:
        """The artifact of `key` with `cached` set, or None where there is none or it is damaged."""
        entry = self.entry_path(key)
        try:
            record = json.loads((entry / _RECORD).read_text("utf-8"))
            path = entry / record["file"]
            if hashlib.sha256(path.read_bytes()).hexdigest() != record["sha256"]:
                return None
            return Artifact.from_dict({**record["artifact"], "path": path, "cached": True})
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None

    def get_or_build(self, key: str, build: Callable[[Path], Artifact]) -> Artifact:
        """The artifact of `key`, built if it is not there.

        Args:
            key: from `entry_key`.
            build: compiles into the folder it is given and returns an Artifact whose path lies there; files
                it leaves beside the binary (source, log) are kept with the entry.

        Raises:
            ColdforgeError: the folder cannot be written. What `build` raises passes through, leaving nothing.
        """
        found = self.load(key)
        if found is not None:
            return found
        entry = self.entry_path(key)
        try:
            work = folder_aside(entry, key[:16])
        except OSError as error:
            raise ColdforgeError(f"cannot write the cache {self.root}: {error.strerror or error}") from error
        try:
            artifact = build(work)
            _record(work, artifact)
            self._publish(work, entry, key)
            return dataclasses.replace(artifact, path=entry / artifact.path.name)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def sweep(self) -> int:
        """Removes what killed processes left half built; gives how many. Some milliseconds for a large cache,
        and harmless beside other processes that use it.
        """
        try:
            shelves = [path for path in self.root.iterdir() if len(path.name) == 2]
        except OSError:  # none yet, or none to be read: the first compilation tells
            return 0
        return sum(sweep(shelf) for shelf in shelves)

    def _publish(self, work: Path, entry: Path, key: str) -> None:
        """Renames `work` to `entry`. A whole entry that got there first stays; a damaged one gives way."""
        for _ in range(100):
            try:
                os.rename(work, entry)
                return
            except OSError as error:
                if not entry.exists():
                    raise ColdforgeError(f"cannot write {entry}: {error.strerror or error}") from error
            if self.load(key) is not None:
                return
            aside = folder_aside(entry, key[:16])
            with contextlib.suppress(OSError):  # another writer may have moved it first
                os.rename(entry, aside)
            shutil.rmtree(aside, ignore_errors=True)
        raise ColdforgeError(f"cannot write {entry}: other processes keep replacing it with damaged entries")


def _record(work: Path, artifact: Artifact) -> None:
    """Writes the entry's record and sees to it that the binary itself is on disk before the rename."""
    handle = os.open(artifact.path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    values = {**artifact.to_dict(), "path": artifact.path.name, "cached": False}
    digest = hashlib.sha256(artifact.path.read_bytes()).hexdigest()
    record = {"format": _FORMAT, "file": artifact.path.name, "sha256": digest, "artifact": values}
    write_text(work / _RECORD, json.dumps(record, indent=1))
