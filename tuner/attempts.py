# SPDX-License-Identifier: Apache-2.0
"""Which configs were being tried when a tuner died: a config that takes the tuner with it (or the machine)
must not be tried for ever.

Each tuner appends the key of a config to a file of its own before the device gets it, flushed to disk:

    $COLDFORGE_HOME/attempts/<study>/<mark of the process>.jsonl      {"key": "direct:TILE=8,..."}

An end in good order removes the file: it counts against no config. What a dead tuner left counts once
against each config it had begun and that has no finished trial. Nobody writes to another's file, so any
number of tuners may share a study; the files of dead ones are cut down to what still counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from ..codegen.atomic import sweep, write_text
from ..codegen.errors import ColdforgeError
from ..codegen.liveness import mark_in, own_mark

DEATHS = 2
"""So many tuners must have died on a config before it is given up."""
# Whether a tuner on another machine lives is unknown; after a day without a word it does not.
_FOREIGN_S = 24 * 3600.0


class Attempts:
    """The attempts on one study. Making one touches no disk. Use as a context manager around the loop, or
    call `close` however the loop ends in good order.

    Args:
        home: coldforge's folder.
        study_name: the study's unique name.
    """

    def __init__(self, home: Path, study_name: str) -> None:
        self.folder = home / "attempts" / quote(study_name, safe="+")
        self._own = self.folder / f"{own_mark()}.jsonl"
        self._handle = -1

    def __enter__(self) -> Attempts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error that nobody foresaw may be the config's doing, as a kill may: the record stays.
        if kind is None or issubclass(kind, ColdforgeError) or not issubclass(kind, Exception):
            self.close()
        else:
            self._release()

    def begin(self, point_key: str) -> None:
        """Notes that a config is about to run: on disk when this returns.

        Call it once everything else that the trial needs is ready (worker, references), right before the
        device gets the config, so that a death at start-up counts against none.

        Raises:
            ColdforgeError: the folder cannot be written.
        """
        line = json.dumps({"key": point_key}).encode() + b"\n"
        try:
            if self._handle < 0:
                self._open()
            if os.write(self._handle, line) != len(line):
                raise ColdforgeError(f"cannot write {self._own}: no space left on device")
            os.fdatasync(self._handle)
        except OSError as error:
            raise ColdforgeError(f"cannot write {self._own}: {error.strerror or error}") from error

    def suspects(self, finished: Collection[str]) -> tuple[str, ...]:
        """The configs that at least two tuners, now dead, had begun and that have no finished trial, sorted.

        Cuts down what dead tuners left. Call it at the start of a run.

        Args:
            finished: keys of the study's finished configs.

        Raises:
            ColdforgeError: the folder cannot be read.
        """
        sweep(self.folder)
        done, deaths = set(finished), Counter[str]()
        for path in self._of_the_dead():
            keys = _read(path)
            left = sorted(set(keys) - done)
            deaths.update(left)
            if not left or len(left) != len(keys):
                _cut(path, left)
        return tuple(sorted(key for key, count in deaths.items() if count >= DEATHS))

    def close(self) -> None:
        """Takes this tuner's record back: it ended in good order. May be called again."""
        self._release()
        # Should this fail, a config is at worst counted once.
        with contextlib.suppress(OSError):
            self._own.unlink(missing_ok=True)
            self.folder.rmdir()  # when it is empty

    def _release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            self._handle = os.open(self._own, flags, 0o644)
        except FileNotFoundError:  # another tuner removed the empty folder just now
            self.folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self._own, flags, 0o644)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _of_the_dead(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ColdforgeError(f"cannot read {self.folder}: {error.strerror or error}") from error
        return [self.folder / name for name in names if name.endswith(".jsonl") and _dead(self.folder / name)]


def _dead(path: Path) -> bool:
    mark = mark_in(path.name)
    alive = None if mark is None else mark.alive
    if alive is not None:
        return not alive
    try:
        return time.time() - path.stat().st_mtime > _FOREIGN_S
    except OSError:
        return False


def _read(path: Path) -> list[str]:
    """The keys in a file. A torn line, of a disk that was full or a machine that stopped, is skipped."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:  # another tuner cut it away
        return []
    except OSError as error:
        raise ColdforgeError(f"cannot read {path}: {error.strerror or error}") from error
    keys = []
    for line in lines:
        try:
            key = json.loads(line)["key"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(key, str):
            keys.append(key)
    return keys


def _cut(path: Path, left: list[str]) -> None:
    """Leaves only these keys. Two tuners that do it at once write the same."""
    # What stays uncut is read again next time, nothing worse.
    with contextlib.suppress(OSError, ColdforgeError):
        if left:
            last_word = path.stat().st_mtime_ns
            write_text(path, "".join(json.dumps({"key": key}) + "\n" for key in left))
            os.utime(path, ns=(last_word, last_word))
        else:
            path.unlink(missing_ok=True)
