# SPDX-License-Identifier: Apache-2.0
"""The ledger of a template: which of its instantiations were executed and found right, and where.

One file a space, beside it: `ledger.<template>.cuda.jsonl`. Its first line says what the instantiations are
of; each other line is one of them, sorted, so that two branches' files merge as text:

    ["32 16 16 ...", "<digest>", ["NVIDIA H200", "emulator"]]

the parameters' values in the space's order, the digest of what was executed (`device_code`), and the places
where it passed. Each line is a claim of its own: one that cannot be read (torn by a kill, the marks of a
merge conflict) claims nothing, and a claim whose digest nothing has any more is worth nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...codegen.atomic import write_text
from ...codegen.errors import ColdforgeError
from ...codegen.space import Config

FORMAT = 1
EMULATOR = "emulator"
Key = tuple[str, str]
"""A config's values and a digest."""


def config_text(config: Config) -> str:
    """The values of a config, in the order of its space."""
    return " ".join(str(value) for value in config.values())


@dataclass(frozen=True)
class Ledger:
    """A ledger's file. Any number of processes may use it at once.

    Attributes:
        path: the file; it need not exist.
        about: its first line: what the instantiations are of.
    """

    path: Path
    about: Mapping[str, Any]

    def record(self, config: Config, digest: str, place: str) -> None:
        """Adds a pass at once: a kill afterwards loses nothing.

        Raises:
            ColdforgeError: the file cannot be written.
        """
        line = _line((config_text(config), digest), [place])
        with self._locked():
            if not self.path.exists():
                write_text(self.path, _head(self.about))
            # The one file that grows in place: rewriting thousands of lines for each would cost more than
            # executing it. A torn last line is ended first, so that it spoils no other.
            with open(self.path, "r+b") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - 1))
                torn = end > 0 and file.read(1) != b"\n"
                file.write(("\n" if torn else "").encode() + line.encode())

    def tidy(self, current: Mapping[str, str], others: Iterable[Path] = ()) -> None:
        """Rewrites the file sorted, one line an instantiation, and without what is out of date.

        Args:
            current: the digest of every legal config, by its values. A config's claims for other digests go
                once there is one for this; those of configs that are not legal any more go in any case.
            others: ledgers whose claims are added.

        Raises:
            ColdforgeError: the file cannot be written.
        """
        with self._locked():
            rows = claims([self.path, *others])
            kept = {
                key: places
                for key, places in rows.items()
                if key[0] in current and (key[1] == current[key[0]] or (key[0], current[key[0]]) not in rows)
            }
            lines = sorted(_line(key, places) for key, places in kept.items())
            text = _head(self.about) + "".join(lines)
            if (kept or self.path.exists()) and _text(self.path) != text:
                write_text(self.path, text)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the folder's lock, and puts the file's name into its errors."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                yield
            finally:
                os.close(folder)
        except OSError as error:
            raise ColdforgeError(f"cannot write the ledger {self.path}: {error.strerror or error}") from error


def _head(about: Mapping[str, Any]) -> str:
    return json.dumps({"format": FORMAT, **about}) + "\n"


def _line(key: Key, places: Iterable[str]) -> str:
    return json.dumps([*key, sorted(places)], separators=(",", ":")) + "\n"


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")  # what is no UTF-8 claims nothing
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ColdforgeError(f"cannot read the ledger {path}: {error.strerror or error}") from error


def claims(paths: Iterable[Path]) -> dict[Key, frozenset[str]]:
    """Where each instantiation passed, by all of these ledgers; one that does not exist claims nothing."""
    found: dict[Key, frozenset[str]] = {}
    for line in (line for path in paths for line in _text(path).splitlines()):
        match _parsed(line):
            case [str(config), str(digest), [*places]] if all(isinstance(place, str) for place in places):
                found[config, digest] = found.get((config, digest), frozenset()) | frozenset(places)
    return found


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
