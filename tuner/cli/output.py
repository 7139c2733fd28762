# SPDX-License-Identifier: Apache-2.0
"""How results leave a command: one JSON document on stdout, or a file that is written whole."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from ...codegen.atomic import write_text
from ...codegen.errors import ColdforgeError, InputError


def print_json(document: Any) -> None:
    """Prints ``document`` as one strict JSON document; NaN and infinities become null."""
    click.echo(json_text(document))


def json_text(document: Any) -> str:
    """``document`` as strict JSON; NaN and infinities become null."""
    return json.dumps(_finite(document), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def place_of(output: str, otherwise: str = "") -> Path:
    """The file that ``-o`` names.

    Args:
        output: the option's value.
        otherwise: what else would do, for the message.

    Raises:
        InputError: it cannot be a file.
    """
    path = Path(output)
    if "\0" in output:
        raise InputError(f"-o {output!r:.200}: a name holds no null character")
    try:
        if path.is_dir():
            raise InputError(f"-o {output} is a folder; name a file")
        if path.exists() and not path.is_file():  # a device is not to be replaced by a file
            raise InputError(f"-o {output} is no file; name one{otherwise}")
        there = next(place for place in path.absolute().parents if place.exists())
    except (OSError, ValueError) as error:
        raise InputError(f"-o {output!r:.200}: {getattr(error, 'strerror', None) or error}") from None
    if not there.is_dir():
        raise InputError(f"-o {output}: {there} is a file, not a folder")
    return path


def write_whole(path: Path, text: str) -> None:
    """Writes the file, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        write_text(path, text)
    except ColdforgeError as error:
        raise InputError(str(error)) from None
