# SPDX-License-Identifier: Apache-2.0
"""A package whose own answers were altered is not imported: where kernels are refused, nothing else may
answer wrongly.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from coldforge.codegen.freeze import Winner, freeze


@pytest.fixture
def folder(tmp_path: Path, naive_winner: Callable[..., Winner], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLDFORGE_BUILD", "0")
    name = f"cf_altered_{tmp_path.name[-8:].replace('-', '_')}"
    freeze([naive_winner()], tmp_path / name, name)
    return tmp_path / name


@pytest.mark.parametrize("file", ["reference/conv2d.py", "operators/conv2d_divide_leaky_relu.py"])
@pytest.mark.parametrize("how", ["altered", "cut off", "missing"])
def test_what_answers_in_pytorch_is_what_was_frozen(folder: Path, file: str, how: str) -> None:
    path = folder / file
    text = path.read_text()
    if how == "missing":
        path.unlink()
    else:
        path.write_text(
            text.replace("return ", "return 2 * ") if how == "altered" else text[: len(text) // 2]
        )
    with pytest.raises(
        ImportError, match=rf"{path.name} (differs from its digest|is missing).*coldforge freeze"
    ):
        importlib.import_module(folder.name)
    assert f"{folder.name}.operators.conv2d_divide_leaky_relu" not in sys.modules


def test_a_kernel_that_was_altered_leaves_the_reference(folder: Path) -> None:
    kernel = next((folder / "kernels").glob("*naive*.cpp"))
    kernel.write_text(kernel.read_text() + "// more\n")
    package = importlib.import_module(folder.name)
    assert callable(package.conv2d_divide_leaky_relu)
    assert package.last_variant() is None
