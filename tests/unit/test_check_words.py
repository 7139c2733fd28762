# SPDX-License-Identifier: Apache-2.0
"""What `coldforge check` says and does beside its findings: lines, progress, an end from outside, and names
that are no operators."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile.process import Leash, Pulled, run_group
from coldforge.codegen.emulator import Place
from coldforge.codegen.emulator.lines import LineMap
from coldforge.codegen.space import Config
from coldforge.tuner.check.progress import Lines, counting
from coldforge.tuner.check.run import Checked, Fault
from coldforge.tuner.cli import run
from own_family import write_family
from rich.console import Console

TEXT = """// banner
#line 1 "coldforge/sum.cuh"
int sum;
#line 20 "t.cu.jinja"
struct Args {};
  float v = nope;
}
"""
TEMPLATE = "{% call kernel.cuda_kernel(8) %}\nfloat v = nope;\n{% endcall %}\n"


@pytest.mark.parametrize(
    ("message", "log", "told", "place"),
    [
        (
            "k: t.cu.jinja:21:13: error: 'nope'",
            "",
            "k: t.cu.jinja:2 (rendered line 6): error: 'nope'",
            Place("t.cu.jinja", 2, 6),
        ),
        (
            "k: t.cu.jinja(21): error: nope",
            "",
            "k: t.cu.jinja:2 (rendered line 6): error: nope",
            Place("t.cu.jinja", 2, 6),
        ),
        (
            "k: t.cu.jinja:22:1: error: brace",
            "",
            "k: kernel.cu of t.cu.jinja:22 (rendered line 7): error: brace",
            Place("kernel.cu of t.cu.jinja", 22, 7),
        ),
        (
            "k: coldforge/sum.cuh:1:5: error: x",
            "",
            "k: coldforge/sum.cuh:1 (rendered line 3): error: x",
            Place("coldforge/sum.cuh", 1, 3),
        ),
        (
            "k: /shim/warp.h:9:5: error: x",
            "/shim/warp.h:9:5: error: x\nt.cu.jinja:21:9:   required from here\n",
            "k: /shim/warp.h:9:5: error: x, from t.cu.jinja:2 (rendered line 6)",
            Place("t.cu.jinja", 2, 6),
        ),
        ("k: undefined reference to `f'", "", "k: undefined reference to `f'", None),
        ("k: ran past 9 s", "t.cu.jinja:21:9: warning: unused\n", "k: ran past 9 s", None),
    ],
    ids=str,
)
def test_a_compiler_is_quoted_in_the_templates_lines(
    message: str, log: str, told: str, place: Place | None, tmp_path: Path
) -> None:
    (tmp_path / "t.cu.jinja").write_text(TEMPLATE)
    assert LineMap(TEXT, tmp_path / "t.cu.jinja").told(message, log) == (told, place)


def _checked(wrong: bool = False) -> Checked:
    faults = (Fault("race", "race", "race", "normal"),) if wrong else ()
    space = catalogue().spaces(catalogue().operator("conv2d_mish"), "cuda")[0]
    return Checked(space, Config({"A": 1}), 1.0, faults)


def test_progress_without_a_terminal_is_a_line_now_and_then() -> None:
    now, lines = [0.0], []
    progress = Lines("check op", 4, lines.append, lambda: now[0])
    for now[0], wrong in ((2.0, False), (6.0, True), (7.0, False), (8.0, False)):
        progress.tell(_checked(wrong))
    assert lines == [
        "check op: 0/4 configs",
        "check op: 2/4 configs, 1 with faults, 6 s left",
        "check op: 4/4 configs, 1 with faults",
    ]


def test_progress_suits_what_it_is_written_to() -> None:
    for terminal in (False, True):
        screen = io.StringIO()
        with counting("check op", 1, Console(file=screen, force_terminal=terminal, width=120)) as tell:
            tell(_checked())
        assert "check op" in screen.getvalue()
        assert "no faults" in screen.getvalue()
        assert ("\x1b" in screen.getvalue()) == terminal


def test_a_leash_ends_the_programs_of_other_threads(tmp_path: Path) -> None:
    leash, raised = Leash(), []

    def work() -> None:
        leash.take()
        script = "import time; open('up', 'w').close(); time.sleep(60)"
        for _ in range(2):  # the second does not begin
            try:
                run_group([sys.executable, "-c", script], tmp_path, None)
            except Pulled as error:
                raised.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 30
    while not (tmp_path / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    started = time.monotonic()
    leash.pull()
    thread.join(30)
    assert raised == ["stopped", "stopped"]
    assert time.monotonic() - started < 10
    assert run_group(["true"], tmp_path, None).status == 0  # of this thread, which holds no leash


def test_what_was_checked_before_an_interrupt_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Iterator[Checked]:
        yield _checked()
        yield _checked(wrong=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("coldforge.tuner.check.run.check_configs", interrupted)
    command = ["check", "conv2d_mish", "--workload", "small", "--shape", "C_in=4,C_out=16"]
    assert run([*command, "--json"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["stopped"], found["configs"], found["failed"]) == (True, 2, 1)
    assert found["chosen"] > 2
    last = captured.err.splitlines()[-1]
    assert last == f"coldforge: stopped: 2 of {found['chosen']} configs were checked, 1 with faults"
    assert run(command) == 1
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shown.startswith(f"2 of {found['chosen']} configs in ")
    assert shown.endswith(": 1 findings")


@pytest.mark.parametrize(
    "command",
    [
        ["check"],
        ["check", "--ledger"],
        ["render"],
        ["tune", "--target", "cpu"],
        ["bench", "--target", "cpu"],
        ["freeze", "--package", "mine_alone", "--out", "out"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_family_without_workloads_is_told_to_be_no_operator(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))
    family = write_family(tmp_path)
    declared = (family / "family.yaml").read_text().replace("workloads:", "# workloads:")
    (family / "family.yaml").write_text(declared)
    assert run([command[0], "row_norm", *command[1:], "--templates", str(family)]) == 2
    said = capsys.readouterr().err
    assert "the family row_norm declares no workloads of its own, so it is no operator; give it" in said
    assert len(said.splitlines()) == 1


def test_a_family_with_operators_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "conv2d"]) == 2
    said = capsys.readouterr().err
    assert "the family conv2d declares no workloads of its own, so it is no operator" in said
    assert "its operators: conv2d_divide_leaky_relu, conv2d_mish" in said
