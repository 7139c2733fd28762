# SPDX-License-Identifier: Apache-2.0
"""How messages name files and folders of a user's."""

from __future__ import annotations

from pathlib import Path


def as_given(path: Path) -> str:
    """The path from the folder that the command is given in, where it is in there; else the whole one. Two
    folders may hold a family of one name: the family's name alone does not say which is meant."""
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return str(path)
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
