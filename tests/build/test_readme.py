# SPDX-License-Identifier: Apache-2.0
"""The README's examples run, in a copy of the tree and in the order in which they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("codegen", "templates", "tuner", "generated")
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Fewer trials than the README names: the command is what is tested here, not the search.
SHORTER = {"--trials 40": "--trials 2", "--trials 12": "--trials 3"}
_FILE = re.compile(r"^`([\w./]+)`\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN, CHECK = "## Bring your own operator\n", "## Check a CUDA kernel without a GPU\n"


def _section(title: str = OWN) -> str:
    """A section whose blocks belong together."""
    _, _, rest = (ROOT / "README.md").read_text().partition(title)
    assert rest
    return rest.partition("\n## ")[0]


def _blocks(language: str, text: str | None = None) -> list[str]:
    """The code blocks of a language: of a text, or of all of the README but those sections."""
    if text is None:
        text = (ROOT / "README.md").read_text().replace(_section(), "").replace(_section(CHECK), "")
    return [text for kind, text in _BLOCK.findall(text) if kind == language]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """An empty folder to work in, and an environment with a copy of the files that git does not ignore,
    importable as `coldforge`, with its own state folder."""
    folder = tmp_path_factory.mktemp("readme")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, names.split("\0")):
        source = ROOT / name
        if source.is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_bytes(source.read_bytes())
    (folder / "user").mkdir()
    (folder / "site" / "coldforge").mkdir(parents=True)
    for package in PACKAGES:
        (folder / "site" / "coldforge" / package).symlink_to(folder / "tree" / package)
    env = {**os.environ, "PYTHONPATH": str(folder / "site"), "COLDFORGE_HOME": str(folder / "home")}
    return folder / "user", env


def _python(code: str, checkout: tuple[Path, dict[str, str]], *arguments: str) -> str:
    folder, env = checkout
    command = [sys.executable, "-W", "error::UserWarning", "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.build
@pytest.mark.parametrize("block", _blocks("python"), ids=range(len(_blocks("python"))))
def test_python(block: str, checkout: tuple[Path, dict[str, str]]) -> None:
    _python(block, checkout)


def _commands(text: str | None = None) -> list[str]:
    lines = [line for block in _blocks("console", text) for line in block.splitlines()]
    return [line.removeprefix("$ coldforge ") for line in lines if line.startswith("$ coldforge ")]


def _run(commands: list[str], checkout: tuple[Path, dict[str, str]]) -> None:
    for command in commands:
        for long, short in SHORTER.items():
            command = command.replace(long, short)
        _python("from coldforge.tuner.cli import main; main()", checkout, *shlex.split(command))


@pytest.mark.build
def test_console(checkout: tuple[Path, dict[str, str]]) -> None:
    commands = _commands()
    assert len(commands) >= 8
    _run(commands, checkout)


ALONE = """
import sys
assert not [name for name in sys.modules if name.split(".")[0] == "coldforge"], "the package needs coldforge"
from coldforge.generated import conv2d_divide_leaky_relu
assert conv2d_divide_leaky_relu(torch.randn(4, 8, 64, 64), torch.randn(64, 8, 3, 3), None).shape[1] == 64
assert rms_norm(x[:5], weight).shape == (5, 1024)
assert not [name for name in sys.modules if name.startswith(("coldforge.tuner", "coldforge.codegen"))]
"""


@pytest.mark.build
def test_an_operator_of_ones_own(checkout: tuple[Path, dict[str, str]]) -> None:
    folder, env = checkout
    section = _section()
    files = dict(_FILE.findall(section))
    lines = [line for text in files.values() for line in text.splitlines() if line.strip()]
    assert len(files) == 4
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 110
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    _run(_commands(section), checkout)
    used = _blocks("python", section)[-1]
    assert "my_norms" in used
    env = {**env, "PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(folder / "norms")])}
    _python(used + ALONE, (folder, env))


@pytest.mark.build
def test_a_check_without_a_gpu(checkout: tuple[Path, dict[str, str]]) -> None:
    folder, env = checkout
    section = _section(CHECK)
    for name, text in _FILE.findall(section):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (command,) = _commands(section)
    call = "import sys; from coldforge.tuner.cli import run; sys.exit(run(sys.argv[1:]))"
    words = [sys.executable, "-c", call, *shlex.split(command)]

    def output(status: int) -> str:
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr[-3000:]
        return done.stdout

    (shown,) = re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    found = output(1)
    begin, rest = shown.split("...\n")  # which marks lines that are left out, and nothing else is
    assert found.startswith(begin)
    left_out, seen, _ = found.removeprefix(begin).partition(rest)
    assert seen
    assert left_out
    template = folder / "row_sum/row_sum.cu.jinja"
    loop = "half /= 2) {\n"
    template.write_text(template.read_text().replace(loop, f"{loop}  __syncthreads();\n"))
    assert "no findings" in output(0)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\$ make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
