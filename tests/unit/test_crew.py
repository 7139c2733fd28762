# SPDX-License-Identifier: Apache-2.0
"""The devices of one machine: which are meant, and a worker for each. No device is needed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from coldforge.codegen import target
from coldforge.codegen.errors import InputError
from coldforge.codegen.target import cuda_target
from coldforge.tuner.cli import options
from coldforge.tuner.crew import Crew, chosen_devices, visible_as

H200, OTHER = cuda_target("sm_90", "NVIDIA H200"), cuda_target("sm_80", "NVIDIA A100")
_SAYS = """
import os, sys
told = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["COLDFORGE_JOBS"]
print("sees", *told, *sys.argv[1:], file=sys.stderr)
"""
_STAYS = """
import os, signal, sys, time
def end(*_):
    print("gave back", file=sys.stderr)
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
print("up", file=sys.stderr, flush=True)
time.sleep(60)
"""


def test_all_are_those_like_the_first() -> None:
    assert chosen_devices("all", [H200]) == [0]
    assert chosen_devices("all", [H200, OTHER, H200]) == [0, 2]


def test_devices_by_number() -> None:
    assert chosen_devices("1", [H200, OTHER]) == [1]
    assert chosen_devices("1, 0", [H200, OTHER]) == [1, 0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2", "there is no device 2; this machine has 0 to 1"),
        ("0,0", "twice"),
        ("", "give all"),
        ("-1", "give"),
    ],
)
def test_devices_that_are_not_there(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        chosen_devices(text, [H200, H200])


def test_a_device_is_named_as_this_process_was_told() -> None:
    assert visible_as(1, {}) == "1"
    assert visible_as(1, {"CUDA_VISIBLE_DEVICES": "4, 6"}) == "6"
    assert visible_as(0, {"CUDA_VISIBLE_DEVICES": "GPU-12ab"}) == "GPU-12ab"


def test_this_process_sees_the_first_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    monkeypatch.setattr(options, "cuda_devices", lambda: (H200, OTHER, H200))
    assert options.devices_of(H200, "1,2") == (OTHER, ("7",))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"


_TORCH = """
from types import SimpleNamespace as S
NAMES = [("NVIDIA H200", 9, 0), ("NVIDIA A100", 8, 0), ("Odd one", 7, 5)]
def properties(index):
    name, major, minor = NAMES[index]
    return S(name=name, major=major, minor=minor, multi_processor_count=100 + index, L2_cache_size=1 << 20,
             shared_memory_per_block_optin=1024, shared_memory_per_multiprocessor=2048)
cuda = S(is_available=lambda: True, device_count=lambda: len(NAMES), get_device_properties=properties)
"""


def test_every_gpu_is_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the very program that asks PyTorch, and a PyTorch that pretends."""
    (tmp_path / "torch.py").write_text(_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path).startswith("/dev/nvidia") or exists(path))
    target._probe_cuda.cache_clear()
    try:
        found = target.cuda_devices()
        assert [(device.arch, device.device) for device in found] == [
            ("sm_90", "NVIDIA H200"),
            ("sm_80", "NVIDIA A100"),
        ]
        assert [device.attributes["sm_count"] for device in found] == [100, 101]
        assert target.detect("auto") == target.detect("cuda") == found[0]
    finally:
        target._probe_cuda.cache_clear()


def test_each_worker_sees_its_device_alone() -> None:
    said: list[str] = []
    python = (sys.executable, "-c", _SAYS)
    with Crew(["1", "GPU-7"], ["--study", "s"], 3, said.append, python) as crew:
        assert len(crew.pids) == 2
    tail = f"3 worker --study s --attached {os.getpid()}"
    assert sorted(said) == [f"device 1: sees 1 {tail}", f"device GPU-7: sees GPU-7 {tail}"]


def test_a_worker_that_fails_is_told_of() -> None:
    said: list[str] = []
    with Crew(["1"], [], 1, said.append, (sys.executable, "-c", "import sys; sys.exit('no luck')")):
        pass
    assert said == ["device 1: no luck", "device 1: its worker ended with status 1"]


def test_an_interrupt_ends_the_workers_in_good_order() -> None:
    said: list[str] = []
    crew = Crew(["1"], [], 1, said.append, (sys.executable, "-c", _STAYS))
    with crew:
        end = time.monotonic() + 60
        while not said:
            assert time.monotonic() < end
            time.sleep(0.02)
        crew.__exit__(KeyboardInterrupt)
    assert said == ["device 1: up", "device 1: gave back"]


def test_a_worker_dies_with_its_tuner(tmp_path: Path) -> None:
    """An attached worker whose parent was killed does not go on."""
    code = (
        "import os, sys, time\nfrom coldforge.tuner.cli.worker import _attach\n"
        "if os.fork() == 0:\n"
        "    _attach(os.getppid()); open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)\n"
        "time.sleep(60)"
    )
    note = tmp_path / "pid"
    parent = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", code, str(note)])
    end = time.monotonic() + 60
    while not note.exists() or not note.read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    child = int(note.read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    while Path(f"/proc/{child}").exists():
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            break
        assert time.monotonic() < end
        time.sleep(0.02)
