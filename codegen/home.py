# SPDX-License-Identifier: Apache-2.0
"""The folder in which studies and compiled variants are kept: asked for before work begins that needs it."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import InputError

KEPT = ("attempts", "cache", "devices")
"""Folders in it; the studies stand beside them."""


def writable_home(home: Path) -> Path:
    """Makes the folder, and sees that it may be written. Returns it.

    Raises:
        InputError: it cannot be made, or it or a folder in it may not be written.
    """
    reason = _unmade(home) or next(filter(None, (_unwritable(home / name) for name in (".", *KEPT))), None)
    if reason is None:
        return home
    raise InputError(
        f"studies and compiled variants cannot be kept in {home}: {reason}; set COLDFORGE_HOME to a folder "
        "that may be written"
    )


def _unmade(home: Path) -> str | None:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        return "it is a file"
    except (OSError, ValueError) as error:  # ValueError: a null character
        return f"it cannot be made ({getattr(error, 'strerror', None) or error})"
    return None


def _unwritable(folder: Path) -> str | None:
    if not folder.exists():
        return None
    if folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return None
    return f"{folder} may not be written"
