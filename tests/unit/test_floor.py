# SPDX-License-Identifier: Apache-2.0
"""The rule that refuses impossible times, as it is written, and what a probe measures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import Target
from coldforge.tuner import floor
from coldforge.tuner.devices.base import Call, MathMode
from coldforge.tuner.floor import IMPOSSIBLE, Ceilings, ceilings_of, floor_of, impossible, probe, probed
from torch_device import TorchDevice

CACHE = 60 << 20
CEILINGS = Ceilings(4e12, 5e12, {"fma": 60e12, "tf32": 400e12, "fp16": 900e12}, CACHE, "table", 4.2e12)


def conv(**shape: int) -> Problem:
    return make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "seed", shape)


def least_ms(problem: Problem, ceilings: Ceilings, rate: float) -> float:
    """The rule by hand: max(flop floor, (bytes read + max(0, bytes written - cache)) / bandwidth)."""
    moved = problem.bytes_read + max(0, problem.bytes_written - ceilings.cache_bytes)
    return 1e3 * max(problem.flops / rate, moved / max(ceilings.read, ceilings.write))


@pytest.mark.parametrize(
    ("precision", "rate"), [("fp32", 900e12 / 3), ("tf32", 900e12), ("fp16", 900e12), ("bf16", 900e12)]
)
@pytest.mark.parametrize("shape", [{}, {"C_in": 512, "N": 16}, {"N": 64, "H": 256}])
def test_the_rule_as_it_is_written(precision: str, rate: float, shape: dict[str, int]) -> None:
    problem = conv(**shape)
    edge = IMPOSSIBLE * least_ms(problem, CEILINGS, rate)
    assert impossible(1.0001 * edge, problem, CEILINGS, precision, cold=True) == ""
    message = impossible(0.9999 * edge, problem, CEILINGS, precision, cold=True)
    assert message == f"timing error: {0.9999 * edge:.4g} ms, but the device needs at the very least " + (
        f"{edge / IMPOSSIBLE:.4g} ms"
    )
    assert impossible(0.5 * edge, problem, CEILINGS, precision, cold=False) == "", (
        "a warm time refuses nothing"
    )


def test_what_the_cache_may_hold_refuses_nothing() -> None:
    problem = conv()
    moved = problem.bytes_read + problem.bytes_written
    fits = replace(CEILINGS, cache_bytes=moved // 2 + 1)
    full = replace(CEILINGS, cache_bytes=moved // 2 - 1)
    assert impossible(1e-9, problem, fits, "fp32", cold=True) == ""
    assert impossible(1e-9, problem, full, "fp32", cold=True) != ""
    assert floor_of(problem, fits, "fp32", cold=True).cache_resident
    assert not floor_of(problem, full, "fp32", cold=True).cache_resident


def test_the_bound_that_applies() -> None:
    found = floor_of(conv(), CEILINGS, "fp32", cold=True)
    assert found.limit == "memory"
    assert found.time_ms == found.memory_ms
    wide = floor_of(conv(C_in=1024, N=8), CEILINGS, "fp32", cold=True)
    assert wide.limit == "arithmetic"
    assert wide.time_ms == wide.arithmetic_ms
    assert wide.fma_ms == pytest.approx(5 * wide.arithmetic_ms)


MOVED = {"sum": 4 << 20, "fill_": 32 << 20, "copy_": 16 << 20}


class Streaming(TorchDevice):
    """Says how long what a probe does takes, by what it does: the largest tensor's bytes, or the product."""

    bandwidth = 1e11  # bytes a second

    def __init__(self, model: str = "Some GPU", *, gpu: bool = False) -> None:
        attributes = {"threads": 1, "llc_bytes": 1 << 10, "vector_bytes": 16}
        super().__init__(
            Target("cpu", "x86-64-v2", model, attributes), Settings(Path("unused"), 1, "g++", may_build=False)
        )
        self.cold_headline = gpu
        self.settled, self.cold = 0, set[bool]()
        self.mode = "fp32"
        if gpu:
            self.kind = "cuda"

    def settle(self) -> None:
        self.settled += 1

    def math_modes(self, dtype: str) -> tuple[MathMode, ...]:
        plain = super().math_modes(dtype)
        return (*plain, MathMode("_tf32", "tf32", self._tf32)) if self.kind == "cuda" else plain

    def _tf32(self) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def mode() -> Any:
            self.mode = "tf32"
            yield
            self.mode = "fp32"

        return mode()

    def sample_ms(self, calls: Sequence[Call], count: int, *, cold: bool) -> list[float]:
        call: Any = calls[0]
        if not hasattr(call, "args"):
            self.cold.add(cold)
            moved = MOVED[call.__code__.co_names[-1]]
            return [1e3 * moved / self.bandwidth] * count
        a = call.args[0]
        rate = {"fp32": 1e12, "tf32": 8e12}[self.mode] if a.dtype == torch.float32 else 16e12
        return [2e3 * a.shape[0] ** 3 / rate] * count


@pytest.mark.parametrize("gpu", [False, True])
def test_what_a_probe_measures(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "PROBE_BYTES", (1 << 20, 4 << 20))
    monkeypatch.setattr(floor, "SIDES", {"cuda": 8, "cpu": 8})
    device = Streaming(gpu=gpu)
    found = probe(device)
    assert device.settled == 1
    assert device.cold == {gpu}, "with a flushed cache where times are taken so"
    count = (1 << 20) // 4
    copy = 8 * count / (MOVED["copy_"] / Streaming.bandwidth)
    assert found.copy == pytest.approx(copy)
    assert found.write == pytest.approx(copy), "a copy was faster than a fill"
    assert found.read == pytest.approx(4 * count / (MOVED["sum"] / Streaming.bandwidth))
    assert found.flops == pytest.approx({"fma": 1e12, "tf32": 8e12, "fp16": 16e12} if gpu else {"fma": 1e12})
    assert (found.source, found.cache_bytes) == ("probe", 1 << 10)


def test_a_probe_is_kept_also_of_a_device_that_the_table_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        floor, "probe", lambda device: seen.append(device) or Ceilings(1e12, 1e12, {}, 4, "probe")
    )
    device = Streaming("NVIDIA H200")
    assert ceilings_of(device, tmp_path).source == "table"
    assert seen == []
    assert probed(device, tmp_path) == probed(device, tmp_path) == Ceilings(1e12, 1e12, {}, 4, "probe")
    assert len(seen) == 1
    assert ceilings_of(device, tmp_path).copy == 4.27e12
    (path,) = (tmp_path / "devices").iterdir()
    older = json.loads(path.read_text())
    del older["copy"]
    path.write_text(json.dumps(older))
    assert probed(device, tmp_path).copy == 0.0
    assert len(seen) == 1


def test_a_bench_gives_impossible_times_a_reason() -> None:
    from types import SimpleNamespace

    from coldforge.codegen.errors import ColdforgeError
    from coldforge.tuner.bench import _refuse_impossible

    bench: Any = SimpleNamespace(device=SimpleNamespace(cold_headline=True), ceilings=CEILINGS)
    problem = conv()
    edge = IMPOSSIBLE * least_ms(problem, CEILINGS, 300e12)

    def row(name: str, time_ms: float, answers: bool = True) -> dict[str, Any]:
        figures = {"name": name, "time_ms": time_ms, "ci95_ms": [time_ms, time_ms], "answers": answers}
        return {**figures, "precision": "fp32", "reason": ""}

    rows = [row("frozen", 2 * edge), row("eager", 0.9 * edge), row("read once", 0.5 * edge, False)]
    timed: dict[int, Any] = {0: {}, 1: {}, 2: {}}
    _refuse_impossible(rows, timed, problem, bench)
    assert set(timed) == {0, 2}
    assert rows[1]["time_ms"] is None
    assert rows[1]["reason"].startswith("timing error: ")
    assert rows[2]["time_ms"] == 0.5 * edge
    with pytest.raises(ColdforgeError, match="the frozen kernel: timing error"):
        _refuse_impossible([row("frozen", 0.9 * edge)], {0: {}}, problem, bench)
