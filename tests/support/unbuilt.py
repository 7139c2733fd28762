# SPDX-License-Identifier: Apache-2.0
"""A frozen package that is imported and not built: PyTorch's reference answers."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from coldforge.codegen.freeze import Winner, freeze


@contextlib.contextmanager
def unbuilt_package(folder: Path, name: str, winners: Sequence[Winner]) -> Iterator[ModuleType]:
    """Freezes winners as ``folder/name``; builds are off until the block ends."""
    freeze(winners, folder / name, name)
    sys.path.insert(0, str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLDFORGE_BUILD", "0")
        try:
            yield importlib.import_module(name)
        finally:
            sys.path.remove(str(folder))
