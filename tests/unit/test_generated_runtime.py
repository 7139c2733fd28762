# SPDX-License-Identifier: Apache-2.0
"""The runtime's parts that need no extension: arguments, manifest, lock, the text of a build."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from coldforge.generated.runtime import arguments, build, lock, manifest, module, ninja


def test_pairs_and_numbers() -> None:
    assert arguments.pair("stride", 2, 1) == (2, 2)
    assert arguments.pair("padding", [0, 3], 0) == (0, 3)
    assert arguments.integer("groups", 4, 1) == 4
    assert arguments.number("scale", 3) == 3.0
    assert arguments.precision(None) is None
    assert arguments.precision("tf32") == "tf32"
    assert arguments.ceil_div(7, 4) == 2
    assert arguments.round_up(7, 4) == 8
    for value in (True, 1.0, "1", torch.tensor(1), None):
        with pytest.raises(TypeError, match="stride must be"):
            arguments.pair("stride", value, 1)  # type: ignore[arg-type]
    for value in (True, "1", torch.tensor(1.0), None):
        with pytest.raises(TypeError, match="scale must be a number"):
            arguments.number("scale", value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 0, got -1"):
        arguments.pair("padding", (0, -1), 0)


def test_tensors_of_one_kind() -> None:
    x = torch.ones(2, 3)
    arguments.tensors({"x": x, "bias": None}, ["bias"])
    with pytest.raises(TypeError, match="bias must be a tensor or None, got 1"):
        arguments.tensors({"x": x, "bias": 1}, ["bias"])  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"bias is torch.float16, but x is torch.float32"):
        arguments.tensors({"x": x, "bias": x.half()}, ["bias"])
    with pytest.raises(ValueError, match=r"expected \[N, C\] = \[2, 4\]"):
        arguments.expect("x", x, [2, 4], "N, C")
    arguments.expect("bias", None, [4], "C")


def test_the_shape_of_a_declared_vector() -> None:
    arguments.declared_shape("bias_shape", (4, 1, 1), [4, 1, 1], "C, 1, 1", False)
    arguments.declared_shape("bias_shape", torch.Size([4, 1]), [4, 1], "C, 1", True)
    arguments.declared_shape("bias_shape", None, [4, 1], "C, 1", True)
    with pytest.raises(ValueError, match=r"bias_shape is \[1, 4\]; expected \[C, 1\] = \[4, 1\]"):
        arguments.declared_shape("bias_shape", [1, 4], [4, 1], "C, 1", True)
    with pytest.raises(TypeError, match=r"must be a sequence of ints, here \[4, 1\], got None"):
        arguments.declared_shape("bias_shape", None, [4, 1], "C, 1", False)
    for value in (4, "41", (4.0, 1), (True, 1), torch.tensor([4, 1])):
        with pytest.raises(TypeError, match="bias_shape must be a sequence of ints or None"):
            arguments.declared_shape("bias_shape", value, [4, 1], "C, 1", True)  # type: ignore[arg-type]


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from coldforge.generated.runtime import lock\n"
        "with lock.exclusive(Path(sys.argv[1]), lambda: None):\n"
        "    print('held', flush=True); time.sleep(100)\n"
    )
    path = tmp_path / "deep" / "lock"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waited = []

        def kill() -> None:
            waited.append(True)
            holder.kill()

        started = time.monotonic()
        with lock.exclusive(path, kill):
            assert waited == [True]
        assert time.monotonic() - started < 10
    with lock.exclusive(path, lambda: waited.append(False)):
        assert waited == [True]


def _package(folder: Path, **changes: object) -> manifest.Manifest:
    native = folder / "runtime" / "native"
    native.mkdir(parents=True, exist_ok=True)
    (native / "binding.h").write_text("// header\n")
    (folder / "kernels").mkdir(exist_ok=True)
    (folder / "kernels" / "table.cpp").write_text("// table\n")
    document = {"format": 1, "entries": [], "units": [], "files": {}, **changes}
    (folder / "manifest.json").write_text(json.dumps(document))
    return manifest.load(folder)


def test_the_build_key_follows_manifest_and_headers(tmp_path: Path) -> None:
    first = _package(tmp_path).build_key
    assert _package(tmp_path).build_key == first
    assert _package(tmp_path, namespace="other").build_key != first
    changed = _package(tmp_path)
    (tmp_path / "runtime" / "native" / "binding.h").write_text("// another\n")
    assert manifest.load(tmp_path).build_key != first
    assert changed.data["format"] == 1


def test_bad_manifests(tmp_path: Path) -> None:
    with pytest.raises(manifest.PackageError, match="cannot read"):
        manifest.load(tmp_path)
    for text in ("", "{", "[]", '{"format": 99}', '{"format": 1}', '{"format": 1, "entries": [3]}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(manifest.PackageError, match=r"manifest\.json"):
            manifest.load(tmp_path)
    package = _package(tmp_path, files={"kernels/gone.cpp": "0" * 64})
    with pytest.raises(manifest.PackageError, match="is missing; run `coldforge freeze`"):
        package.check_files()


def test_build_file_quotes_paths(tmp_path: Path) -> None:
    folder = tmp_path / "a b$c'd"
    unit = {
        "source": "kernels/k.cpp",
        "symbol": "k_v3",
        "machine": "x86_64",
        "flags": ["-O3", "-march=x86-64-v3"],
    }
    units = [unit, {**unit, "symbol": "k_arm", "machine": "aarch64"}]
    package = _package(folder, units=units, files={"kernels/k.cpp": "0" * 64})
    text = ninja.build_file(package, "/usr/bin/g++", "out.so", "x86_64")
    assert "build k_v3.o: compile" in text
    assert "-Dcoldforge_kernel=k_v3" in text
    assert "k_arm" not in text
    assert "a$ b$$c'd/kernels/k.cpp" in text
    assert f'-DCOLDFORGE_BUILD_KEY=\\"{package.build_key}\\"' in text
    assert "build out.so: link table.o k_v3.o" in text


def test_when_a_call_may_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLDFORGE_BUILD", raising=False)
    assert build.why_not_automatically(Path("/src/generated")) == ""
    assert "installed package never builds" in build.why_not_automatically(
        Path("/venv/lib/python3.12/site-packages/coldforge/generated")
    )
    monkeypatch.setenv("COLDFORGE_BUILD", "0")
    assert "COLDFORGE_BUILD=0 forbids" in build.why_not_automatically(Path("/src/generated"))
    assert "coldforge build" in build.why_not_automatically(Path("/src/generated"))


def test_module_parameters() -> None:
    own = module.FrozenModule()
    own.add_parameter("weight", [4, 2, 3, 3], True, None, torch.float64)
    own.add_parameter("bias", [4], False, None, None)
    own.add_parameter("gain", [4], True, None, None)
    own.starts["gain"] = 1.0
    own.reset_parameters()
    assert own.bias is None
    assert own.weight.abs().max() <= 1 / 18**0.5
    assert torch.equal(own.gain, torch.ones(4))
    assert own.describe() == "weight=[4, 2, 3, 3], gain=[4]"
