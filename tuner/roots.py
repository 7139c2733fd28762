# SPDX-License-Identifier: Apache-2.0
"""Where the declarations of a user's operators are: a study remembers the folders of ``--templates``, so that
later commands on this machine find them again. The paths never leave it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..codegen.catalogue import Catalogue, catalogue
from ..codegen.errors import InputError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


def remembered(storage: BaseStorage | None, operators: Iterable[str]) -> dict[str, tuple[Path, ...]]:
    """Operator -> the folders that its newest study was tuned from, of those that have trials where any has;
    one whose studies name no folder is left out."""
    from .study import Study, list_studies, newest_of

    wanted = set(operators)
    if not wanted:
        return {}
    found: dict[str, list[Study]] = {}
    for study in list_studies(storage):  # the newest last
        if study.about["operator"] in wanted and study.roots:
            found.setdefault(study.about["operator"], []).append(study)
    newest = {operator: newest_of(studies) for operator, studies in found.items()}
    return {operator: tuple(Path(root) for root in study.roots) for operator, study in newest.items()}


def declared_for(name: str, given: Catalogue, url: str | None, home: Path) -> Catalogue:
    """The declarations, with those of an operator that a study alone knows of.

    Args:
        name: the operator.
        given: the built-in declarations and those of ``--templates``.
        url: of the studies; None: under ``home``.

    Raises:
        InputError: the study's folder is gone.
    """
    if name in given.operators:
        return given
    from .storage import open_storage, storage_faults

    storage = open_storage(url, home, create=False)
    with storage_faults(storage):
        roots = remembered(storage, [name])
    return extended(given, roots)


def extended(given: Catalogue, roots: Mapping[str, Sequence[Path]]) -> Catalogue:
    """The declarations with further folders.

    Args:
        given: what is there.
        roots: operator -> folders; not read for an operator that is declared already.

    Raises:
        InputError: a folder is gone.
    """
    more: list[Path] = []
    for operator, folders in roots.items():
        if operator in given.operators:
            continue
        for folder in folders:
            if not folder.is_dir():
                raise InputError(
                    f"{operator} was tuned from {folder}, which is gone; say --templates DIR where it is now"
                )
        more += folders
    return catalogue(*given.roots[1:], *more) if more else given
