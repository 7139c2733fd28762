# SPDX-License-Identifier: Apache-2.0
"""``coldforge tune`` for real: g++, the worker process, a small workload on this CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from coldforge.tuner.storage import default_url, open_storage
from coldforge.tuner.winners import collect_winners
from optuna.trial import TrialState

pytestmark = pytest.mark.build

OP = "conv2d_divide_leaky_relu"
TINY = ["--target", "cpu", "--workload", "small", "--shape", "N=1,H=20,W=20"]


# One core: on a machine that is shared, threads that wait for each other at every launch take a hundred
# times longer.
_ON_ONE_CORE = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from coldforge.tuner.cli import main
main()
"""


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", _ON_ONE_CORE, *arguments]


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "COLDFORGE_HOME": str(home), "COLDFORGE_JOBS": "2"}


def _run(home: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command, environment = _command(*arguments), _environment(home)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stderr
    return done


def _tune(home: Path, *arguments: str) -> dict[str, Any]:
    return json.loads(_run(home, "tune", OP, *TINY, *arguments, "--json").stdout)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def first(home: Path) -> dict[str, Any]:
    return _tune(home, "--trials", "6")


def _configs(home: Path, study: str) -> list[str]:
    loaded = optuna.load_study(study_name=study, storage=default_url(home))
    assert {t.state for t in loaded.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    return [json.dumps(t.params, sort_keys=True) for t in loaded.trials]


def test_a_run_ends_with_a_verified_best(first: dict[str, Any], home: Path) -> None:
    assert first["status"] == "ok"
    assert (first["operator"], first["target"], first["workload"]) == (OP, "cpu", "small+")
    assert sum(first["outcomes"].values()) == first["finished"] == 6
    assert "wrong_result" not in first["outcomes"]
    for entry in (first["best"], first["default"]):
        assert entry["time_ms"] > 0
        assert entry["floor_ms"] >= 0
        assert 0 < entry["error"] < 1e-5
        assert entry["template"] == "direct"
    assert first["best"]["time_ms"] <= first["default"]["time_ms"]
    assert len(set(_configs(home, first["study"]))) == 6


def test_the_same_command_adds_none_and_a_larger_total_the_rest(first: dict[str, Any], home: Path) -> None:
    again = _tune(home, "--trials", "6")
    assert (again["study"], again["added"], again["best"]) == (first["study"], 0, first["best"])
    before = _configs(home, first["study"])
    more = _tune(home, "--trials", "9")
    assert (more["added"], more["finished"]) == (3, 9)
    after = _configs(home, first["study"])
    assert after[:6] == before
    assert len(set(after)) == 9


def test_show_and_winner_come_from_the_study(first: dict[str, Any], home: Path) -> None:
    shown = json.loads(_run(home, "show", OP, "--json").stdout)
    assert shown["study"] == first["study"]
    assert shown["finals_held"] is True
    (winner,) = collect_winners(open_storage(None, home, create=False), [OP])
    assert dict(winner.config) == shown["best"]["config"]
    assert winner.time_ms == shown["best"]["time_ms"]
    assert "coldforge_kernel" in winner.source_text


def test_ctrl_c_stops_cleanly_and_keeps_everything(home: Path) -> None:
    arguments = ["tune", OP, *TINY[:-1], "N=1,H=22,W=22", "--trials", "200", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        _command(*arguments), env=_environment(home), start_new_session=True, **pipes
    ) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not _finished(home, "small+", 22):
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    stopped = json.loads(out)
    assert stopped["status"] == "stopped"
    assert stopped["finished"] >= 2
    assert len(_configs(home, stopped["study"])) == stopped["finished"]
    assert stopped["best"]["time_ms"] > 0


def _finished(home: Path, workload: str, height: int) -> bool:
    """Whether the study of that height has two trials."""
    shown = json.loads(_run(home, "show", "--json").stdout)["studies"]
    for row in shown:
        loaded = optuna.load_study(study_name=row["study"], storage=default_url(home))
        if loaded.user_attrs["about"]["problem"]["dims"]["H"] == height:
            return len(loaded.trials) >= 2
    return False


# Says what the compilers did whenever something was timed.
_WATCHED = """
import json, sys, time
from pathlib import Path
from coldforge.tuner import backends

def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""

def states(pids):
    until = time.monotonic() + 2.0  # one that waits for a core stops when it gets it
    while time.monotonic() < until and any(state(pid) not in ("T", "Z", "") for pid in pids):
        time.sleep(0.01)
    return [state(pid) for pid in pids]

seen = []
hush, unhush = backends.PoolCompiler.hush, backends.PoolCompiler.unhush

def watched_hush(self):
    hush(self)
    seen.append({"load": self.load, "stopped": list(self._pool._stopped)})

def watched_unhush(self):
    if seen and "states" not in seen[-1]:
        seen[-1]["states"] = states(seen[-1]["stopped"])
    unhush(self)

backends.PoolCompiler.hush, backends.PoolCompiler.unhush = watched_hush, watched_unhush
if __name__ == "__main__":
    from coldforge.tuner.cli import run
    out, *arguments = sys.argv[1:]
    code = run(arguments)
    Path(out).write_text(json.dumps({"code": code, "seen": seen, "torch": "torch" in sys.modules}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are followed in /proc")
def test_compilers_work_beside_the_worker_and_stand_still_while_it_times(tmp_path: Path) -> None:
    script, out, slow = tmp_path / "watched.py", tmp_path / "seen.json", tmp_path / "cxx"
    script.write_text(_WATCHED)
    slow.write_text('#!/bin/sh\ncase "$*" in *kernel.cpp*) sleep 0.3;; esac\nexec g++ "$@"\n')
    slow.chmod(0o755)
    arguments = ["tune", OP, *TINY, "--trials", "8", "--json"]
    environment = {**_environment(tmp_path / "home"), "COLDFORGE_CXX": str(slow)}
    done = subprocess.run(
        [sys.executable, str(script), str(out), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    watched, found = json.loads(out.read_text()), json.loads(done.stdout)
    assert watched["code"] == 0, done.stderr
    assert not watched["torch"], "the tuning process imports no torch"
    assert len(watched["seen"]) >= 8
    busy = [entry for entry in watched["seen"] if entry["load"]]
    assert busy, "no compiler was at work beside the worker"
    assert max(len(entry["stopped"]) for entry in busy) >= 2, "the compilers, not their processes alone"
    # One that ended just before it was stopped is gone, or waits for its parent, and disturbs nobody.
    assert {state for entry in busy for state in entry["states"]} - {"", "Z"} == {"T"}
    profile = found["profile"]
    assert found["compiled"] == 8
    assert {"ask", "render", "compile", "record", "verify", "time"} <= profile["seconds"].keys()
    assert 0 <= profile["device_idle"] < 1
    assert profile["bounded_by"] in ("compilers", "device")


def test_several_workloads_make_one_study_each(home: Path) -> None:
    shape = ["--shape", "N=1,H=20,W=20"]
    both = ["--workload", "small", "--workload", "unbiased", "--trials", "2", "--json"]
    done = _run(home, "tune", OP, "--target", "cpu", *shape, *both)
    runs = json.loads(done.stdout)["runs"]
    assert [run["workload"] for run in runs] == ["small+", "unbiased+"]
    assert len({run["study"] for run in runs}) == 2
    assert all(run["status"] == "ok" for run in runs)


def test_several_shapes_make_one_study_each_and_are_frozen_together(home: Path, tmp_path: Path) -> None:
    shapes = ["--shape", "N=1,H=20,W=20", "--shape", "N=2,H=9,W=31", "--shape", "N=1,H=20,W=20"]
    done = _run(home, "tune", OP, "--target", "cpu", *shapes, "--trials", "2", "--json")
    runs = json.loads(done.stdout)["runs"]
    assert len({run["study"] for run in runs}) == len(runs) == 2
    folder = ["--package", "cf_shapes", "--out", str(tmp_path), "--no-build", "--json"]
    frozen = json.loads(_run(home, "freeze", OP, *folder).stdout)
    assert {entry["what"] for entry in frozen["entries"]} == {"added"}
    told = {entry["shape"] for entry in frozen["entries"]}
    assert {"small N=1,H=20,W=20", "small N=2,H=9,W=31"} <= told
    entries = json.loads((tmp_path / "cf_shapes" / "manifest.json").read_text())["entries"]
    tuned = {tuple(e["workload"][n] for n in "NHW") for e in entries}
    assert {(1, 20, 20), (2, 9, 31)} <= tuned


def test_a_device_that_tells_no_energy_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from coldforge.tuner.cli import run
    from coldforge.tuner.devices.meters import cpu_meter

    if cpu_meter() is not None:
        pytest.skip("this machine tells its energy")
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))
    assert run(["tune", OP, "--target", "cpu", "--objective", "energy", "--trials", "1"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "--objective energy: " in line
    assert "tells no energy" in line


def test_another_shape_begins_with_what_this_one_found(first: dict[str, Any], home: Path) -> None:
    other = [*TINY[:-1], "N=1,H=16,W=24", "--trials", "6", "--warm-start"]
    begun = _run(home, "tune", OP, *other, "auto", "--json")
    found = json.loads(begun.stdout)
    assert found["study"] != first["study"]
    assert found["warm_start"] == first["study"]
    assert f"timed configs of {first['study']}" in begun.stderr
    # The default first, then what won there.
    best = {"template": first["best"]["template"], **first["best"]["config"]}
    assert json.dumps(best, sort_keys=True) in _configs(home, found["study"])[:5]
    again = _run(home, "tune", OP, *other, found["study"], "--json", code=2)
    assert "a study cannot begin with itself" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nope"], "unknown operator 'nope'"),
        ([OP, "--sampler", "nope"], "unknown sampler 'nope'"),
        ([OP, "--trials", "0"], "--trials"),
        ([OP, "--time-budget", "0"], "--time-budget"),
        ([OP, "--time-budget", "nan"], "nan is not a finite number of seconds"),
        ([OP, "--time-budget", "inf"], "inf is not a finite number of seconds"),
        ([OP, "--workload", "nope"], "unknown workload"),
        ([OP, "--template", "nope"], "unknown template"),
        ([OP, "--dtype", "fp8"], "unknown dtype"),
        ([OP, "--precision", "fp8"], "unknown precision"),
        ([OP, "--devices", "0,1"], "--devices 0,1: a CPU is one device"),
        ([OP, "--warm-start", "nope"], "unknown study 'nope'"),
        ([OP, "--objective", "speed"], "'speed' is not one of 'time', 'energy'"),
        ([OP, "--storage", "nonsense"], "storage URL 'nonsense' is malformed"),
        ([OP, "--shape", "N=x"], "expected NAME=INTEGER"),
        ([OP, "--seed", "-1"], "--seed"),
        ([OP, "--spill-limit", "some"], "'some' is neither a number of bytes nor off"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from coldforge.tuner.cli import run

    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))
    assert run(["tune", *arguments, "--target", "cpu", "--json"]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""
