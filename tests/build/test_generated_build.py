# SPDX-License-Identifier: Apache-2.0
"""Building a package: once, in the open; what is wrong stays off, what is stale is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from coldforge.codegen.compile.elf import symbols
from coldforge.codegen.freeze import Winner, freeze
from coldforge.codegen.freeze.units import all_units

pytestmark = pytest.mark.build
WinnerFactory = Callable[..., Winner]

CALL = """
import sys, torch, {name} as package
x, w, b = torch.ones(1, 8, 6, 6), torch.ones(6, 8, 3, 3), torch.arange(6.0)
with torch.no_grad():
    out = package.conv2d_divide_leaky_relu(x, w, b)
assert torch.equal(out[0, :, 0, 0], (72 + b) / 2), out
state = package.runtime.package.STATE
print(state.extension.last() if state.extension else None)
"""


def run(
    folder: Path, code: str, name: str = "pk", *, expect: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own that can import the packages in ``folder``."""
    command = [sys.executable, "-c", code.replace("{name}", name)]
    env = {**os.environ, **environment}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def build(
    folder: Path, *arguments: str, name: str = "pk", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the package's own build command."""
    command = [sys.executable, "-m", f"{name}.runtime", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=250, check=False
    )


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, naive_winner: WinnerFactory, fake_cuda_winner: WinnerFactory
) -> Path:
    """A folder with the package ``pk``, built by the first calls of two processes at once."""
    folder = tmp_path_factory.mktemp("built")
    winners = [naive_winner(), fake_cuda_winner(), fake_cuda_winner(precision="tf32", verified=False)]
    freeze(winners, folder / "pk", "pk")
    code = CALL.replace("{name}", "pk")
    command = [sys.executable, "-c", code]
    both = [
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = []
    for process in both:
        out, err = process.communicate(timeout=250)
        assert process.returncode == 0, err
        assert out.strip().endswith("@x86-64-v2")
        said += err.splitlines()
    assert said.count("coldforge: building the frozen kernels of pk ...") == 1
    assert set(said) <= {
        "coldforge: building the frozen kernels of pk ...",
        "coldforge: waiting for another build",
    }
    return folder


def _copy(built: Path, folder: Path, name: str = "pk") -> Path:
    shutil.copytree(built / "pk", folder / name)
    return folder / name


def test_only_what_is_verified_is_enabled(built: Path) -> None:
    report = json.loads(build(built, "--json").stdout)
    # One cpu variant, checked here; one cubin, the measured one. The recompiled cubin waits for its GPU.
    assert [name.rpartition("@")[2] for name in report["enabled"]] == ["x86-64-v2", "sm_90"]
    assert report["status"] == "ok"
    ((name, result),) = report["variants"].items()
    assert name.endswith("@x86-64-v2")
    assert result["ok"]
    assert 0 < result["ratio"] < 1
    left = sorted(p.name for p in Path(report["extension"]).parent.iterdir())
    assert left == ["pk.so", "pk.so.sha256", "verified.json"]


def test_cubins_are_embedded_as_they_are(built: Path, fake_cuda_winner: WinnerFactory) -> None:
    (library,) = (built / "pk" / "_build").glob("*/pk.so")
    data = library.read_bytes()
    cubin = fake_cuda_winner().binary
    assert cubin is not None
    assert data.count(cubin) == 1
    needed = subprocess.run(
        ["readelf", "-d", str(library)], capture_output=True, text=True, check=True
    ).stdout
    assert "libtorch_cpu.so" in needed
    assert "libtorch_cuda" not in needed
    assert "libcuda" not in needed
    assert "python" not in needed
    exported = [s.name for s in symbols(data) if s.binding == "global" and s.defined]
    linker = {"_init", "_fini", "_edata", "_end", "__bss_start"}
    assert {name for name in exported if not name.startswith("coldforge_")} <= linker


def test_a_library_is_the_same_wherever_it_was_built(built: Path, tmp_path: Path) -> None:
    """Its messages name no folder of the machine that built it."""
    other = tmp_path / "a b'c" / "deeper"
    other.mkdir(parents=True)
    shutil.copytree(built / "pk", other / "pk", ignore=shutil.ignore_patterns("_build", "__pycache__"))
    assert build(other).returncode == 0
    (first,), (second,) = ((place / "pk" / "_build").glob("*/pk.so") for place in (built, other))
    data = first.read_bytes()
    for folder in (built, Path(torch.__file__).parent, Path.home()):
        assert bytes(folder) + b"/" not in data, folder
    assert b"package/kernels/table.cpp" in data  # what stands in place of them
    assert second.read_bytes() == data


def test_building_is_forbidden(built: Path, tmp_path: Path) -> None:
    package = _copy(built, tmp_path)
    shutil.rmtree(package / "_build")
    done = run(tmp_path, CALL, COLDFORGE_BUILD="0")
    assert done.stdout.splitlines()[0] == "None"
    assert (
        "runs the PyTorch reference: its extension is not built and COLDFORGE_BUILD=0 forbids" in done.stderr
    )
    assert not (package / "_build").exists()


def test_tracing_before_the_build(built: Path, tmp_path: Path) -> None:
    package = _copy(built, tmp_path)
    shutil.rmtree(package / "_build")
    code = """
import torch, pk
x, w, b = torch.ones(1, 8, 6, 6), torch.ones(6, 8, 3, 3), torch.arange(6.0)
try:
    torch.compile(pk.conv2d_divide_leaky_relu, fullgraph=True, backend="eager")(x, w, b)
except Exception as error:
    print(" ".join(str(error).split()))
"""
    assert "its extension is not built; run `python -m pk.runtime` first" in run(tmp_path, code).stdout


def test_a_killed_build_stops_nobody(built: Path, tmp_path: Path) -> None:
    package = _copy(built, tmp_path)
    shutil.rmtree(package / "_build")
    started = tmp_path / "started"
    slow = tmp_path / "slow-compiler"
    slow.write_text(f"#!/bin/sh\necho $$ >> {started}\nexec sleep 100\n")
    slow.chmod(0o755)
    command = [sys.executable, "-m", "pk.runtime"]
    victim = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "COLDFORGE_CXX": str(slow)})
    try:
        deadline = time.monotonic() + 60
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert started.exists()
        victim.send_signal(signal.SIGKILL)
        victim.wait(10)
        assert list((package / "_build").glob("*/work-*"))
        done = build(tmp_path)
        assert done.returncode == 0, done.stderr
        assert not list((package / "_build").glob("*/work-*"))
    finally:
        victim.kill()
        for pid in started.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def test_a_wrong_variant_stays_off(tmp_path: Path, naive_winner: WinnerFactory) -> None:
    good, wrong = naive_winner(), naive_winner({"kernel_size": 5}, error=0.01)
    freeze([good, wrong], tmp_path / "wrongpk", "wrongpk")
    done = build(tmp_path, name="wrongpk")
    assert done.returncode == 1
    assert f"{wrong.name}@x86-64-v2 is wrong on this machine and stays off" in done.stderr
    assert "times the error allowed" in done.stderr
    code = """
import torch, wrongpk
x, w, b = torch.ones(1, 8, 6, 6), torch.ones(6, 8, 5, 5), torch.arange(6.0)
out = wrongpk.conv2d_divide_leaky_relu(x, w, b)
assert torch.equal(out[0, :, 0, 0], (200 + b) / 2), out
wrongpk.conv2d_divide_leaky_relu(x, w[:, :, :3, :3].contiguous(), b)
print(wrongpk.runtime.package.STATE.extension.last())
"""
    done = run(tmp_path, code)
    assert f"not verified on this machine: {wrong.name}" in done.stderr
    assert done.stdout.strip() == f"{good.name}@x86-64-v2"


def test_what_was_edited_is_not_built(built: Path, tmp_path: Path) -> None:
    package = _copy(built, tmp_path)
    shutil.rmtree(package / "_build")
    source = next((package / "kernels").glob("*naive*.cpp"))
    source.write_text(source.read_text() + "// edited\n")
    done = build(tmp_path)
    assert done.returncode == 1
    assert f"{source.name} differs from its digest in manifest.json" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_stale_or_damaged_extension_is_built_anew(
    built: Path, tmp_path: Path, naive_winner: WinnerFactory
) -> None:
    package = _copy(built, tmp_path)
    (old,) = (package / "_build").glob("*/pk.so")
    freeze([naive_winner(), naive_winner({"N": 9})], package, "pk")
    # The old one is not looked at: it stands under another key.
    locate = "import pk; from pk.runtime import build, manifest; print(build.extension_path(manifest.load()))"
    place = Path(run(tmp_path, locate).stdout.strip())
    assert place != old
    place.parent.mkdir(parents=True)
    shutil.copy(old, place)
    forbidden = run(tmp_path, CALL, COLDFORGE_BUILD="0")
    assert forbidden.stdout.strip() == "None"
    assert "its extension is not built" in forbidden.stderr
    done = run(tmp_path, CALL)
    assert done.stdout.strip().endswith("@x86-64-v2")
    whole = place.read_bytes()
    for damaged in (b"", whole[:-1]):
        place.write_bytes(damaged)
        done = build(tmp_path, "--json")
        assert json.loads(done.stdout)["status"] == "ok", done.stderr
        assert place.stat().st_size == len(whole)


@pytest.mark.parametrize(
    "first",
    [
        "with torch.device('meta'), FakeTensorMode(): call(*map(torch.ones, shapes), None)",
        "torch.vmap(lambda x: call(x, w, b))(torch.ones(2, 1, 8, 6, 6))",
    ],
)
def test_the_check_of_a_build_sees_no_mode_of_the_caller(built: Path, tmp_path: Path, first: str) -> None:
    package = _copy(built, tmp_path)
    (record,) = (package / "_build").glob("*/verified.json")
    record.write_text('{"broken": 1}')
    code = f"""
import torch, pk
from torch._subclasses.fake_tensor import FakeTensorMode
shapes = (1, 8, 6, 6), (6, 8, 3, 3)
w, b = torch.ones(6, 8, 3, 3), torch.arange(6.0)
call = pk.conv2d_divide_leaky_relu
{first}
"""
    run(tmp_path, code + CALL)
    results = json.loads(record.read_text())
    assert [(name.rpartition("@")[2], r["ok"]) for name, r in results.items()] == [("x86-64-v2", True)]


def test_no_compiler_and_a_failing_one(built: Path, tmp_path: Path) -> None:
    package = _copy(built, tmp_path)
    shutil.rmtree(package / "_build")
    done = run(tmp_path, CALL, COLDFORGE_CXX="no-such-compiler")
    assert "no C++ compiler 'no-such-compiler' on PATH" in done.stderr
    done = build(tmp_path, COLDFORGE_CXX="false")
    assert done.returncode == 1
    assert "building the frozen kernels failed" in done.stderr
    assert "build.log" in done.stderr


def test_two_packages_and_one_namespace_twice(
    built: Path, tmp_path: Path, naive_winner: WinnerFactory
) -> None:
    _copy(built, tmp_path)
    _copy(built, tmp_path, "twin")  # another package of the same namespace
    freeze([naive_winner()], tmp_path / "other", "other")
    code = """
import torch, pk, other, twin
x, w, b = torch.ones(1, 8, 6, 6), torch.ones(6, 8, 3, 3), torch.arange(6.0)
for package in (pk, other, twin):
    out = package.conv2d_divide_leaky_relu(x, w, b)
    assert torch.equal(out[0, :, 0, 0], (72 + b) / 2), out
    extension = package.runtime.package.STATE.extension
    print(extension.last() if extension else package.runtime.package.STATE.why)
"""
    lines = run(tmp_path, code).stdout.splitlines()
    assert [line.endswith("@x86-64-v2") for line in lines[:2]] == [True, True]
    assert lines[2] == "another library has registered the PyTorch namespace 'pk' in this process"


def test_variants_share_nothing(tmp_path: Path, naive_winner: WinnerFactory) -> None:
    # A symbol that the linker may merge would put one level's code into another's kernel: SIGILL elsewhere.
    winner = naive_winner(arch="x86-64-v4")
    (tmp_path / "kernel.cpp").write_text(winner.source_text)
    for unit in all_units([winner]):
        rename = f"-Dcoldforge_kernel={unit.symbol}"
        command = ["g++", *unit.flags, rename, "-c", "kernel.cpp", "-o", f"{unit.symbol}.o"]
        subprocess.run(command, cwd=tmp_path, check=True)
        found = symbols((tmp_path / f"{unit.symbol}.o").read_bytes())
        assert [s.name for s in found if s.defined and s.binding != "local"] == [unit.symbol]
