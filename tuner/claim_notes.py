# SPDX-License-Identifier: Apache-2.0
"""What another process says that it is at: a file of one JSON line a word, to which it appends. It is asked
many times a second, so each reading goes on where the last one ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from ..codegen.errors import ColdforgeError


def words(text: bytes) -> Iterator[tuple[str, str]]:
    """The (word, config) pairs of some lines. A torn line, of a disk that was full or a machine that stopped,
    is skipped."""
    for line in text.split(b"\n"):
        try:
            ((word, key),) = json.loads(line).items()
        except (ValueError, AttributeError, RecursionError):
            continue
        if isinstance(key, str):
            yield word, key


class ClaimNotes:
    """The configs that one file claims. Making one touches no disk.

    Args:
        path: of the file, which may be gone, or be another one under the same name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin(file=-1)

    def _begin(self, file: int) -> None:
        self._file, self._read_bytes = file, 0
        self._claimed: set[str] = set()

    def claimed(self) -> set[str] | None:
        """What it claims now and does not release; None where it is gone. Do not change it.

        Raises:
            ColdforgeError: the file cannot be read.
        """
        try:
            with self._path.open("rb", buffering=0) as stream:
                state = os.fstat(stream.fileno())
                if state.st_ino != self._file or state.st_size < self._read_bytes:  # cut down meanwhile
                    self._begin(state.st_ino)
                stream.seek(self._read_bytes)
                self._take_in(stream.read())
        except FileNotFoundError:
            self._begin(file=-1)
            return None
        except OSError as error:
            raise ColdforgeError(f"cannot read {self._path}: {error.strerror or error}") from error
        return self._claimed

    def _take_in(self, text: bytes) -> None:
        whole = text[: text.rfind(b"\n") + 1]  # the rest of a line may be on its way
        for word, key in words(whole):
            (self._claimed.discard if word == "release" else self._claimed.add)(key)
        self._read_bytes += len(whole)
