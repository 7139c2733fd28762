# SPDX-License-Identifier: Apache-2.0
"""The texts that freezing fills in: they stand beside this file, and an undefined name in one is an error."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import jinja2


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """Where the templates of generated files are found."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(Path(__file__).parent)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
