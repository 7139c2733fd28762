# SPDX-License-Identifier: Apache-2.0
"""How results leave a command: one JSON document on stdout."""

from __future__ import annotations

import json
import math
from typing import Any

import click


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
