# SPDX-License-Identifier: Apache-2.0
"""Which configs tuners are at, so that two on one study do not try the same; and which were being tried when
a tuner died: a config that takes the tuner with it (or the machine) must not be tried for ever.

Each tuner appends to a file of its own: the key of a config that it is going to try, or is not going to try
after all, and before the device gets the config, flushed to disk, that it tries it:

    $COLDFORGE_HOME/attempts/<study>/<mark of the process>.jsonl      {"claim": "direct:TILE=8,..."}
                                                                      {"release": "direct:TILE=8,..."}
                                                                      {"key": "direct:TILE=8,..."}

An end in good order removes the file: it counts against no config. What a dead tuner left counts once
against each config it had begun and that has no finished trial. Nobody writes to another's file, so any
number of tuners may share a study; the files of dead ones are cut down to what still counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from ..codegen.atomic import sweep, write_text
from ..codegen.errors import ColdforgeError
from ..codegen.liveness import mark_in, own_mark
from .claim_notes import ClaimNotes, words
from .tools import NO_TERMS, Terms

DEATHS = 2
"""So many tuners must have died on a config before it is given up."""
# A tuner that says nothing for so long (stopped, or on another machine and dead) keeps others from nothing.
_QUIET_S = 120.0
# So often one says that it lives where it has nothing else to say.
_BEAT_S = 20.0
_LOCK_TRIES, _LOCK_EVERY_S = 500, 0.001
_FINALS_EVERY_S = 0.2
# Whether a tuner on another machine lives is unknown; after a day without a word it does not.
_FOREIGN_S = 24 * 3600.0


class Attempts:
    """The attempts on one study. Making one touches no disk. Use as a context manager around the loop, or
    call `close` however the loop ends in good order.

    Args:
        home: coldforge's folder.
        study_name: the study's unique name.
    """

    binding = False

    def __init__(self, home: Path, study_name: str) -> None:
        self.folder = home / "attempts" / quote(study_name, safe="+")
        self._own = self.folder / f"{own_mark()}.jsonl"
        self._handle, self._spoke = -1, 0.0
        self._claimed: set[str] = set()
        self._notes: dict[Path, ClaimNotes] = {}  # of the others that were seen since the last `claims`
        self.full = self.departed = False

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

    def claims(self) -> frozenset[str] | None:
        """The configs that other live tuners claim, finished ones included; None: there is no other one."""
        live = self._others()
        self.departed = not self._notes.keys() <= set(live)
        self._notes = {path: self._notes.get(path) or ClaimNotes(path) for path in live}
        return self._claimed_elsewhere() if live else None

    def _claimed_elsewhere(self) -> frozenset[str]:
        """Also notes who departed since the files were listed: what it claimed is not known any more."""
        found = [notes.claimed() for notes in self._notes.values()]
        self.departed |= None in found
        return frozenset().union(*(claimed for claimed in found if claimed is not None))

    def _others(self) -> list[Path]:
        """The files of other live tuners."""
        return [path for path in self._records() if path != self._own and _speaks(path)]

    @property
    def at_work(self) -> bool:
        """Whether a tuner that may live has begun on the study and not ended in good order."""
        return any(not _dead(path) for path in self._records())

    def offered(self) -> tuple[str, ...]:
        """Nothing: what a tuner gives back, others find by themselves."""
        return ()

    def claim(self, point_key: str, terms: Terms = NO_TERMS) -> bool:
        """Makes a config this tuner's; False when a live one has claimed it, when with those that others are
        at there would be too many, or when another tuner ended since the last `claims`: its file is gone, and
        what it finished last may not be known here.

        Raises:
            ColdforgeError: the folder cannot be written.
        """
        with self._reporting():
            if self._handle < 0:
                self._open()
            with _locked(self.folder):
                live = self._others()
                self.departed = not self._notes.keys() <= set(live)
                self._notes |= {path: ClaimNotes(path) for path in live if path not in self._notes}
                others = self._claimed_elsewhere()
                if self.departed:
                    self.full = False
                    return False
                at_work = ((others - set(terms.admitted)) | self._claimed) - set(terms.finished)
                self.full = terms.left is not None and len(at_work) >= terms.left
                if self.full or point_key in others:
                    return False
                self._append("claim", point_key)
                self._claimed.add(point_key)
        return True

    def release(self, point_key: str) -> None:
        """Takes a claim back: the config is not tried."""
        self._claimed.discard(point_key)
        if self._handle >= 0:
            with contextlib.suppress(OSError, ColdforgeError):  # others leave it alone while this one lives
                self._append("release", point_key)

    def begin(self, point_key: str) -> None:
        """Notes that a config is about to run: on disk when this returns.

        Call it once everything else that the trial needs is ready (worker, references), right before the
        device gets the config, so that a death at start-up counts against none.

        Raises:
            ColdforgeError: the folder cannot be written.
        """
        with self._reporting():
            if self._handle < 0:
                self._open()
            self._append("key", point_key)
            os.fdatasync(self._handle)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ColdforgeError(f"cannot write {self._own}: {error.strerror or error}") from error

    def _append(self, word: str, point_key: str) -> None:
        line = json.dumps({word: point_key}).encode() + b"\n"
        if os.write(self._handle, line) != len(line):
            raise ColdforgeError(f"cannot write {self._own}: no space left on device")
        self._spoke = time.monotonic()

    def beat(self) -> float | None:
        """Touches the file, if it is time to: what is compiled or runs for long must not look like a tuner
        that was stopped, whose configs others take."""
        if self._handle < 0:
            return None
        silent_s = time.monotonic() - self._spoke
        if silent_s < _BEAT_S:
            return _BEAT_S - silent_s
        self._spoke = time.monotonic()
        with contextlib.suppress(OSError):  # at worst others take what is claimed
            os.utime(self._handle)
        return _BEAT_S

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

    @contextlib.contextmanager
    def finals(self) -> Iterator[None]:
        """Around the finals, of one tuner at a time: on one machine those of two would disturb each other,
        and each would have a winner of its own.

        Raises:
            ColdforgeError: the folder cannot be written.
        """
        path = self.folder.with_name(f"{self.folder.name}.finals")
        with self._reporting():
            handle = _alone_on(path)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            os.close(handle)

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
        return [path for path in self._records() if _dead(path)]

    def _records(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ColdforgeError(f"cannot read {self.folder}: {error.strerror or error}") from error
        return [self.folder / name for name in names if name.endswith(".jsonl")]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Around a look and a claim. A tuner that was stopped with the lock in hand does not stop the others."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOCK_EVERY_S)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(handle)


def _alone_on(path: Path) -> int:
    """An open file that no other process has locked, once that is so. Who has it may remove it: then it is
    another one that the next one finds there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            time.sleep(_FINALS_EVERY_S)
            continue
        except OSError:  # a file system without locks
            return handle
        try:
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)


def _dead(path: Path) -> bool:
    mark = mark_in(path.name)
    alive = None if mark is None else mark.alive
    if alive is not None:
        return not alive
    try:
        return time.time() - path.stat().st_mtime > _FOREIGN_S
    except OSError:
        return False


def _speaks(path: Path) -> bool:
    """Whether a tuner that may live left it, and wrote to it lately."""
    try:
        quiet_s = time.time() - path.stat().st_mtime
    except OSError:
        return False
    mark = mark_in(path.name)
    return quiet_s < _QUIET_S and mark is not None and mark.alive is not False


def _read(path: Path) -> list[str]:
    """The keys of the configs that were tried, in order."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:  # another tuner cut it away
        return []
    except OSError as error:
        raise ColdforgeError(f"cannot read {path}: {error.strerror or error}") from error
    return [key for word, key in words(text) if word == "key"]


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
