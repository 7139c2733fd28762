# SPDX-License-Identifier: Apache-2.0
"""Which of two folders with one family a message means."""

from __future__ import annotations

from pathlib import Path

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import ColdforgeError
from coldforge.codegen.places import BUILTIN_ROOT, located, placed
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import render
from coldforge.codegen.target import cpu_target
from coldforge.tuner.cli import run
from own_family import NAME, replace, write_family


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("family.yaml", "tensors:", "tensor:", "family.yaml: missing key 'tensors'"),
        ("space.yaml", "parameters:", "parameter:", "space.yaml: missing key 'parameters'"),
        ("row_norm.cpp.jinja", "{% endcall %}", "", "row_norm.cpp.jinja:"),
        ("row_norm.cpp.jinja", "mean.hpp", "men.hpp", "row_norm.cpp.jinja: no header 'men.hpp'"),
    ],
)
def test_a_file_is_named_with_its_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    old: str,
    new: str,
    said: str,
) -> None:
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))
    replace(write_family(tmp_path / "bad") / file, old, new)
    for here, folder in (
        (tmp_path, "bad"),
        (tmp_path / "bad", "."),
        (tmp_path / "bad" / NAME, str(tmp_path / "bad")),
    ):
        monkeypatch.chdir(here)
        catalogue.cache_clear()
        assert run(["render", NAME, "--target", "cpu", "--templates", folder]) == 2
        place = tmp_path / "bad" / NAME / file
        assert capsys.readouterr().err.startswith(f"coldforge: {place.relative_to(here).parent / said}")


def test_what_a_study_keeps_names_no_folder(tmp_path: Path) -> None:
    replace(write_family(tmp_path) / "row_norm.cpp.jinja", "{% endcall %}", "")
    declared, target = catalogue(tmp_path), cpu_target()
    operator = declared.operator(NAME)
    space = declared.space(operator, target)
    with pytest.raises(ColdforgeError) as caught:
        render(space, make_problem(operator, "small"), space.default, target)
    assert str(caught.value).startswith(f"{NAME}/row_norm.cpp.jinja")
    assert str(tmp_path) not in str(caught.value)


def test_built_in_files_are_named_as_ever() -> None:
    with pytest.raises(ColdforgeError) as caught, placed(BUILTIN_ROOT / "conv2d"):
        raise ColdforgeError("conv2d/family.yaml: no")
    assert located(caught.value) == "conv2d/family.yaml: no"
