# SPDX-License-Identifier: Apache-2.0
"""What each template writes at its default config, kept as text: a change shows up in review.

`pytest tests/unit/test_golden.py --renew-golden` writes the files anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import render_body
from coldforge.codegen.target import cpu_target_for, cuda_target

GOLDEN = Path(__file__).parents[1] / "golden"
TARGETS = {"cuda": cuda_target("sm_90"), "cpu": cpu_target_for("x86-64-v3")}


def _cases() -> list[tuple[str, str, str]]:
    cat = catalogue()
    return [
        (name, kind, space.template)
        for name, operator in sorted(cat.operators.items())
        for kind, target in TARGETS.items()
        for space in cat.spaces(operator, kind)
        if space.check(make_problem(operator, "seed"), space.default, target) is None
    ]


@pytest.mark.parametrize(("name", "kind", "template"), _cases())
def test_rendered_text(name: str, kind: str, template: str, request: pytest.FixtureRequest) -> None:
    cat, target = catalogue(), TARGETS[kind]
    space = cat.space(cat.operator(name), target, template)
    text = render_body(space, make_problem(cat.operator(name), "seed"), space.default, target)
    path = GOLDEN / f"{name}.{template}.{'cu' if kind == 'cuda' else 'cpp'}.expected"
    if request.config.getoption("--renew-golden"):
        path.write_text(text)
    assert path.is_file(), "no golden text: run with --renew-golden and review the file"
    assert path.read_text() == text
