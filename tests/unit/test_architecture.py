# SPDX-License-Identifier: Apache-2.0
"""The rules of the tree, held by reading it: imports run one way, files are small, nothing runs at import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("codegen", "templates", "tuner", "generated")
# What each package may import of the others.
ALLOWED = {
    "templates": {"templates"},
    "codegen": {"codegen", "templates"},
    "tuner": {"tuner", "codegen", "templates"},
    "generated": {"generated"},
}
# Inside codegen: a file may import only from its own level or a lower one.
LEVELS = [
    {"errors", "liveness", "atomic", "settings", "spawn", "dtypes", "expr", "declare", "target", "names"}
    | {"places", "plain", "awake", "home", "legal"},
    {"steps", "reference_file"},
    {"shorthand"},
    {"family", "family_file", "module_arguments", "chain", "operator", "problem"},
    {"space", "space_file", "catalogue", "epilogue"},
    {"render"},
    {"compile"},
    {"emulator"},
    {"freeze"},
]


def _sources(package: str) -> list[Path]:
    return [p for p in sorted((ROOT / package).rglob("*.py")) if "_build" not in p.parts]


def _imports(path: Path) -> set[tuple[str, ...]]:
    """What a file imports of this project, as path parts from the root."""
    package = path.relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = tuple(node.module.split(".")) if node.module else ()
            found |= {(*base, *module, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "coldforge":
            found |= {(*node.module.split(".")[1:], alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {tuple(a.name.split(".")[1:]) for a in node.names if a.name.split(".")[0] == "coldforge"}
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_one_way(package: str) -> None:
    for path in _sources(package):
        for target in _imports(path):
            lazily_frozen = package == "tuner" and target[:1] == ("generated",)
            assert target[0] in ALLOWED[package] or lazily_frozen, f"{path}: imports {'.'.join(target)}"


def test_codegen_levels() -> None:
    rank = {name: level for level, names in enumerate(LEVELS) for name in names}
    for path in _sources("codegen"):
        own = path.relative_to(ROOT / "codegen").parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        assert own in rank, f"{path}: give it a level in this test"
        for target in _imports(path):
            if target[0] == "codegen" and target[1] in rank:
                assert rank[target[1]] <= rank[own], f"{path}: imports {'.'.join(target)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_small_files_small_functions(package: str) -> None:
    for path in _sources(package):
        lines = path.read_text().splitlines()
        assert len(lines) <= 400, f"{path}: {len(lines)} lines"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 60, f"{path}:{node.lineno}: {node.name} has {length} lines"


def test_every_folder_of_tests_is_collected() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    collected = {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}
    wanted = {str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py")}
    # A file that needs a GPU may leave itself out as a whole.
    assert {name for name in wanted - collected if not name.startswith("tests/gpu/")} == set()


def test_every_source_file_names_its_licence() -> None:
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = (".py", ".cuh", ".hpp", ".h")
    hand_written = [f for f in files if f.endswith(wanted)]
    assert hand_written
    for name in hand_written:
        assert "SPDX-License-Identifier: Apache-2.0" in (ROOT / name).read_text()[:600], name


def test_the_command_line_starts_without_torch_and_optuna() -> None:
    code = (
        "import sys\nfrom coldforge.tuner.cli import run\n"
        "run(['render', 'conv2d_mish', '--json'])\n"
        "print(sorted({'torch', 'optuna'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_importing_makes_no_folder(tmp_path: Path) -> None:
    code = (
        "import coldforge.codegen.catalogue, coldforge.tuner.cli, coldforge.tuner.tune, coldforge.tuner.study"
    )
    env = {"COLDFORGE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
