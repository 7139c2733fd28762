# SPDX-License-Identifier: Apache-2.0
"""Studies to report on, made without tuning: of any size, of several templates, with hostile texts, and one
of the trials that were recorded on an H200.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.space import Config
from coldforge.codegen.target import Target, cpu_target_for, cuda_target
from coldforge.tuner.identity import StudyInputs
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.search import FeasibleSet
from coldforge.tuner.study import Study, open_study
from optuna.storages import BaseStorage, InMemoryStorage

OP = "conv2d_divide_leaky_relu"
EVIL = "<script>window.pwned = 1</script>"
RECORDED = Path(__file__).parents[2] / "benchmarks/results/h200_conv2d_divide_leaky_relu_seed_tune.json"
Configs = dict[str, Sequence[dict[str, Any]]]


def problem_of(workload: str = "small", **shape: int) -> Problem:
    """The problem that the studies are of."""
    return make_problem(catalogue().operator(OP), workload, shape)


def new_study(
    storage: BaseStorage,
    templates: Sequence[str] = ("direct",),
    target: Target | None = None,
    problem: Problem | None = None,
    **inputs: Any,
) -> Study:
    """An empty study, whose operator is declared as it is here.

    Args:
        inputs: of `StudyInputs`, in place of those.
    """
    about = problem or problem_of()
    given = StudyInputs(
        operator=OP,
        workload=about.workload,
        operator_digest=about.operator.digest,
        problem=about.to_dict(),
        precision="fp32",
        target=(target or cpu_target_for("x86-64-v2")).to_dict(),
        spaces=dict.fromkeys(templates, "s"),
        sources={},
        compiler="a compiler 1.0",
        driver="",
    )
    study = open_study(storage, dataclasses.replace(given, **inputs))
    study.touch()
    return study


def record(study: Study, configs: Configs, results: Sequence[TrialResult]) -> None:
    """Stores one result for each of the first points of these templates."""
    feasible = FeasibleSet(configs)
    for index, result in enumerate(results):
        study.record(feasible.points[index], result, feasible.distributions_of(index))


def right(time_ms: float, *, floor_ms: float = 0.5, **resources: int) -> TrialResult:
    """A right config."""
    floor = {"time_ms": floor_ms, "memory_ms": floor_ms / 2, "arithmetic_ms": floor_ms, "fma_ms": floor_ms}
    floor |= {"cache_resident": False, "limit": "arithmetic"}
    details = {"floor_ms": floor_ms, "floor": floor, "launch": {"block": 256, "shared_bytes": 4096}}
    return TrialResult(TrialOutcome.OK, time_ms=time_ms, error=1e-7, resources=resources, details=details)


def failed(outcome: TrialOutcome, reason: str) -> TrialResult:
    """A config that failed."""
    return TrialResult(outcome, reason)


def hold_finals(
    study: Study, entries: Sequence[dict[str, Any]], winner: int = 0, source: str = "int x;\n"
) -> None:
    """Stores finals of entries with template, config, time_ms and more, and their winner."""
    results = study.results()
    rows = [{"outcome": "ok", "floor_ms": 0.5, "error": 1e-7, "reason": "", **entry} for entry in entries]
    best = rows[winner]
    about = study.about
    measurement = {"time_ms": best["time_ms"], "floor_ms": 0.5, "error": 1e-7, "bound_ratio": 0.1}
    measurement["floor"] = results[0].details.get("floor")
    stored = {
        "operator": about["operator"],
        "family": "conv2d",
        "template": best["template"],
        "operator_digest": about["operator_digest"],
        "target": about["target"],
        "dtype": "fp32",
        "precision": "fp32",
        "specialisation": {},
        "workload": about["problem"]["dims"],
        "workload_name": "small",
        "config": best["config"],
        "source_text": source,
        "source_name": "name",
        "source_digest": hashlib.sha256(source.encode()).hexdigest(),
        "binary": None,
        "launch": {"units": "1", "grain": "1"},
        "derived": {},
        "compiler": about["compiler"],
        "flags": [],
        "resources": {},
        "measurement": measurement | {k: best[k] for k in ("declared", "rule") if k in best},
        "study": study.name,
        "verified": True,
    }
    record_ = {"trials": len(results), "final": True, "time_ms": best["time_ms"], "winner": stored}
    study.set_winner(record_, rows)


def typical_study(storage: BaseStorage | None = None, count: int = 30) -> Study:
    """A cpu study of the template `direct` as it is declared: every sixth config failed, finals with ties."""
    storage = storage or InMemoryStorage()
    target, problem = cpu_target_for("x86-64-v2"), problem_of()
    space = catalogue().space(problem.operator, target, "direct")
    found = [dict(config) for config in space.feasible(problem, target)]
    default = dict(space.default)
    others = [config for config in found if config != default]
    step = max(1, len(others) // count)
    configs = [default, *others[::step]][:count]
    study = new_study(storage, target=target, problem=problem, defaults={"direct": default})
    results = [
        failed(TrialOutcome.WRONG_RESULT, f"normal inputs: off by {index} bounds")
        if index % 6 == 5
        else right(2.0 - 1.2 * index / count + 0.1 * (index % 4), code_bytes=1000 + index)
        for index in range(count)
    ]
    record(study, {"direct": configs}, results)
    timed = sorted((r for r in study.results() if r.ok), key=lambda r: r.time_ms or 0.0)
    entries = [_finalist(dict(r.config), rank, r.time_ms or 0.0) for rank, r in enumerate(timed[:4])]
    entries.append(_finalist(default, 4, 2.0))
    from coldforge.codegen.render import render

    source = render(space, problem, Config(entries[0]["config"]), target).text
    hold_finals(study, entries, source=source)
    return study


def _finalist(config: dict[str, Any], rank: int, time_ms: float) -> dict[str, Any]:
    entry = {
        "template": "direct",
        "config": config,
        "time_ms": time_ms,
        "declared": False,
        "rule": "fewer things",
    }
    entry["ci95_ms"] = [0.99 * time_ms, 1.01 * time_ms]
    if rank == 0:
        return {**entry, "standing": "leader"}
    ratio = 1.001 if rank == 1 else 1.0 + rank / 10
    entry |= {"ratio": ratio, "ratio_ci95": [ratio - 0.01, ratio + 0.01]}
    return {**entry, "standing": "tied" if rank == 1 else "slower"}


def recorded_study(storage: BaseStorage | None = None) -> Study:
    """The 420 trials of the template `direct` that were recorded on an H200. Launches are worked out from the
    space as it is declared now; the declaration is another one since."""
    document = json.loads(RECORDED.read_text())
    result, columns = document["result"], document["columns"]
    target = cuda_target("sm_90", "NVIDIA H200")
    operator = catalogue().operator(OP)
    problem = make_problem(operator, "seed")
    space = catalogue().space(operator, target, "direct")
    first = columns.index("TILE_X")
    rows = [dict(zip(columns, row, strict=True)) for row in document["trials"]]
    configs = [{name: row[name] for name in columns[first:]} for row in rows]
    default = result["default"]["config"]
    study = new_study(
        storage or InMemoryStorage(),
        target=target,
        problem=problem,
        compiler=result["compiler"],
        driver=result["driver"],
        defaults={"direct": default},
    )
    floor_ms = result["best"]["floor_ms"]
    floor = {"time_ms": floor_ms, "memory_ms": floor_ms, "arithmetic_ms": 1e3 * 3 * problem.flops / 989.4e12}
    floor |= {"fma_ms": 1e3 * problem.flops / 66.9e12, "cache_resident": False, "limit": "memory"}
    results = []
    for row, config in zip(rows, configs, strict=True):
        launch = space.launch(problem, Config(config), target).to_dict()
        results.append(
            TrialResult(
                TrialOutcome(row["outcome"]),
                time_ms=row["time_ms"],
                error=row["relative_l2_error"],
                resources={n: row[n] for n in ("registers", "spill_store_bytes", "code_bytes")},
                details={"floor_ms": floor_ms, "floor": floor, "launch": launch},
            )
        )
    feasible = FeasibleSet({"direct": configs})
    for config, outcome in zip(configs, results, strict=True):
        index = feasible.index_of({"template": "direct", **config})
        assert index is not None
        study.record(feasible.points[index], outcome, feasible.distributions_of(index))
    return study


def large_study(count: int = 600, storage: BaseStorage | None = None) -> Study:
    """A study of a GPU with many trials of two templates, 14 parameters each, one in ten failed."""
    study = new_study(storage or InMemoryStorage(), ("first", "second"), cuda_target("sm_90", "A GPU"))
    names = {t: [f"{t.upper()}_PARAMETER_{i}" for i in range(14)] for t in ("first", "second")}
    configs: Configs = {
        t: [
            {n: 2 ** ((i // 3**p + i * p) % 4) for p, n in enumerate(given)} | {"N": i}
            for i in range(count // 2)
        ]
        for t, given in names.items()
    }
    results = [
        failed(TrialOutcome.RESOURCE_LIMIT, f"not run: its registers spill {index} bytes a thread")
        if index % 10 == 9
        else right(1.0 + (index * 0.618034) % 1, registers=32 + index % 200, spill_store_bytes=index % 9)
        for index in range(count)
    ]
    record(study, configs, results)
    return study


def hostile_study(storage: BaseStorage | None = None) -> Study:
    """Every text that a user, a kernel or a log may put into a study begins a script."""
    target = cuda_target("sm_90", f"GPU {EVIL}")
    names = {"target": target, "operator": f"op{EVIL}", "compiler": f"cc {EVIL}", "driver": EVIL}
    problem_name = {"workload": f"w{EVIL}"}
    study = new_study(
        storage or InMemoryStorage(),
        (f"t{EVIL}",),
        **names,
        **problem_name,
        defaults={f"t{EVIL}": {f"P{EVIL}": 0, "Q": f"v{EVIL}0"}},
    )
    configs = {f"t{EVIL}": [{f"P{EVIL}": i, "Q": f"v{EVIL}{i % 3}"} for i in range(30)]}
    log = failed(TrialOutcome.COMPILE_ERROR, f"log </script>{EVIL}\nmore")
    results = [log if i % 5 == 4 else right(1.0 + i, registers=40) for i in range(30)]
    record(study, configs, results)
    entries = [
        {
            "template": f"t{EVIL}",
            "config": config,
            "time_ms": 1.0 + i,
            "standing": "leader" if i == 0 else "slower",
        }
        | ({"rule": EVIL, "declared": False} if i == 0 else {"ratio_ci95": [1.1, 1.2]})
        for i, config in enumerate(configs[f"t{EVIL}"][:3])
    ]
    hold_finals(study, entries, source=f'const char* x = "{EVIL}";\n// </pre></script>\n')
    return study
