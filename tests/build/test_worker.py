# SPDX-License-Identifier: Apache-2.0
"""The worker process: right and wrong variants, crashes, hangs, and a fresh worker after each."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.errors import ColdforgeError, InputError
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import KernelSource
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import cpu_target, cuda_target
from coldforge.tuner.client import SLOW_FLOPS, WorkerClient, time_limit_s
from coldforge.tuner.devices.base import DeviceFault
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.ranking import rank
from coldforge.tuner.request import TrialRequest
from coldforge.tuner.worker import _answer
from coldforge.tuner.workers import Workers

pytestmark = pytest.mark.build

SHAPE = {"N": 2, "H": 24, "W": 24, "C_in": 4, "C_out": 6}
KERNEL = """
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
struct Args {
  const float *x, *weight, *bias;
  float* y;
  int64_t N, H, W, H_out, W_out;
  double divisor, negative_slope;
};
extern "C" __attribute__((visibility("default")))
void coldforge_kernel(int64_t begin, int64_t end, void* args) {
  const Args& a = *static_cast<const Args*>(args);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t k = unit % 6, n = unit / 6;
    for (int64_t i = 0; i < a.H_out; ++i)
      for (int64_t j = 0; j < a.W_out; ++j) {
        float v = 0.0f;
        for (int64_t c = 0; c < 4; ++c)
          for (int64_t r = 0; r < 3; ++r)
            for (int64_t s = 0; s < 3; ++s)
              v += a.x[((n * 4 + c) * a.H + i + r) * a.W + j + s] * a.weight[((k * 4 + c) * 3 + r) * 3 + s];
        v = (v + a.bias[k]) / float(a.divisor);
        a.y[((n * 6 + k) * a.H_out + i) * a.W_out + j] = v > 0 ? v : v * float(a.negative_slope);
      }
  }
  FAULT;
}
"""

Make = Callable[..., TrialRequest]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Compiles KERNEL with a fault and wraps it in a request."""
    cache = Cache(tmp_path_factory.mktemp("cache"))
    problem = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small", SHAPE)

    def request(fault: str = "", symbol: str = "coldforge_kernel") -> TrialRequest:
        text = KERNEL.replace("FAULT", fault).replace("coldforge_kernel", symbol)
        digest = hashlib.sha256(text.encode()).hexdigest()
        source = KernelSource(text, symbol, digest, "worker_test", "cpp")
        artifact = compile_source(source, cpu_target(), cache)
        return TrialRequest(
            problem=problem.to_dict(),
            artifact=artifact.to_dict(),
            template="by_hand",
            config={"UNITS": 6},
            launch={"units": "N * UNITS_ALL", "grain": "1"},
            derived={"UNITS_ALL": "UNITS"},
        )

    return request


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(tmp_path_factory.mktemp("home"), 1, "g++", may_build=False)


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[WorkerClient]:
    with WorkerClient(cpu_target(), settings) as shared:
        yield shared


def test_a_right_variant_is_verified_and_timed(client: WorkerClient, make: Make) -> None:
    request = make()
    result = client.run(request)
    assert result.outcome is TrialOutcome.OK, result.reason
    assert result.time_ms is not None
    assert 0 < result.time_ms < 100
    assert len(result.samples_ms) >= 11
    assert result.error is not None
    assert 0 < result.error < 1e-6
    assert result.bound_ratio is not None
    assert 0 < result.bound_ratio < 1
    assert result.config == {"UNITS": 6}
    assert result.code_digest == request.artifact["code_digest"]
    assert result.details["floor_ms"] > 0
    assert result.details["checks"] == 58
    assert TrialResult.from_dict(result.to_dict()) == result


def test_a_slow_variant_is_given_up_early(client: WorkerClient, make: Make) -> None:
    result = client.run(replace(make(), best_ms=1e-4))
    assert result.ok
    assert result.details["given_up"]
    assert len(result.samples_ms) == 3


def test_a_wrong_variant_has_a_reason(client: WorkerClient, make: Make) -> None:
    result = client.run(make("if (begin == 0) a.y[0] += 1.0f"))
    assert result.outcome is TrialOutcome.WRONG_RESULT
    assert "outputs are wrong; worst at" in result.reason
    assert result.time_ms is None
    assert result.bound_ratio is not None
    assert result.bound_ratio > 1e3


def test_a_fault_that_comes_with_use_is_caught_after_timing(client: WorkerClient, make: Make) -> None:
    late = "static int calls = 0; if (begin == 0 && ++calls > 131) a.y[0] += 1.0f"
    result = client.run(make(late))
    assert result.outcome is TrialOutcome.WRONG_RESULT
    assert result.reason.startswith("after timing, ")


def test_what_cannot_be_loaded_is_a_limit_of_the_device(client: WorkerClient, make: Make) -> None:
    result = client.run(make(symbol="another_name"))
    assert result.outcome is TrialOutcome.RESOURCE_LIMIT
    assert "coldforge_kernel" in result.reason


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("*reinterpret_cast<volatile int*>(8) = 1", "died of SIGSEGV"),
        ("std::abort()", "died of SIGABRT"),
        ('std::fprintf(stderr, "lost my way\\n"); _exit(7)', "ended with status 7 (lost my way)"),
    ],
)
def test_a_crash_costs_one_result(fault: str, words: str, client: WorkerClient, make: Make) -> None:
    client.run(make())
    starts = client.starts
    result = client.run(make(fault))
    assert result.outcome is TrialOutcome.CRASH
    assert words in result.reason
    assert result.config == {"UNITS": 6}
    assert client.run(make()).ok
    assert client.starts == starts + 1


def _killed_while_it_serves(client: WorkerClient, request: TrialRequest, kills: int) -> TrialResult:
    """The result of a request whose worker is killed from outside so many times."""
    killed: set[int] = set()
    handed: list[int] = []
    client.begin(request, handed_over=lambda: handed.append(1))
    while (result := client.poll()) is None:
        pid, worker = client.pid, client._workers.current
        serves = worker is not None and worker.prepared is not None
        if pid is not None and serves and pid not in killed and len(killed) < kills:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        wait(client.waitables, min(0.1, client.patience_s or 0.1))
    assert (len(killed), len(handed)) == (kills, 1)
    return result


def test_a_kill_from_outside_brands_no_variant_and_a_spare_takes_over(settings: Settings, make: Make) -> None:
    noise: list[str] = []
    hushing = {"hush": lambda: noise.append("hush"), "unhush": lambda: noise.append("unhush")}
    slow = make("usleep(2000)")
    with WorkerClient(cpu_target(), settings, spare=True, **hushing) as client:
        assert client.run(make()).details["phase_s"]["prepare"] > 0
        assert client.starts == 2
        spare = client._workers._spare
        assert spare is not None
        assert _killed_while_it_serves(client, slow, kills=1).ok
        assert client._workers.current is spare
        lost = _killed_while_it_serves(client, slow, kills=2)
        assert (lost.outcome, lost.details["attempts"]) == (TrialOutcome.CRASH, 2)
        assert "died of SIGKILL" in lost.reason
        pids = [client._workers._spare.pid if client._workers._spare else None]
        assert client.poll() is None
        assert client.waitables == []
    assert noise[::2] == ["hush"] * (len(noise) // 2)
    assert noise[1::2] == ["unhush"] * (len(noise) // 2)
    assert len(noise) >= 4
    assert not any(pid is not None and _alive(pid) for pid in pids)


def test_spares_that_die_idle_are_given_up(settings: Settings, make: Make) -> None:
    workers = Workers(cpu_target(), settings, spare=True, hush=lambda: None, unhush=lambda: None)
    for _ in range(10):
        workers.fill_up()
        if workers._spare is not None and workers._spare.pid is not None:
            os.kill(workers._spare.pid, signal.SIGKILL)
            while workers._spare.alive:
                time.sleep(0.01)
    assert workers.starts == 3
    workers.close(kill=True)


def test_a_hang_ends_at_its_limit(client: WorkerClient, make: Make) -> None:
    client.run(make())  # the references are there: the limit is the variant's own
    pid = client.pid
    began = time.monotonic()
    result = client.run(make("for (;;) usleep(1000)"), timeout_s=1.0)
    assert result.outcome is TrialOutcome.TIMEOUT
    assert result.reason == "no answer within 1 s"
    assert 1.0 <= time.monotonic() - began < 10.0
    assert pid is not None
    assert not _alive(pid)
    assert client.run(make()).ok


def test_a_worker_killed_while_idle_is_replaced(client: WorkerClient, make: Make) -> None:
    client.run(make())
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    time.sleep(0.2)
    assert client.run(make()).ok


def test_finals_are_timed_in_turns(client: WorkerClient, make: Make) -> None:
    slow = make("for (volatile int q = 0; q < 400000; ++q) {}")
    wrong = make("if (begin == 0) a.y[0] += 1.0f")
    fast, bad, slower = client.finals([make(), wrong, slow])
    assert fast.ok
    assert slower.ok
    assert bad.outcome is TrialOutcome.WRONG_RESULT
    assert fast.time_ms is not None
    assert slower.time_ms is not None
    assert fast.time_ms < slower.time_ms
    assert len(fast.samples_ms) == len(slower.samples_ms) == fast.details["rounds"]
    ranking = rank([dict(enumerate(result.samples_ms)) for result in (fast, slower)])
    assert ranking.leader == 0
    assert ranking.declared
    assert client.finals([]) == []


def test_finals_survive_a_crash(client: WorkerClient, make: Make) -> None:
    results = client.finals([make(), make("std::abort()")])
    assert [result.outcome for result in results] == [TrialOutcome.OK, TrialOutcome.CRASH]


def test_facts(client: WorkerClient) -> None:
    facts = client.facts()
    assert facts["model"] == cpu_target().device
    assert facts["threads"] == cpu_target().attributes["threads"]
    assert facts["ceilings"]["read"] > 1e8
    assert facts["ceilings"]["flops"]["fma"] > 1e8


def test_a_problem_that_cannot_be_verified_is_the_users_input(client: WorkerClient, make: Make) -> None:
    request = make()
    hidden = {**request.problem, "scalars": {"divisor": 1e300, "negative_slope": 0.01}}
    with pytest.raises(InputError, match="its output hardly changes when the data do"):
        client.run(replace(request, problem=hidden))
    assert client.run(request).ok


def test_a_device_that_is_not_there(settings: Settings, make: Make) -> None:
    with WorkerClient(cuda_target("sm_90"), settings) as absent, pytest.raises(InputError):
        absent.facts()


def test_close_ends_the_worker_even_in_a_hang(settings: Settings, make: Make) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    client = WorkerClient(cpu_target(), settings)
    client.run(make())
    pid = client.pid
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            client.run(make("for (;;) usleep(1000)"))
    finally:
        signal.signal(signal.SIGALRM, before)
    began = time.monotonic()
    client.close()
    client.close()
    assert time.monotonic() - began < 3.0
    assert pid is not None
    assert not _alive(pid)


class BrokenWorkbench:
    """Fails as it is told; its own device, and a device that a kernel broke earlier."""

    def __init__(self, error: Exception, late: Exception | None = None) -> None:
        self.error, self.late = error, late

    @property
    def device(self) -> BrokenWorkbench:
        return self

    def synchronize(self) -> None:
        if self.late is not None:
            raise self.late

    def trial(self, request: TrialRequest) -> TrialResult:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "by_user"),
    [
        (DeviceFault("CUDA_ERROR_ILLEGAL_ADDRESS"), "fault", None),
        (InputError("no such thing"), "refused", True),
        (ColdforgeError("disk full"), "refused", False),
        (ZeroDivisionError("division by zero"), "refused", False),
    ],
)
def test_every_failure_has_an_answer(error: Exception, kind: str, by_user: bool | None, make: Make) -> None:
    message = {"kind": "trial", "request": make().to_dict()}
    answer = _answer(BrokenWorkbench(error), message)  # type: ignore[arg-type]
    assert answer["kind"] == kind
    assert str(error) in answer["message"]
    assert answer.get("input") is by_user


def test_a_fault_that_pytorch_notices_first_is_a_fault(make: Make) -> None:
    broken = BrokenWorkbench(RuntimeError("CUDA error"), DeviceFault("illegal address"))
    answer = _answer(broken, {"kind": "trial", "request": make().to_dict()})  # type: ignore[arg-type]
    assert answer == {"kind": "fault", "message": "illegal address"}


def test_a_device_fault_is_a_crash_and_the_worker_is_replaced(
    client: WorkerClient, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.run(make())
    pid, starts = client.pid, client.starts
    fault = {"kind": "fault", "message": "illegal address"}
    monkeypatch.setattr("coldforge.tuner.client.WorkerProcess.read", lambda _: fault)
    result = client.run(make())
    assert result.outcome is TrialOutcome.CRASH
    assert result.reason == "illegal address"
    monkeypatch.undo()
    assert pid is not None
    assert not _alive(pid)
    assert client.run(make()).ok
    assert client.starts == starts + 1


def test_time_limits_follow_the_work(make: Make, settings: Settings) -> None:
    request = make()
    assert time_limit_s(request) == 60.0
    heavy = replace(request, flops=20 * 10**9)
    assert time_limit_s(heavy) == 60.0 + 21 * 20.0
    assert time_limit_s(replace(heavy, best_ms=50.0)) == 60.0 + 10.0 + 20.0
    # A first variant that hangs on a GPU is not waited for as long as a slow CPU would be.
    assert time_limit_s(heavy, slow_flops=SLOW_FLOPS["cuda"]) == pytest.approx(60.0 + 21 * 0.2)
    with WorkerClient(cuda_target("sm_90"), settings) as client:
        base_s = settings.trial_limit_s
        assert client._limit_s(heavy) == pytest.approx(base_s + 21 * 0.2)


def test_an_interrupt_before_the_worker_is_started_still_closes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", interrupted)
    client = WorkerClient(cpu_target(), settings)
    with pytest.raises(KeyboardInterrupt):
        client.facts()
    client.close()
    assert client.pid is None


_PARENT = """
import sys
from pathlib import Path
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import cpu_target
from coldforge.tuner.client import WorkerClient

if __name__ == "__main__":
    client = WorkerClient(cpu_target(), Settings(Path(sys.argv[1]), 1, "g++", may_build=False))
    client.facts()
    assert "torch" not in sys.modules
    print(client.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="death signals are Linux's")
def test_a_killed_parent_takes_its_worker_along(settings: Settings, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    command = [sys.executable, str(script), str(settings.home)]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _alive(pid)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 10.0
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)
    assert not list(scratch.glob("coldforge-worker-*")), "a log file was left behind"


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
