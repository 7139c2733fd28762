# SPDX-License-Identifier: Apache-2.0
"""The cpu template's objects: fit to stand in one library with those of other instruction-set levels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.compile.elf import symbols
from coldforge.codegen.compile.host import compile_flags
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import KernelSource, render
from coldforge.codegen.space import Config
from coldforge.codegen.target import cpu_target, cpu_target_for

pytestmark = pytest.mark.build

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4") if cpu_target().arch.startswith("x86") else ("aarch64",)
# All that a variant may take from outside: the C library's memory and math functions.
ALLOWED = {"memcpy", "memset", "memmove", "expf", "_GLOBAL_OFFSET_TABLE_"}


def _render(operator: str = "conv2d_mish", **chosen: int | str) -> KernelSource:
    problem = make_problem(catalogue().operator(operator), "small", {"C_out": 22, "padding": 0})
    target = cpu_target()
    space = catalogue().space(problem.operator, target, "direct")
    config = Config({**space.default, **chosen})
    return render(space, problem, config, target)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("entry", ["coldforge_kernel", "another_name"])
def test_one_symbol_leaves_the_object_and_none_is_weak(level: str, entry: str, tmp_path: Path) -> None:
    # A config tuned at one level is built for all, so the same text has to compile at each.
    (tmp_path / "kernel.cpp").write_text(_render(WEIGHTS="packed", INPUT="image").text)
    command = ["g++", *compile_flags(level), f"-DCOLDFORGE_ENTRY={entry}", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-c", "kernel.cpp", "-o", "kernel.o"], cwd=tmp_path, check=True, timeout=120)
    found = symbols((tmp_path / "kernel.o").read_bytes())
    assert [symbol.name for symbol in found if symbol.binding in ("weak", "unique")] == []
    assert [symbol.name for symbol in found if symbol.binding == "global" and symbol.defined] == [entry]
    assert {symbol.name for symbol in found if not symbol.defined} <= ALLOWED


def test_three_levels_in_one_library_keep_their_own_code(tmp_path: Path) -> None:
    objects = []
    for level in LEVELS:
        entry = "kernel_" + level.replace("-", "_")
        (tmp_path / f"{entry}.cpp").write_text(_render().text)
        command = ["g++", *compile_flags(level), f"-DCOLDFORGE_ENTRY={entry}", "-c", f"{entry}.cpp"]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
        objects.append(f"{entry}.o")
    link = ["g++", "-shared", *objects, "-o", "all.so", "-lm"]
    subprocess.run(link, cwd=tmp_path, check=True, timeout=120)
    found = symbols((tmp_path / "all.so").read_bytes())
    exported = {symbol.name for symbol in found if symbol.binding == "global" and symbol.defined}
    names = {name for name in exported if name.startswith("kernel_")}
    assert names == {Path(name).stem for name in objects}


def test_loading_a_variant_keeps_denormals(tmp_path: Path) -> None:
    artifact = compile_source(_render(), cpu_target(), Cache(tmp_path))
    script = (
        "import ctypes, sys, torch\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "x = torch.full((1000,), 1e-40)\n"
        "assert (x * 1.0 == x).all() and (x * 1.0 != 0).all()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(artifact.path)], check=True, timeout=120)


def test_configs_differ_in_machine_code(tmp_path: Path) -> None:
    changes: list[dict[str, int | str]] = [
        {},
        {"TILE_X": 64},
        {"TILE_Y": 4},
        {"OC_TILE": 64},
        {"PX": 16},
        {"OC_PER_THREAD": 8},
        {"WEIGHTS": "packed"},
        {"INPUT": "image"},
        {"TILE_Y": 4, "ORDER": "pixels"},
        {"UNROLL": "row"},
    ]
    cache = Cache(tmp_path)
    problem = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small")
    target = cpu_target_for("x86-64-v3" if cpu_target().arch.startswith("x86") else "aarch64")
    space = catalogue().space(problem.operator, target, "direct")
    configs = [Config({**space.default, **change}) for change in changes]
    digests = {
        compile_source(render(space, problem, config, target), target, cache).code_digest
        for config in configs
    }
    assert len(digests) == len(configs)


def test_vectors_follow_the_level() -> None:
    problem = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small")
    for level in LEVELS:
        target = cpu_target_for(level)
        space = catalogue().space(problem.operator, target, "direct")
        assert space.check(problem, space.default, target) is None
        longest = max(int(config["VEC"]) for config in space.feasible(problem, target))
        assert longest == (16 if level == "x86-64-v4" else 8)
