# SPDX-License-Identifier: Apache-2.0
"""The package's manifest: what is frozen, where it was measured, and what the extension is built from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .manifest_check import fault

FORMAT = 1
MEND = "install the package again"
ROOT = Path(__file__).resolve().parent.parent
"""The package's folder."""


class PackageError(RuntimeError):
    """Something about the package or its extension; the message is one line and says what would help."""


@dataclass(frozen=True)
class Manifest:
    """``manifest.json`` as read.

    Attributes:
        root: the package's folder.
        raw: the file's bytes.
        data: its content.
    """

    root: Path
    raw: bytes
    data: dict[str, Any]

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The frozen entries."""
        return self.data["entries"]

    @cached_property
    def build_key(self) -> str:
        """sha256 of all that decides the extension: the manifest (it holds the sources' digests) and the
        headers.
        """
        digest = hashlib.sha256(self.raw)
        for path in sorted((self.root / "runtime" / "native").glob("*.h")):
            digest.update(f"\0{path.name}\0".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def check_files(self, *folders: str) -> None:
        """Checks each frozen file against its digest.

        Args:
            folders: only what is in these; all where none is named.

        Raises:
            PackageError: one is missing or was edited.
        """
        mend = MEND if is_installed(self.root) else "run `coldforge freeze`"
        for name, expected in self.data["files"].items():
            if folders and name.partition("/")[0] not in folders:
                continue
            path = self.root / name
            try:
                found = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError:
                raise PackageError(f"{path} is missing; {mend}") from None
            if found != expected:
                raise PackageError(f"{path} differs from its digest in manifest.json; {mend}")


def is_installed(root: Path) -> bool:
    """Whether the package was installed, as by pip, rather than written where it stands."""
    return bool({"site-packages", "dist-packages"} & set(root.parts))


def load(root: Path = ROOT) -> Manifest:
    """Reads the package's manifest.

    Raises:
        PackageError: it is missing, malformed or of another format.
    """
    path = root / "manifest.json"
    try:
        raw = path.read_bytes()
        data = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        raise PackageError(f"cannot read {path}: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else None
        raise PackageError(f"{path} has format {found!r}; this runtime reads format {FORMAT}")
    wrong = fault(data)
    if wrong:
        raise PackageError(f"{path} is malformed: {wrong}")
    return Manifest(root, raw, data)
