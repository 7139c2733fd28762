# SPDX-License-Identifier: Apache-2.0
"""The wheel of a package: installed, it runs with PyTorch alone, and refuses what is not what was frozen."""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from coldforge.codegen.compile.elf import needed_versions
from coldforge.codegen.errors import ColdforgeError
from coldforge.codegen.freeze import Winner, freeze, write_wheel
from coldforge.codegen.freeze.wheel import REQUIRES_PYTHON, REQUIRES_TORCH, platform_tag

pytestmark = pytest.mark.build

PTX = ".version 9.0\n.target sm_80\n.visible .entry coldforge_kernel(\n)\n{ ret; }\n"
# What an installed package must do without.
CALL = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"coldforge", "jinja2", "optuna", "ninja", "yaml", "click"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import torch
import cf_wheel as package
x, w, b = torch.ones(1, 8, 6, 6), torch.ones(6, 8, 3, 3), torch.arange(6.0)
with torch.no_grad():
    out = package.conv2d_divide_leaky_relu(x, w, b)
assert torch.equal(out[0, :, 0, 0], (72 + b) / 2), out
extension = package.runtime.package.STATE.extension
print(extension.last() if extension else None)
"""


@pytest.fixture(scope="module")
def wheel(
    tmp_path_factory: pytest.TempPathFactory,
    naive_winner: Callable[..., Winner],
    fake_cuda_winner: Callable[..., Winner],
) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    freeze([naive_winner(), fake_cuda_winner(ptx=PTX)], folder / "cf_wheel", "cf_wheel")
    done = subprocess.run(
        [sys.executable, "-m", "cf_wheel.runtime"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (library,) = folder.glob("cf_wheel/_build/*/cf_wheel.so")
    first = write_wheel(folder / "cf_wheel", library, folder)
    data = first.read_bytes()
    again = write_wheel(folder / "cf_wheel", library, folder)
    assert again == first
    assert again.read_bytes() == data
    return first


def _installed(wheel: Path, folder: Path) -> Path:
    """The wheel unpacked as pip does it."""
    place = folder / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def _call(place: Path, code: str = CALL) -> subprocess.CompletedProcess[str]:
    """Runs code that finds the installed package, and no tool on PATH."""
    environment = {"PYTHONPATH": str(place), "PATH": "", "HOME": str(place.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=place.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_it_runs_with_pytorch_alone(wheel: Path, tmp_path: Path) -> None:
    place = _installed(wheel, tmp_path)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.suffix in (".so", ".json")}
    done = _call(place)
    assert done.stdout.strip().endswith("@x86-64-v2")
    assert done.stderr == ""
    assert {path: path.read_bytes() for path in before} == before  # verified when it was built


def test_what_the_wheel_says_of_itself(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        assert all(entry.date_time[0] == 1980 for entry in archive.infolist())
    info = next(name.partition("/")[0] for name in files if ".dist-info/" in name)
    assert wheel.name.startswith(info.removesuffix(".dist-info"))
    rows = list(csv.reader(files[f"{info}/RECORD"].decode().splitlines()))
    assert {row[0] for row in rows} == set(files)
    for name, digest, size in rows[:-1]:
        wanted = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={wanted}", len(files[name]))
    metadata = files[f"{info}/METADATA"].decode()
    assert f"Requires-Python: {REQUIRES_PYTHON}\n" in metadata
    assert re.findall("Requires-Dist: (.*)", metadata) == [REQUIRES_TORCH]
    assert f"Tag: {'-'.join(wheel.stem.split('-')[2:])}\n" in files[f"{info}/WHEEL"].decode()
    # Every Python that it admits reads its files.
    for name, data in files.items():
        if name.endswith(".py"):
            ast.parse(data, feature_version=(3, 10))


def test_a_wheel_that_cannot_be_written_costs_none(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, (library,) = wheel.parent / "cf_wheel", wheel.parent.glob("cf_wheel/_build/*/cf_wheel.so")
    old = tmp_path / "cf_wheel-0.1.0+0123abcd-py3-none-manylinux_2_28_x86_64.whl"
    old.write_bytes(b"an older one")
    others = {
        tmp_path / name
        for name in (
            "cf_wheel-9.9-py3-none-any.whl",
            "cf_wheel-tools-1.0-py3-none-any.whl",
            "cf_wheel-0.1.0+theirs-py3-none-any.whl",
            "cf_wheel-0.1.0+0123abcd-cp311-cp311-manylinux_2_28_x86_64.whl",
            "my_cf_wheel-0.1.0+0123abcd-py3-none-any.whl",
        )
    }
    for other in others:
        other.write_bytes(b"somebody's")
    with monkeypatch.context() as patch:
        patch.setattr(write_wheel.__module__ + ".write_bytes", _full)
        with pytest.raises(ColdforgeError, match="disk full"):
            write_wheel(package, library, tmp_path)
    assert old.exists()
    made = write_wheel(package, library, tmp_path)
    assert set(tmp_path.iterdir()) == {made, *others}


def test_a_wheel_has_its_extension_or_is_not_made(wheel: Path, tmp_path: Path) -> None:
    package, (library,) = wheel.parent / "cf_wheel", wheel.parent.glob("cf_wheel/_build/*/cf_wheel.so")
    elsewhere = tmp_path / "elsewhere" / "_build" / library.parent.name / library.name
    elsewhere.parent.mkdir(parents=True)
    shutil.copy(library, elsewhere)
    with pytest.raises(
        ColdforgeError, match=r"cf_wheel\.so is not a whole extension in .*/cf_wheel: the wheel"
    ):
        write_wheel(package, elsewhere, tmp_path)
    copy = tmp_path / "cf_wheel"
    shutil.copytree(package, copy)
    (own,) = copy.glob("_build/*/cf_wheel.so")
    (own.parent / "cf_wheel.so.sha256").unlink()
    with pytest.raises(ColdforgeError, match="is not a whole extension in"):
        write_wheel(copy, own, tmp_path)
    assert not list(tmp_path.glob("*.whl"))


def test_a_wheel_of_a_package_behind_links(wheel: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(wheel.parent / "cf_wheel", store / "v1")
    (store / "v1" / "_build").rename(store / "builds")
    (store / "v1" / "_build").symlink_to("../builds")
    (tmp_path / "cf_wheel").symlink_to("store/v1")
    (library,) = (store / "builds").glob("*/cf_wheel.so")
    assert write_wheel(tmp_path / "cf_wheel", library, tmp_path).read_bytes() == wheel.read_bytes()


def _full(*_: object) -> None:
    raise ColdforgeError("disk full")


def test_the_tag_follows_the_symbol_versions(wheel: Path, tmp_path: Path) -> None:
    (library,) = _installed(wheel, tmp_path).rglob("cf_wheel.so")
    data = library.read_bytes()
    said = subprocess.run(["objdump", "-p", str(library)], capture_output=True, text=True, check=True).stdout
    wanted = set(re.findall(r"0x[0-9a-f]+ 0x[0-9a-f]+ \d+ (\S+)", said))
    assert needed_versions(data) == wanted
    newest = max(int(v.partition("_2.")[2].partition(".")[0]) for v in wanted if v.startswith("GLIBC_2."))
    glibc = max(newest, 17)
    assert max(int(v.split(".")[2]) for v in wanted if re.match(r"GLIBCXX_3\.4\.", v)) <= 29
    assert wheel.stem.split("-")[2:] == ["py3", "none", f"manylinux_2_{max(glibc, 28)}_x86_64"]
    built = os.confstr("CS_GNU_LIBC_VERSION") or ""
    if built >= "glibc 2.34":  # dlopen moved into libc there
        assert wheel.name.endswith("-py3-none-manylinux_2_34_x86_64.whl")
    assert platform_tag(data, "aarch64").endswith("_aarch64")


TAMPERED = [
    ("_build/*/cf_wheel.so", lambda data: data[:-100], "its extension is damaged, or belongs to other files"),
    ("_build/*/cf_wheel.so", lambda data: data.replace(b"conv2d", b"conv3d", 1), "its extension is damaged"),
    ("manifest.json", lambda data: data[: len(data) // 2], "cannot read"),
    ("manifest.json", lambda data: data.replace(b": true", b":  true"), "its extension is damaged"),
    ("kernels/*.cubin", lambda data: data + b"x", "differs from its digest in manifest.json; install"),
    ("kernels/*.cubin", None, "is missing; install the package again"),
    (
        "kernels/*.ptx",
        lambda data: data.replace(b"sm_80", b"sm_90"),
        "differs from its digest in manifest.json",
    ),
]


def test_what_was_tampered_with_is_refused(wheel: Path, tmp_path: Path) -> None:
    place = _installed(wheel, tmp_path)
    code = """
import importlib, torch
x, w, b = torch.ones(1, 8, 6, 6), torch.ones(6, 8, 3, 3), torch.arange(6.0)
"""
    for number, (pattern, damage, _) in enumerate(TAMPERED):
        package = place / f"tampered{number}"
        shutil.copytree(place / "cf_wheel", package)
        (path,) = package.glob(pattern)
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage(path.read_bytes()))
        code += f"""
package = importlib.import_module("tampered{number}")
out = package.conv2d_divide_leaky_relu(x, w, b)
assert torch.equal(out[0, :, 0, 0], (72 + b) / 2), out
assert package.runtime.package.STATE.extension is None
"""
    # None of them is loaded, so all are tried in one process. The reference answers, and says why.
    said = [line for line in _call(place, code).stderr.splitlines() if "runs the PyTorch reference: " in line]
    assert len(said) == len(TAMPERED)
    for line, (_, _, why) in zip(said, TAMPERED, strict=True):
        assert why in line


def test_a_wheel_whose_operators_were_tampered_with_is_not_imported(wheel: Path, tmp_path: Path) -> None:
    """Without a kernel they would answer."""
    place = _installed(wheel, tmp_path)
    for name in ("operators/conv2d_divide_leaky_relu.py", "reference/conv2d.py"):
        path = place / "cf_wheel" / name
        whole = path.read_bytes()
        path.write_bytes(whole + b"\n")
        code = f"""
try:
    import cf_wheel
except ImportError as error:
    assert "{name} differs from its digest in manifest.json; install the package again" in str(error), error
    print("refused")
"""
        assert _call(place, code).stdout == "refused\n"
        path.write_bytes(whole)


def test_what_needs_a_compiler_says_so(wheel: Path, tmp_path: Path) -> None:
    place = _installed(wheel, tmp_path)
    shutil.rmtree(place / "cf_wheel" / "_build")
    environment = {"PYTHONPATH": str(place), "PATH": ""}
    command = [sys.executable, "-m", "cf_wheel.runtime"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("coldforge: no C++ compiler 'g++' on PATH; install g++")
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = str(place / "bin" / "python")
    wanted = f"torch=={importlib.metadata.version('torch')}"
    install = [python, "-m", "pip", "install", "--quiet", wanted, str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=250)
    if done.returncode:
        pytest.skip(f"pip cannot install {wanted} here: {done.stderr.strip().splitlines()[-1]}")
    environment = {"PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [python, "-c", CALL], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("@x86-64-v2")
