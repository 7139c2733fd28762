# SPDX-License-Identifier: Apache-2.0
"""Adversarial command lines, for every command: exit code 0, 1 or 2, one line, nothing half written. What
would start a compiler, a worker or a build is stood in for: only what comes before it is of interest."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import coldforge.codegen.freeze
import coldforge.tuner.bench
import coldforge.tuner.cli
import pytest
import torch
from coldforge.codegen.freeze import Winner, freeze
from coldforge.tuner.cli import COMMANDS, MAX_MESSAGE, main
from fuzz import accepted_or_refused, command, one_line, profile, refused
from hypothesis import given
from hypothesis import strategies as st

OP = "conv2d_divide_leaky_relu"


def _options(name: str) -> dict[str, bool]:
    """The options of a command, and whether each is a flag."""
    parameters = importlib.import_module(f"coldforge.tuner.cli.{name}").command.params
    return {p.opts[0]: p.is_flag for p in parameters if isinstance(p, click.Option)}


OPTIONS = {name: _options(name) for name in COMMANDS}
NUMBERS = [
    "-1",
    "0",
    "1",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "9" * 30,
    "9" * 5000,
    "٣",
    "0x10",
    "1_0",
    "",
    " 3",
]
NAMES = [
    OP,
    "conv2d_mish",
    "seed",
    "small",
    "direct",
    "cuda",
    "cpu",
    "auto",
    "sm_90",
    "x86-64-v3",
    "fp32",
    "bf16",
]
SHAPES = [
    *("N=1", "N=0", "N=-1", "H=1,W=1", "N=1,N=2", "N=", "=1", "=", ",", ",,,", "N=1;H=2", "N=2147483647,H=1"),
    *("C_in=0", "kernel_size=99", "stride=0", "padding=1000000", "bias=2", "bias=0", "groups=3", "N=٣"),
    *("N=" + "9" * 18, "N=1e3", "N=1.0", "dilation=2147483647", "Q=1", "N =1", "C_out=1", "H_out=3"),
]
SETS = [
    "TILE_X=32",
    "TILE_X=33",
    "TILE_X",
    "=1",
    "TILE_X=",
    "TILE_X=" + "9" * 5000,
    "ACC=fp32",
    "A=B=C",
    "ACC=true",
]
URLS = [
    *("x", "://", "sqlite://", "sqlite:///:memory:", "sqlite:////proc/nothing/x.db", "sqlite:////dev/null"),
    *("postgresql://u:secret@h:port/d", "postgresql://h:99999999/d", "postgresql://[::1/d", "mysql://u@h/d"),
    *("journal://x", "a+b://c", "http://x", "sqlite:///" + "a" * 300, "sqlite+nosuch:///x", "sqlite:////etc"),
]
TEXTS = [
    *(
        "",
        " ",
        "-",
        "--",
        "-h=",
        ".",
        "..",
        "../../x",
        "/",
        "/dev/null",
        "/dev/full",
        "/etc/passwd",
        "~",
        "a" * 300,
    ),
    *(
        "a" * 5000,
        "é",
        "\udcff",
        "\x1b[31m",
        "[/bold]",
        "%s",
        "{}",
        "$(id)",
        "`id`",
        "class",
        "numpy",
        "torch",
    ),
    *("x\ny", "None", "*", "?", "a/b", "a.b", "__main__", "con", "os", "coldforge", "\u202e"),
]
values = st.sampled_from([*NUMBERS, *NAMES, *SHAPES, *SETS, *URLS, *TEXTS]) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=6
)
OWN_VALUES = {
    "--shape": SHAPES,
    "--set": SETS,
    "--storage": URLS,
    "--trials": NUMBERS,
    "--time-budget": NUMBERS,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder to run in, with a home in it; whatever would take long is stood in for."""
    folder = tmp_path_factory.mktemp("cli")
    generated = folder / "generated"
    freeze([], generated, "coldforge")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLDFORGE_HOME", str(folder / "home"))
        patch.setattr(coldforge.codegen.freeze, "GENERATED", generated)
        for module, name, stand_in in _STAND_INS:
            __import__(f"coldforge.tuner.{module}")
            patch.setattr(sys.modules[f"coldforge.tuner.{module}"], name, stand_in)
        yield folder


def _nothing_wrong(*arguments: Any, **named: Any) -> Any:
    return {"status": "ok", "entries": 0, "enabled": [], "variants": {}, "extension": None, "rows": []}


_STAND_INS: list[tuple[str, str, Callable[..., Any]]] = [
    ("cli.tune", "_tune_all", lambda chosen, problems: [{"status": "ok"}]),
    ("cli.tune", "_print", lambda runs: None),
    ("cli.build", "run_build", _nothing_wrong),
    ("cli.build", "_show", lambda report: None),
    ("cli.freeze", "run_build", _nothing_wrong),
    ("cli.bench", "print_bench", lambda found: None),
    ("cli.check", "_work", lambda problem, spaces, target, every, precision: [*spaces]),
    ("cli.check", "_run", lambda work, title: ([], False)),
    ("cli.check_ledger", "run_ledger", lambda *arguments, **named: None),
    ("cli.list", "_feasible", lambda *arguments: 1),
    ("bench", "bench", _nothing_wrong),
]


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command line: a command, mostly with the arguments that it wants, and options with values."""
    name = draw(st.sampled_from(sorted(OPTIONS)))
    line = [name]
    if name in ("render", "tune", "bench", "check"):
        line.append(draw(st.sampled_from([OP, OP, OP]) | values))
    if name in ("freeze", "show", "report") and draw(st.booleans()):
        line.append(draw(values))
    for option in draw(st.lists(st.sampled_from(sorted(OPTIONS[name])), max_size=3)):
        if OPTIONS[name][option]:
            line.append(option)
        else:
            line += [option, draw(st.sampled_from(OWN_VALUES.get(option, TEXTS)) | values)]
    return [part for part in line if part not in ("-h", "--help")]


@profile(170)
@given(line=lines())
def test_any_command_line(place: Path, line: list[str]) -> None:
    before = _files(place)
    accepted_or_refused(*line, codes=(0, 1, 2))
    assert _files(place) == before


@profile(60)
@given(line=st.lists(values | st.sampled_from([*COMMANDS, "--json", "--version", "--traceback"]), max_size=4))
def test_any_words(place: Path, line: list[str]) -> None:
    ended = command(*line)
    assert ended.code in (0, 1, 2)
    if ended.code and line:  # nothing at all: the help
        one_line(ended)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tune", OP, "--trials", "-1"], "--trials"),
        (["tune", OP, "--trials", "0"], "--trials"),
        (["tune", OP, "--trials", "9" * 5000], "--trials"),
        (["tune", OP, "--time-budget", "nan"], "not a finite number"),
        (["tune", OP, "--time-budget", "1e999"], "not a finite number"),
        (["tune", OP, "--seed", "-1"], "--seed"),
        (["show", "--storage", "postgresql://u@h:port/d"], "malformed"),
        (["show", "--storage", "sqlite:///" + "a" * 300], "File name too long"),
        (["render", OP, "--shape", "N=" + "9" * 5000], "expected NAME=INTEGER"),
        (["bench", OP, "--package", "../x"], "is no package name"),
        (["bench", OP, "--package", "numpy"], "is not a package of frozen kernels"),
        (["bench", OP, "--package", "x", "--out", "/nowhere"], "is not a package of frozen kernels"),
        (["freeze", "--package", "x"], "go together"),
        *(
            (["freeze", "--package", name, "--out", "out"], expected)
            for name, expected in {
                "numpy": "taken by a module",
                "torch": "taken by PyTorch",
                "load_library": "taken by PyTorch",
                "loaded_libraries": "taken by PyTorch",
                "import_module": "taken by PyTorch",
                "quantized_decomposed": "taken by PyTorch",
                "yaml": "taken by a module",
                "json": "is taken",
                "coldforge": "is taken",
                "class": "not a keyword",
                "../../x": "must be lower-case letters",
                "a.b": "must be lower-case letters",
                "": "must be lower-case letters",
            }.items()
        ),
    ],
)
def test_refused(place: Path, arguments: list[str], expected: str) -> None:
    before = _files(place)
    assert expected in refused(*arguments)
    assert _files(place) == before


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "home" not in path.parts)


def test_a_file_where_a_folder_is_wanted(
    place: Path, tmp_path: Path, naive_winner: Callable[..., Winner]
) -> None:
    file = tmp_path / "file"
    file.write_text("here before")
    for arguments in (
        ["freeze", "--package", "mine", "--out", str(file)],
        ["freeze", "--package", "mine", "--out", str(file / "below")],
        ["freeze", "--bundle", str(file / "b.zip")],
        ["freeze", "--bundle", str(tmp_path)],
        ["freeze", "--package", "mine", "--out", "/" + "a" * 300],
    ):
        refused(*arguments)
    assert file.read_text() == "here before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_name_that_hides_nothing(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of ours may be written again, and elsewhere; a plain folder of that name is no module."""
    monkeypatch.syspath_prepend(tmp_path / "first")
    for folder in ("first", "first", "second"):
        freeze([], tmp_path / folder / "mine", "mine")
        line = refused("freeze", "--package", "mine", "--out", str(tmp_path / folder))
        assert "nothing to freeze" in line
    monkeypatch.syspath_prepend(tmp_path / "plain")
    (tmp_path / "plain" / "other").mkdir(parents=True)
    assert "nothing to freeze" in refused("freeze", "--package", "other", "--out", str(tmp_path / "third"))


def test_a_name_that_this_pytorch_has(place: Path, tmp_path: Path) -> None:
    freeze = ("freeze", "--out", str(tmp_path), "--package")
    library = torch.library.Library("somebodys_ops", "DEF")
    assert "nothing to freeze" in refused(*freeze, "somebodys_ops")  # no operator yet
    library.define("twice(Tensor x) -> Tensor")
    assert "package name 'somebodys_ops' is taken by PyTorch" in refused(*freeze, "somebodys_ops")
    assert "nothing to freeze" in refused(*freeze, "somebodys")
    assert "somebodys" not in vars(torch.ops)  # asking made none
    # A package of ours that this process has loaded is none of PyTorch's.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "somebodys_ops.runtime", ModuleType("somebodys_ops.runtime"))
        assert "nothing to freeze" in refused(*freeze, "somebodys_ops")


def test_home_of_nobody(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDFORGE_HOME", "~nobody-of-that-name/x")
    assert "no such user" in refused("show")


def test_the_guard_shows_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(arguments: list[str]) -> int:
        raise LookupError("something\nthat nobody thought of " + "x" * 5000)

    monkeypatch.setattr(coldforge.tuner.cli, "run", fails)
    with pytest.raises(SystemExit) as ended:
        main(["list"])
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("coldforge: unexpected LookupError: something that nobody")
    assert line.endswith("`coldforge --traceback ...` shows where it comes from)")
    assert len(line) < MAX_MESSAGE
    with pytest.raises(LookupError):
        main(["--traceback", "list"])


def test_the_guard_is_not_met_in_a_process(place: Path) -> None:
    """The same as a user runs it: arguments that are no UTF-8 too."""
    run = subprocess.run(
        [sys.executable, "-c", "from coldforge.tuner.cli import main; main()", "render", b"\xff\x1b[31m"],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 2
    assert run.stderr.count(b"\n") == 1
    assert b"unknown operator" in run.stderr
