# SPDX-License-Identifier: Apache-2.0
"""The compile pool as a stream: pauses, limits, kills of any of its processes, and what is left behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from coldforge.codegen.awake import WAKE_S
from coldforge.codegen.compile import Artifact, Cache
from coldforge.codegen.compile.pool import CompilePool, CompileRequest
from coldforge.codegen.errors import CompileError
from coldforge.codegen.render import KernelSource
from coldforge.codegen.spawn import _children_by_search, children, continue_all, stop_tree
from coldforge.codegen.target import cpu_target

pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are followed in /proc"),
]

TARGET = cpu_target()


def _request(words: str = "") -> CompileRequest:
    text = f'// {words}\nextern "C" void coldforge_kernel(long, long, void*) {{}}\n'
    digest = hashlib.sha256(text.encode()).hexdigest()
    return CompileRequest(KernelSource(text, "coldforge_kernel", digest, "variant", "cpp"), TARGET)


@pytest.fixture
def slow_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A g++ that, where the source says SLOW, starts a child, writes both ids to a file and waits."""
    script, pids = tmp_path / "cxx", tmp_path / "pids"
    action = f"sleep 60 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"
    script.write_text(
        f'#!/bin/sh\nif grep -q SLOW kernel.cpp 2>/dev/null; then {action}; fi\nexec g++ "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("COLDFORGE_CXX", str(script))
    return pids


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[CompilePool]:
    with CompilePool(Cache(tmp_path / "cache"), 2) as running:
        yield running


def _collect(pool: CompilePool, count: int, limit_s: float = 30.0) -> dict[int, Artifact | CompileError]:
    found: dict[int, Artifact | CompileError] = {}
    end = time.monotonic() + limit_s
    while len(found) < count:
        assert time.monotonic() < end, "no answer"
        wait(pool.waitables, min(1.0, pool.patience_s or 1.0))
        found.update(pool.collect())
    return found


def _pids(file: Path) -> list[int]:
    _until(file.exists)
    return [int(word) for word in file.read_text().split()]


def _until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def _state(pid: int) -> str:
    """R, S, T (stopped), Z and so on; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _alive(pid: int) -> bool:
    return _state(pid) not in ("", "Z", "X")


def test_requests_come_one_by_one(pool: CompilePool) -> None:
    numbers = [pool.submit(_request(f"{index}")) for index in range(3)]
    assert pool.load == 3
    answers = _collect(pool, 3)
    assert sorted(answers) == numbers
    assert all(isinstance(answer, Artifact) for answer in answers.values())
    assert pool.load == 0
    more = pool.submit(_request("more"))
    assert more not in numbers
    assert list(_collect(pool, 1)) == [more]


def test_what_is_abandoned_has_no_answer(pool: CompilePool) -> None:
    numbers = [pool.submit(_request(f"{index}")) for index in range(4)]
    pool.abandon(numbers[:3])
    assert list(_collect(pool, 1)) == numbers[3:]
    _until(lambda: not pool.collect() and pool.load == 0)


def test_a_batch_beside_a_stream(pool: CompilePool) -> None:
    pool.abandon([pool.submit(_request("stream"))])
    assert sorted(dict(pool.compile([_request("a"), _request("b")]))) == [0, 1]


def test_a_batch_waits_for_processes_that_are_busy_with_what_was_abandoned(pool: CompilePool) -> None:
    pool.abandon([pool.submit(_request(f"abandoned {n}")) for n in range(2)])
    assert pool.load >= 2
    answers = dict(pool.compile([_request(f"batch {n}") for n in range(3)]))
    assert sorted(answers) == [0, 1, 2]
    assert all(isinstance(answer, Artifact) for answer in answers.values())


def test_a_pause_stops_the_compilers_and_their_clock(tmp_path: Path, slow_compiler: Path) -> None:
    now = 0.0
    with CompilePool(Cache(tmp_path / "cache"), 1, request_limit_s=10.0, clock=lambda: now) as pool:
        number = pool.submit(_request("SLOW"))
        compiler, child = _pids(slow_compiler)
        (process,) = pool._processes
        pool.pause()
        pool.pause()
        _until(lambda: [_state(pid) for pid in (process.pid, compiler, child)] == ["T", "T", "T"])
        guard = next(pid for pid in children(process.pid) if pid != compiler)
        assert _state(guard) == "S", "the guard must be able to act"
        waiting = pool.submit(_request("later"))
        assert pool.patience_s is None
        now = 1000.0
        assert pool.collect() == []
        pool.resume()
        pool.resume()
        _until(lambda: "T" not in [_state(pid) for pid in (process.pid, compiler, child)])
        assert pool.patience_s == WAKE_S
        assert process.deadline == 1010.0
        assert pool.collect() == []
        now = 1011.0
        answers = {**dict(pool.collect()), **_collect(pool, 1)}
    assert "silent for 10 s" in str(answers[number])
    assert isinstance(answers[waiting], Artifact)
    _until(lambda: not any(map(_alive, (compiler, child, guard))))


def test_nothing_starts_in_a_pause(pool: CompilePool) -> None:
    pool.pause()
    number = pool.submit(_request())
    assert pool.waitables == []
    pool.resume()
    assert list(_collect(pool, 1)) == [number]


def test_a_killed_process_takes_its_compiler_along_and_its_request_is_tried_again(
    pool: CompilePool, slow_compiler: Path
) -> None:
    number = pool.submit(_request("SLOW"))
    for tries in (1, 2):
        compiler, child = _pids(slow_compiler)
        slow_compiler.unlink()
        (process,) = pool._processes
        os.kill(process.pid, signal.SIGKILL)
        _until(lambda pids=(compiler, child): not any(map(_alive, pids)))
        if tries == 1:
            _until(lambda old=process: not pool.collect() and pool._processes[0] is not old)
    assert "crashed (exit status -9)" in str(_collect(pool, 1)[number])


def test_a_pause_ends_with_the_pool(tmp_path: Path, slow_compiler: Path) -> None:
    with CompilePool(Cache(tmp_path / "cache"), 1) as pool:
        pool.submit(_request("SLOW"))
        pids = _pids(slow_compiler)
        pool.pause()
    assert not any(map(_alive, pids))
    assert not list((tmp_path / "cache").rglob("*.partial"))


_KILLED = """
import signal, sys, time
from pathlib import Path
from coldforge.codegen.compile import Cache
from coldforge.codegen.compile.pool import CompilePool, CompileRequest
from coldforge.codegen.render import KernelSource
from coldforge.codegen.target import cpu_target

if __name__ == "__main__":
    pool = CompilePool(Cache(Path(sys.argv[1])), 1)
    pool.submit(CompileRequest(KernelSource("// SLOW", "coldforge_kernel", "", "slow", "cpp"), cpu_target()))
    if sys.argv[2] == "paused":
        while not Path(sys.argv[3]).exists():
            time.sleep(0.01)
        pool.pause()
    print(pool._processes[0].pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("state", ["busy", "paused"])
def test_a_killed_parent_leaves_nothing(state: str, tmp_path: Path, slow_compiler: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_KILLED)
    command = [sys.executable, str(script), str(tmp_path / "cache"), state, str(slow_compiler)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()), *_pids(slow_compiler)]
        pids += children(pids[0])
        if state == "paused":
            _until(lambda: [_state(pid) for pid in pids[:3]] == ["T", "T", "T"])
        assert all(map(_alive, pids))
        parent.kill()
    _until(lambda: not any(map(_alive, pids)))


def test_a_tree_is_stopped_and_continued() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"], start_new_session=True) as shell:
        try:
            _until(lambda: len(children(shell.pid)) == 2)
            assert sorted(_children_by_search(shell.pid)) == sorted(children(shell.pid))
            pids = stop_tree(shell.pid)
            assert pids[0] == shell.pid
            assert len(pids) == 3
            _until(lambda: {_state(pid) for pid in pids} == {"T"})
            continue_all(pids)
            _until(lambda: "T" not in {_state(pid) for pid in pids})
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert stop_tree(shell.pid) == []
    assert children(shell.pid) == []
