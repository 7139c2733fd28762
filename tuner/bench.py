# SPDX-License-Identifier: Apache-2.0
"""The comparison a user wants to see: frozen kernel against PyTorch, in turns, each row's error beside it.

A row's `rounds` says how many samples it has: a peer that is far slower than the frozen kernel gets few.

`bench` is the parent's side and makes no device context; `run_bench` runs in the worker, so that a crash of
any contestant does not take the command with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..codegen.errors import ColdforgeError, InputError
from ..codegen.settings import Settings
from ..codegen.target import Target
from .client import WorkerClient

if TYPE_CHECKING:
    from ..codegen.problem import Problem
    from .bound import Expectation
    from .peers import Contestant, Tensors
    from .workbench import Workbench

LIMIT_S = 1800.0


def bench(
    problem: Problem,
    target: Target,
    settings: Settings,
    *,
    precision: str | None = None,
    package: str = "coldforge.generated",
    budget_ms: float = 4000.0,
    roots: Sequence[Path] = (),
) -> dict[str, Any]:
    """Times the frozen kernel of a problem against its peers in a worker process.

    Args:
        problem: What is computed.
        target: Where.
        settings: Where state lives, and which compiler torch.compile is given.
        precision: The error class asked of the frozen kernel; the problem's when not given.
        package: The package that holds the frozen kernel.
        budget_ms: What the interleaved rounds may take together.
        roots: Folders with declarations beside the built-in ones.

    Returns:
        Plain JSON: operator, target, device, workload, rows, speedup, and the record of device and problem.
        `status` is 'wrong' when the frozen kernel's output exceeds its bound.

    Raises:
        InputError: The operator is not frozen, or no frozen kernel covers the problem here.
        ColdforgeError: The worker was lost.
    """
    started = time.monotonic()
    message = {
        "kind": "bench",
        "problem": problem.to_dict(),
        "precision": precision or problem.precision,
        "package": package,
        "budget_ms": budget_ms,
        "roots": [str(root) for root in roots],
    }
    with WorkerClient(target, settings) as client:
        answer = client.ask(message, LIMIT_S)
    answer.pop("kind")
    return {
        "operator": problem.operator.name,
        "target": target.kind,
        "device": target.device,
        "workload": problem.workload,
        **answer,
        "seconds": round(time.monotonic() - started, 3),
    }


def run_bench(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's side; see `bench`."""
    import torch

    from ..codegen.catalogue import catalogue
    from .beside import figures_beside
    from .bound import expect
    from .inputs import draw, workload_kinds
    from .measure import INPUT_SETS, in_rounds
    from .peers import answering_variant, frozen_kernel, manifest_entry, peers_of
    from .uncovered import refusal, warnings_of

    device = workbench.device
    declared = catalogue(*(Path(root) for root in message["roots"]))
    problem = declared.problem_from_dict(message["problem"])
    kind = workload_kinds(problem)[0]
    with torch.no_grad():
        sets = [
            {name: value.to(device.torch_device) for name, value in draw(problem, kind, seed).items()}
            for seed in range(INPUT_SETS)
        ]
        expected = expect(problem, sets[0], problem.scalars, message["precision"])
        frozen = frozen_kernel(problem, message["precision"], message["package"])
        with warnings_of(message["package"]) as met:
            rows = [_accuracy(frozen, sets[0], expected)]
        variant, why = answering_variant(message["package"])
        if variant is None:
            raise InputError(refusal(problem, device.kind, message["package"], met, why))
        entry = manifest_entry(message["package"], variant)
        contestants = [frozen, *peers_of(device, problem, sets[0], workbench.device.settings.cxx)]
        rows += [_accuracy(contestant, sets[0], expected) for contestant in contestants[1:]]
        running = [index for index, row in enumerate(rows) if not row["reason"]]
        calls = [contestants[index].calls(sets) for index in running]
        samples = in_rounds(device, calls, budget_ms=message["budget_ms"])
        record = _record(workbench, problem, message["precision"])
        beside = figures_beside(device, calls, energy_rounds=1)
    timed = dict(zip(running, samples, strict=True))
    for index, values in timed.items():
        rows[index] |= {**_times(list(values.values())), **beside[running.index(index)]}
    _refuse_impossible(rows, timed, problem, workbench)
    return {
        "status": "ok" if rows[0]["bound_ratio"] <= 1 else "wrong",
        "rows": rows,
        **_speedups([row["name"] for row in rows], timed),
        "variant": variant,
        "config": entry.get("config"),
        "compiler": entry.get("compiler"),
        **record,
    }


def _accuracy(contestant: Contestant, tensors: Tensors, expected: Expectation) -> dict[str, Any]:
    """A row without times: the error against float64, and how much of the frozen kernel's bound it uses;
    neither for a yardstick."""
    from .bound import judge

    row: dict[str, Any] = {"name": contestant.name, "precision": contestant.precision, "time_ms": None}
    row |= {"ci95_ms": None, "error": None, "bound_ratio": None, "reason": contestant.reason}
    row["answers"] = contestant.answers
    if contestant.function is None:
        return row
    try:
        output = contestant.function(tensors)
        judgement = judge(output, expected) if contestant.answers else None
    except RuntimeError as error:  # out of memory and the like; a broken device shows again at the next call
        lines = str(error).splitlines() or [type(error).__name__]
        return {**row, "reason": lines[0][:300]}
    if judgement is None:
        return row
    return {**row, "error": judgement.error, "bound_ratio": judgement.ratio}


def _times(values: list[float]) -> dict[str, Any]:
    from .intervals import MedianBootstrap

    found = MedianBootstrap(values)
    return {"time_ms": found.median, "ci95_ms": found.interval().to_list(), "rounds": len(values)}


def _refuse_impossible(
    rows: Sequence[dict[str, Any]], timed: dict[int, Any], problem: Problem, workbench: Workbench
) -> None:
    """Puts a reason in the place of times that cannot be true, as a search does; yardsticks may do less.

    Raises:
        ColdforgeError: The frozen kernel's is one.
    """
    from .floor import impossible

    cold = workbench.device.cold_headline
    for index in [index for index in timed if rows[index]["answers"]]:
        row = rows[index]
        doubt = impossible(row["time_ms"], problem, workbench.ceilings, row["precision"], cold=cold)
        if doubt and not index:
            raise ColdforgeError(f"the frozen kernel: {doubt}")
        if doubt:
            row |= {"time_ms": None, "ci95_ms": None, "reason": doubt}
            del timed[index]


def _speedups(names: list[str], timed: Mapping[int, Mapping[int, float]]) -> dict[str, Any]:
    """How many times the frozen kernel's time each peer takes: the median over the rounds, and its interval.

    Ratios are taken within a round, over the rounds that both had: on a shared machine the load of a moment
    falls on both, and cancels. The finals of a search compare their variants just so.
    """
    from .intervals import paired, ratio_bootstrap

    found = {names[i]: ratio_bootstrap(*paired(samples, timed[0])) for i, samples in timed.items() if i}
    return {
        "speedup": {name: ratio.median for name, ratio in found.items()},
        "speedup_ci95": {name: ratio.interval().to_list() for name, ratio in found.items()},
    }


def _record(workbench: Workbench, problem: Problem, precision: str) -> dict[str, Any]:
    """What is needed to read the figures later: device, clocks, versions, floor, problem."""
    from .floor import floor_of

    device = workbench.device
    floor = floor_of(problem, workbench.ceilings, precision, cold=device.cold_headline)
    return {
        "precision": precision,
        "problem": problem.to_dict(),
        "floor_ms": floor.time_ms,
        "floor": floor.to_dict(),
        "cold": device.cold_headline,
        "ceilings": workbench.ceilings.to_dict(),
        "probe": workbench.probe.to_dict(),
        "device_record": device.facts(),
    }
