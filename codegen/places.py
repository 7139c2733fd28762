# SPDX-License-Identifier: Apache-2.0
"""How messages name files and folders of a user's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import ColdforgeError

BUILTIN_ROOT = Path(__file__).resolve().parent.parent / "templates"


def as_given(path: Path) -> str:
    """The path from the folder that the command is given in, where it is in there; else the whole one. Two
    folders may hold a family of one name: the family's name alone does not say which is meant."""
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return str(path)
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@contextmanager
def placed(folder: Path) -> Iterator[None]:
    """Notes in what is raised which folder the files are in that it names. Its text stays without: studies
    keep such texts, and no path of this machine is to leave it."""
    try:
        yield
    except ColdforgeError as error:
        error.folder = error.folder or folder
        raise


def located(error: ColdforgeError) -> str:
    """The error's line for a person; a file of a user's with its folder."""
    text, folder = str(error), error.folder
    if folder is None or folder.is_relative_to(BUILTIN_ROOT):
        return text
    inside = text.removeprefix(f"{folder.name}/")
    file = inside.partition(":")[0].partition(" ")[0]
    return f"{as_given(folder / file)}{inside[len(file) :]}" if file and (folder / file).is_file() else text
