# SPDX-License-Identifier: Apache-2.0
"""The host compiler, the cache of what it built, and the pool that runs several of them."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from coldforge.codegen.compile import Artifact, Cache, compile_source
from coldforge.codegen.compile.elf import code_digest, symbols
from coldforge.codegen.compile.host import compile_cpp, compile_flags
from coldforge.codegen.compile.pool import CompilePool, CompileRequest, compile_many
from coldforge.codegen.errors import CompileError, ToolMissing
from coldforge.codegen.render import KernelSource
from coldforge.codegen.target import cpu_target

pytestmark = pytest.mark.build

TARGET = cpu_target()
ENTRY = 'extern "C" __attribute__((visibility("default"))) void coldforge_kernel(long, long, void* p)'


def _source(body: str, name: str = "variant", comment: str = "") -> KernelSource:
    text = f"// {comment}\n{ENTRY} {{ {body} }}\n"
    return KernelSource(text, "coldforge_kernel", hashlib.sha256(text.encode()).hexdigest(), name, "cpp")


def _value(artifact: Artifact) -> int:
    result = ctypes.c_int(0)
    ctypes.CDLL(str(artifact.path)).coldforge_kernel(ctypes.c_long(0), ctypes.c_long(1), ctypes.byref(result))
    return result.value


def _set(value: int, comment: str = "") -> KernelSource:
    return _source(f"*static_cast<int*>(p) = {value};", f"set_{value}", comment)


def _entries(root: Path) -> list[Path]:
    return [path for folder in root.iterdir() for path in folder.iterdir()]


def _fake_compiler(folder: Path, action: str) -> Path:
    """A "compiler" that answers --version and otherwise does `action` (shell)."""
    path = folder / "fake-g++"
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo fake 1; exit 0; fi\n{action}\n')
    path.chmod(0o755)
    return path


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def _wait_for(path: Path) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if path.exists() and path.read_text().strip():
            return path.read_text().strip()
        time.sleep(0.02)
    raise AssertionError(f"{path.name} did not appear")


# --- one compilation ---


def test_a_library_that_runs_and_what_is_known_of_it(tmp_path: Path) -> None:
    artifact = compile_source(_set(41), TARGET, Cache(tmp_path))
    assert _value(artifact) == 41
    assert not artifact.cached
    assert artifact.resources.code_bytes > 0
    assert artifact.flags == compile_flags(TARGET.arch)
    assert Artifact.from_dict(json.loads(json.dumps(artifact.to_dict()))) == artifact


def test_flags_are_explicit() -> None:
    flags = compile_flags("x86-64-v3")
    assert "-march=x86-64-v3" in flags
    assert not {
        "-march=native",
        "-mtune=native",
        "-ffast-math",
        "-Ofast",
        "-funsafe-math-optimizations",
    } & set(flags)
    assert "-march=armv8-a" in compile_flags("aarch64")


def test_code_digest_is_of_the_code_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    one, same, other = (compile_source(s, TARGET, cache) for s in (_set(1), _set(1, "a comment"), _set(2)))
    assert one.path != same.path
    assert one.code_digest == same.code_digest != other.code_digest


def test_code_digest_sees_constants(tmp_path: Path) -> None:
    body = "static const float t[] = {{1, 2, 3, {}}}; auto f = static_cast<float*>(p); f[1] = t[int(f[0])];"
    one, other = (compile_source(_source(body.format(n)), TARGET, Cache(tmp_path)) for n in (8, 9))
    assert code_digest(one.path.read_bytes()) == code_digest(other.path.read_bytes())
    assert one.code_digest != other.code_digest


def test_a_refused_source(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"bad_one: .*error: .*undeclared_name") as caught:
        compile_source(_source("undeclared_name = 1;", "bad_one"), TARGET, Cache(tmp_path))
    assert "undeclared_name" in caught.value.log
    assert _entries(tmp_path) == []


def test_an_undefined_symbol_is_an_error_now_and_not_when_called(tmp_path: Path) -> None:
    source = _source("extern void nowhere(void*); nowhere(p);")
    with pytest.raises(CompileError, match="undefined reference"):
        compile_source(source, TARGET, Cache(tmp_path))


def test_no_compiler(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match=r"no C\+\+ compiler 'no-such-compiler'.*COLDFORGE_CXX"):
        compile_cpp(_set(1), TARGET, Cache(tmp_path), cxx="no-such-compiler")


def test_time_limit_kills_the_whole_tree(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    fake = _fake_compiler(tmp_path, f"sleep 60 & echo $! > {pid_file}; wait")
    with pytest.raises(CompileError, match=r"ran past 0\.5 s"):
        compile_cpp(_set(1), TARGET, Cache(tmp_path / "cache"), cxx=str(fake), time_limit_s=0.5)
    assert not _alive(int(_wait_for(pid_file)))


def test_loading_a_library_keeps_denormals(tmp_path: Path) -> None:
    artifact = compile_source(_set(1), TARGET, Cache(tmp_path))
    script = (
        "import ctypes, sys, torch\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "x = torch.full((1000,), 1e-40)\n"
        "assert (x * 1.0 == x).all() and (x * 1.0 != 0).all()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(artifact.path)], check=True, timeout=120)


# --- the cache ---


def test_a_second_request_is_a_hit(tmp_path: Path) -> None:
    first = compile_source(_set(7), TARGET, Cache(tmp_path))
    again = compile_source(_set(7), TARGET, Cache(tmp_path))
    assert again.cached
    assert again == first


def test_another_compiler_or_level_is_another_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    compile_source(_set(7), TARGET, cache)
    wrapper = tmp_path / "wrapped-g++"
    wrapper.write_text('#!/bin/sh\n[ "$1" = --version ] && echo other 2 && exit 0\nexec g++ "$@"\n')
    wrapper.chmod(0o755)
    assert not compile_cpp(_set(7), TARGET, cache, cxx=str(wrapper)).cached


@pytest.mark.parametrize("damage", ["flip", "truncate", "no binary", "no record", "broken record", "empty"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    cache = Cache(tmp_path)
    binary = compile_source(_set(7), TARGET, cache).path
    record = binary.parent / "artifact.json"
    data = binary.read_bytes()
    if damage == "flip":
        binary.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif damage == "truncate":
        binary.write_bytes(data[: len(data) // 2])
    elif damage == "broken record":
        record.write_text(record.read_text()[:50])
    if damage in ("no binary", "empty"):
        binary.unlink()
    if damage in ("no record", "empty"):
        record.unlink()
    again = compile_source(_set(7), TARGET, cache)
    assert not again.cached
    assert again.path == binary
    assert _value(again) == 7
    assert compile_source(_set(7), TARGET, cache).cached
    assert len(_entries(tmp_path)) == 1


def test_concurrent_writers_of_one_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    damaged = cache.entry_path(compile_source(_set(7), TARGET, cache).path.parent.name) / "artifact.json"
    damaged.write_text("{")
    results = dict(compile_many([CompileRequest(_set(7), TARGET)] * 6, 3, cache))
    assert sorted(results) == list(range(6))
    paths = {result.path for result in results.values() if isinstance(result, Artifact)}
    assert [_value(result) for result in results.values() if isinstance(result, Artifact)] == [7] * 6
    assert len(paths) == 1
    assert len(_entries(tmp_path)) == 1


# --- the pool ---


def test_a_batch_with_an_error_in_it(tmp_path: Path) -> None:
    sources = [_set(0), _source("broken", "bad"), _set(2)]
    with CompilePool(Cache(tmp_path), 2) as pool:
        results = dict(pool.compile([CompileRequest(source, TARGET) for source in sources]))
        again = dict(pool.compile([CompileRequest(sources[0], TARGET)]))
    assert isinstance(results[1], CompileError)
    assert "bad" in str(results[1])
    assert "error:" in results[1].log
    values = [_value(result) for result in (results[0], results[2], again[0]) if isinstance(result, Artifact)]
    assert values == [0, 2, 0]


def test_a_crash_costs_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This compiler kills the process that runs it when the source says so.
    action = 'if grep -q CRASH kernel.cpp; then kill -9 $PPID; sleep 5; fi\nexec g++ "$@"'
    monkeypatch.setenv("COLDFORGE_CXX", str(_fake_compiler(tmp_path, action)))
    sources = [_set(0), _set(1, "CRASH"), _set(2), _set(3)]
    results = dict(compile_many([CompileRequest(s, TARGET) for s in sources], 2, Cache(tmp_path / "cache")))
    assert [isinstance(results[i], Artifact) for i in range(4)] == [True, False, True, True]
    assert "crashed" in str(results[1])


def test_a_silent_process_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    action = f'if grep -q HANG kernel.cpp; then sleep 60 & echo $! > {pid_file}; wait; fi\nexec g++ "$@"'
    monkeypatch.setenv("COLDFORGE_CXX", str(_fake_compiler(tmp_path, action)))
    sources = [_set(0, "HANG"), _set(1)]
    with CompilePool(Cache(tmp_path / "cache"), 1, request_limit_s=5.0) as pool:
        results = dict(pool.compile([CompileRequest(source, TARGET) for source in sources]))
    assert "silent" in str(results[0])
    assert isinstance(results[1], Artifact)
    assert not _alive(int(_wait_for(pid_file)))


def test_a_missing_compiler_ends_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDFORGE_CXX", "no-such-compiler")
    with pytest.raises(ToolMissing):
        list(compile_many([CompileRequest(_set(0), TARGET)], 1, Cache(tmp_path)))


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    fake = _fake_compiler(tmp_path, f"sleep 60 & echo $$ $! $PPID > {pid_file}; wait")
    script = tmp_path / "run.py"
    script.write_text(
        "from pathlib import Path\n"
        "from coldforge.codegen.compile import Cache\n"
        "from coldforge.codegen.compile.pool import CompileRequest, compile_many\n"
        "from coldforge.codegen.render import KernelSource\n"
        "from coldforge.codegen.target import cpu_target\n"
        "if __name__ == '__main__':\n"
        "    source = KernelSource('', 'coldforge_kernel', '', 'slow', 'cpp')\n"
        f"    list(compile_many([CompileRequest(source, cpu_target())], 1, Cache(Path({str(tmp_path)!r}))))\n"
    )
    environment = {**os.environ, "COLDFORGE_CXX": str(fake)}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE)
    pids = [int(word) for word in _wait_for(pid_file).split()]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert b"KeyboardInterrupt" in errors
    assert errors.count(b"Traceback") == 1
    assert [pid for pid in pids if _alive(pid)] == []


def test_symbols_tell_weak_from_strong(tmp_path: Path) -> None:
    source = tmp_path / "weak.cpp"
    source.write_text(
        "template <class T> __attribute__((noinline)) T twice(T v) { return v + v; }\n"
        "static int hidden(int v) { return v; }\nint shown(int v) { return twice(hidden(v)); }\n"
    )
    subprocess.run(["g++", "-c", "-O0", source, "-o", tmp_path / "weak.o"], check=True)
    found = {symbol.name: symbol for symbol in symbols((tmp_path / "weak.o").read_bytes())}
    assert found["_Z5twiceIiET_S0_"].binding == "weak"
    assert found["_Z5showni"].binding == "global"
    assert found["_ZL6hiddeni"].binding == "local"
    with pytest.raises(ValueError, match="not a 64-bit"):
        symbols(b"nothing")
