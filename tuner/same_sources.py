# SPDX-License-Identifier: Apache-2.0
"""Whether a study was tuned from the very text that a folder of ``--templates`` holds: of two folders with
one operator, the winner of the one is no answer for the other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..codegen.catalogue import BUILTIN_ROOT, Catalogue
from ..codegen.places import as_given
from ..codegen.render import INCLUDE_FOLDER, source_files

_SHARED = f"{INCLUDE_FOLDER.name}/"


class SameSources:
    """Compares studies with the folders that a command line gives.

    Args:
        given: the built-in declarations and those of ``--templates``.
    """

    def __init__(self, given: Catalogue) -> None:
        self._given = given
        self._texts: dict[tuple[str, str, str], dict[str, str]] = {}

    def difference(self, about: Mapping[str, Any]) -> str:
        """What of a study's operator is not as in the folder given; empty where nothing is, where the folders
        do not hold the operator's family, and where the study does not say what it was made of.

        Raises:
            InputError: a template in the folder cannot be read.
        """
        operator = self._given.operators.get(about["operator"])
        sources, spaces = about.get("sources"), about.get("spaces")
        if operator is None or operator.family.folder.is_relative_to(BUILTIN_ROOT):
            return ""  # coldforge's own text changes with its version, which makes no winner wrong
        if not isinstance(sources, Mapping) or not isinstance(spaces, Mapping):
            return ""
        folder = as_given(operator.family.folder)
        if about.get("operator_digest") != operator.digest:
            return f"it was tuned for another declaration of {operator.name} than {folder} holds"
        then = _by_file(sources)
        kind = str((about.get("target") or {}).get("kind"))
        for template in spaces:  # only those that it was tuned with
            now = self._now(operator.name, kind, template)
            if not now:
                return f"its template {template} is not in {folder}"
            for name, digest in now.items():
                if then.get(name) != digest:
                    return f"it was tuned from another {name} than {folder} holds"
        return ""

    def _now(self, operator: str, kind: str, template: str) -> dict[str, str]:
        """File -> digest of the text that a template of the folder is made of, but for coldforge's own."""
        key = (operator, kind, template)
        if key not in self._texts:
            spaces = self._given.spaces(self._given.operators[operator], kind)
            files = {n: p for s in spaces if s.template == template for n, p in source_files(s).items()}
            own = {n: _digest(p) for n, p in files.items() if not p.is_relative_to(BUILTIN_ROOT)}
            self._texts[key] = _by_file(own)
        return self._texts[key]


def _by_file(sources: Mapping[str, Any]) -> dict[str, Any]:
    """By the name in the family's folder, which is what a user calls the file."""
    return {n if n.startswith(_SHARED) else n.partition("/")[2]: digest for n, digest in sources.items()}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()
