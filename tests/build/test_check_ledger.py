# SPDX-License-Identifier: Apache-2.0
"""The ledger of executed instantiations: what a changed template makes of it, kills, merges, the command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from coldforge.codegen.catalogue import BUILTIN_ROOT, Catalogue, catalogue
from coldforge.codegen.problem import make_problem
from coldforge.codegen.settings import load_settings
from coldforge.codegen.target import cpu_target
from coldforge.tuner.check.device_code import device_code
from coldforge.tuner.check.execute import fill
from coldforge.tuner.check.instantiations import (
    Instantiation,
    Subject,
    founders,
    ledger_path,
    merge,
    subjects,
)
from coldforge.tuner.check.ledger import Ledger, claims
from coldforge.tuner.check.run import Checked
from coldforge.tuner.cli import run
from emulator_kernels import shared_cache

pytestmark = pytest.mark.build

KEPT = {"STAGING": ["plain", "cp_async"], "UNROLL_R": [0, 1]}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of templates with a family like conv2d and a few configs."""
    family = tmp_path / "mine/my_conv2d"
    shutil.copytree(BUILTIN_ROOT / "conv2d", family, ignore=shutil.ignore_patterns("ledger.*"))
    for path in family.glob("space.*.cuda.yaml"):
        if path.name != "space.direct.cuda.yaml":
            path.unlink()
    declared = (family / "family.yaml").read_text()
    (family / "family.yaml").write_text(declared.replace("family: conv2d", "family: my_conv2d", 1))
    space = yaml.safe_load((family / "space.direct.cuda.yaml").read_text())
    for name, parameter in space["parameters"].items():
        parameter["values"] = KEPT.get(name, [space["default"][name]])
    (family / "space.direct.cuda.yaml").write_text(yaml.safe_dump(space, sort_keys=False))
    operator = (BUILTIN_ROOT / "operators/conv2d_mish.yaml").read_text()
    (tmp_path / "mine/operators").mkdir()
    text = operator.replace("conv2d_mish", "my_mish").replace("family: conv2d", "family: my_conv2d")
    (tmp_path / "mine/operators/my_mish.yaml").write_text(text.replace("C_in: 8", "C_in: 2"))
    return tmp_path / "mine"


def _subject(own: Path, folder: Path | None = None) -> Subject:
    declared = Catalogue((BUILTIN_ROOT, own))  # read anew: the files change
    (found,) = subjects(declared, declared.operator("my_mish"), folder=folder)
    return found


def _record_all(subject: Subject, place: str = "emulator") -> None:
    for config in subject.configs:
        subject.ledger.record(config, subject.instantiation(config).digest, place)


def test_the_built_in_ledgers_are_about_the_founding_operators() -> None:
    found = {s.space.name: s for s in subjects(catalogue())}
    wanted = ("conv2d_divide_leaky_relu", "conv_transpose2d_mean_logsumexp")
    assert [operator.name for operator in founders(catalogue())] == list(wanted)
    # One template of the family is not for its founding operator.
    assert found.pop("conv2d/depthwise/cuda").problem.operator.name == "depthwise_conv2d_relu6"
    about = {
        (s.space.family, s.problem.operator.name, s.problem.workload, s.target.arch) for s in found.values()
    }
    assert about == {
        ("conv2d", wanted[0], "seed", "sm_90"),
        ("conv_transpose2d_mean", wanted[1], "seed", "sm_90"),
    }


def test_what_lacks_is_found(own: Path) -> None:
    subject = _subject(own)
    assert len(subject.configs) == 4
    assert subject.lacking() == subject.configs
    first, second, *others = subject.configs
    subject.ledger.record(first, subject.digest(first), "emulator")
    subject.ledger.record(second, subject.digest(second), "NVIDIA H200")
    assert subject.lacking() == others
    assert subject.lacking("emulator") == [second, *others]
    assert subject.passed() == {"emulator": 1, "NVIDIA H200": 1}
    _record_all(subject)
    assert subject.lacking() == subject.lacking("emulator") == []


def _edited(own: Path, file: str, old: str, new: str) -> Subject:
    path = own / "my_conv2d" / file
    text = path.read_text()
    assert text.count(old) >= 1, old
    path.write_text(text.replace(old, new, 1))
    return _subject(own)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("direct.cu.jinja", "Epilogue(args)", "/* \" of what? */ Epilogue(args /* ' */)"),
        ("direct.cu.jinja", "Epilogue(args)", "\n      Epilogue(args)\n"),
        ("space.direct.cuda.yaml", "reason: ", "reason: That "),
    ],
)
def test_comments_and_layout_do_not_count(own: Path, file: str, old: str, new: str) -> None:
    before = _subject(own).digests
    _record_all(_subject(own))
    assert _edited(own, file, old, new).digests == before
    assert _subject(own).lacking() == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("direct.cu.jinja", "int(args.H_out)", "int(args.H_out) + 0"),
        ("space.direct.cuda.yaml", "block: THREADS", "block: THREADS + 0"),
        ("space.direct.cuda.yaml", "PIXEL_TILES: N *", "PIXEL_TILES: 1 * N *"),
    ],
)
def test_code_and_launch_count(own: Path, file: str, old: str, new: str) -> None:
    _record_all(_subject(own))
    changed = _edited(own, file, old, new)
    assert changed.lacking() == changed.configs
    # The old claims stand until there are new ones: the change may be taken back.
    changed.ledger.tidy(changed.digests)
    assert _edited(own, file, new, old).lacking() == []
    changed = _edited(own, file, old, new)
    _record_all(changed)
    changed.ledger.tidy(changed.digests)
    assert changed.lacking() == []
    assert len(claims([changed.ledger.path])) == len(changed.configs)


def test_a_text_without_comments() -> None:
    text = """// banner
#line 1 "a.cuh"
#define  TWO(x)  \\
   x  x   // both
  int a = 1'000; /* one
  two */ asm("// no  comment" : : "r"(a)); char c = '"'; // '
#line 7 "b.cuh"
const char* s = R"(/* kept */)";
"""
    bare = device_code(text)
    assert bare.splitlines() == [
        "#define TWO(x) x x",
        """int a = 1'000;asm("// no  comment" : : "r"(a));char c = '"';""",
        'const char* s = R"(/* kept */)";',
    ]
    assert device_code("int a;\n\n   int b; // c\n") == device_code("int a; int b;")
    assert device_code("f(a /* n */, b)") == device_code("f( a, b )") == "f(a,b)"
    assert device_code("a - -b") != device_code("a --b")
    assert device_code("int a;\n#if X\nint b;\n#endif\n") != device_code("int a;\n#if X int b;\n#endif\n")


def test_two_ledgers_merge(own: Path, tmp_path: Path) -> None:
    here, there = _subject(own), _subject(own, tmp_path / "out")
    first, second, third, fourth = here.configs
    for config in (first, second):
        here.ledger.record(config, here.digest(config), "emulator")
    for config in (second, third):
        there.ledger.record(config, there.digest(config), "NVIDIA H200")
    assert there.lacking() == [fourth]  # what stands beside the templates counts too
    assert merge([here], tmp_path / "out") == 1
    assert merge([here], tmp_path) == 0
    assert here.lacking() == [fourth]
    assert here.passed() == {"emulator": 2, "NVIDIA H200": 2}
    lines = here.ledger.path.read_text().splitlines()
    assert lines[1:] == sorted(lines[1:])
    assert len(lines) == 4


def test_merging_as_text_and_its_conflicts(own: Path) -> None:
    subject = _subject(own)
    _record_all(subject)
    subject.ledger.tidy(subject.digests)
    head, *rows = subject.ledger.path.read_text().splitlines()
    text = "\n".join([head, "<<<<<<< ours", *rows[:2], "=======", *rows[2:], rows[0], ">>>>>>> theirs", ""])
    subject.ledger.path.write_text(text)
    assert subject.lacking() == []
    subject.ledger.tidy(subject.digests)
    assert subject.ledger.path.read_text().splitlines() == [head, *rows]


def test_a_torn_line_is_one_claim_less(own: Path) -> None:
    subject = _subject(own)
    _record_all(subject)
    whole = subject.ledger.path.read_bytes()
    subject.ledger.path.write_bytes(whole[:-9])
    (last,) = subject.lacking()
    subject.ledger.record(last, subject.digest(last), "emulator")
    assert subject.lacking() == []
    subject.ledger.tidy(subject.digests)
    assert subject.ledger.path.read_bytes().splitlines().sort() == whole.splitlines().sort()


RECORDING = """
import sys
from pathlib import Path
from coldforge.codegen.space import Config
from coldforge.tuner.check.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), {"template": "t"})
for number in range(100000):
    ledger.record(Config({"A": number}), f"{number:016d}", "emulator")
    print(number, flush=True)
"""


def test_a_kill_loses_what_was_in_flight_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.t.cuda.jsonl"
    with subprocess.Popen([sys.executable, "-c", RECORDING, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 50:
            pass
        process.kill()
        said = process.stdout.read().split()
    last = max([50, *map(int, said)])
    assert process.returncode == -signal.SIGKILL
    found = claims([path])
    assert {(str(n), f"{n:016d}") for n in range(last + 1)} <= set(found)
    assert len(found) <= last + 2


def test_processes_record_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.t.cuda.jsonl"
    script = RECORDING.replace("range(100000)", "range(int(sys.argv[2]), int(sys.argv[2]) + 40)")
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(path), str(first)], stdout=subprocess.DEVNULL)
        for first in (0, 1000)
    ]
    ledger = Ledger(path, {"template": "t"})
    while any(process.poll() is None for process in running):
        ledger.tidy({str(n): f"{n:016d}" for n in range(2000)})
        time.sleep(0.01)
    assert [process.returncode for process in running] == [0, 0]
    assert len(claims([path])) == 80


def test_a_ledger_that_cannot_be_written_is_named(tmp_path: Path, own: Path) -> None:
    (tmp_path / "file").write_text("")
    subject = _subject(own, tmp_path / "file")
    with pytest.raises(Exception, match="cannot write the ledger"):
        subject.ledger.record(subject.configs[0], "0" * 16, "emulator")


@pytest.fixture
def _home(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = shared_cache(tmp_path_factory).root
    cache.mkdir(parents=True, exist_ok=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/cache").symlink_to(cache)
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))


@pytest.mark.usefixtures("_home")
def test_the_command(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", "my_mish", "--ledger", "--templates", str(own)]
    assert run(command) == 1
    captured = capsys.readouterr()
    assert "0 of 4 executed" in captured.out
    assert "lacks TILE_X=32" in captured.out
    assert "and 1 more" in captured.out
    assert "4 instantiations were never executed" in captured.err
    subject = _subject(own)
    for config in subject.configs[1:]:
        subject.ledger.record(config, subject.digest(config), "NVIDIA H200")
    assert run([*command, "--json"]) == 1
    state = json.loads(capsys.readouterr().out)
    assert (state["lacking"], state["executed"], state["configs"]) == (1, 0, 4)
    assert run([*command, "--all", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert (state["lacking"], state["executed"], state["findings"]) == (0, 1, [])
    assert state["templates"]["my_conv2d/direct/cuda"]["passed"] == {"NVIDIA H200": 3, "emulator": 1}
    assert run(command) == 0


@pytest.mark.usefixtures("_home")
def test_what_is_wrong_is_not_recorded(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subject = _edited(own, "direct.cu.jinja", "int(args.H_out)", "int(args.H_out) - 1")
    for config in subject.configs[1:]:
        subject.ledger.record(config, subject.digest(config), "emulator")
    assert run(["check", "my_mish", "--all", "--ledger", "--templates", str(own), "--json"]) == 1
    state = json.loads(capsys.readouterr().out)
    assert (state["failed"], state["lacking"]) == (1, 1)
    assert "wrong_result" in state["causes"]


@pytest.mark.usefixtures("_home")
def test_an_interrupted_run_keeps_what_it_recorded(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(subject: Subject, todo: Iterable[Instantiation], _: object) -> Iterator[Any]:
        yield (one := next(iter(todo))), Checked(subject.space, one.config, 1.0)
        raise KeyboardInterrupt

    monkeypatch.setattr("coldforge.tuner.check.execute._emulated", interrupted)
    command = ["check", "my_mish", "--all", "--ledger", "--templates", str(own)]
    for left in (3, 2):
        assert run([*command, "--json"]) == 1
        captured = capsys.readouterr()
        state = json.loads(captured.out)
        assert (state["stopped"], state["executed"], state["lacking"]) == (True, 1, left)
        last = captured.err.splitlines()[-1]
        told = f"stopped: 1 executed, none with faults; {left} are left for the same command"
        assert last == f"coldforge: {told}"
    assert len(_subject(own).lacking()) == 2


HANGING = """#!/bin/sh
case "$1" in --version) echo "g++ 0.0"; exit;; esac
echo $$ >> "$0.pids"
exec sleep 100
"""


@pytest.mark.parametrize("word", ["check", "ledger"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_compilers_too(
    word: str, number: signal.Signals, own: Path, tmp_path: Path
) -> None:
    cxx, pids = tmp_path / "cxx", tmp_path / "cxx.pids"
    cxx.write_text(HANGING)
    cxx.chmod(0o755)
    env = {**os.environ, "COLDFORGE_HOME": str(tmp_path / "home"), "COLDFORGE_CXX": str(cxx)}
    call = "import sys; from coldforge.tuner.cli import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", call, "check", "my_mish", "--templates", str(own)]
    command += ["--all", "--ledger"] if word == "ledger" else ["--workload", "small"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while not pids.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("coldforge: stopped: 0 ")
    assert "0 of 4" in out
    assert pids.read_text()
    for pid in pids.read_text().split():
        assert not Path("/proc", pid).exists()


@pytest.mark.parametrize(
    "arguments",
    [["--gpu"], ["--merge", "."], ["--ledger", "--shape", "N=1"], ["--ledger", "--merge", "."]],
    ids=str,
)
def test_bad_input_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["check", "conv2d_mish", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


@pytest.mark.usefixtures("_home")
def test_the_way_of_the_gpu_on_a_cpu(tmp_path: Path) -> None:
    """Compiled in processes, verified in a worker, recorded, gone on with: all but the target."""
    operator = catalogue().operator("conv_transpose2d_scale_mean")
    target = replace(cpu_target(), device="Some CPU")
    space = catalogue().space(operator, target)
    problem = make_problem(operator, "small")
    ledger = Ledger(tmp_path / ledger_path(space).name, {"template": space.name})
    subject = Subject(space, problem, target, ledger)
    subject.configs[:] = subject.configs[:3]
    told: list[str] = []
    settings = load_settings()
    tally = fill(subject, settings, gpu=target, progress=lambda checked: told.append(checked.config.key))
    assert (tally.passed, tally.failed, tally.remaining) == (3, [], 0)
    assert sorted(told) == sorted(config.key for config in subject.configs)
    assert subject.passed() == {"Some CPU": 3}
    again = fill(subject, settings, gpu=target)
    assert (again.passed, again.remaining) == (0, 0)
    late = fill(
        replace(subject, ledger=Ledger(tmp_path / "other.jsonl", {})), settings, gpu=target, seconds=-1
    )
    assert late.passed == 0
    assert late.remaining == len(space.feasible(problem, target))
