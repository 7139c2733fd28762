# SPDX-License-Identifier: Apache-2.0
"""Every frozen kernel timed at the sizes of the others, so that a size that nobody tuned takes what was
fastest at the nearest of them. Of a kernel that was measured at its own sizes alone nobody knows how it does
elsewhere: an estimate by the work took kernels that were twice as slow as another one (benchmarks/regret.py).

`survey` is the parent's side; `run_survey` runs in the worker.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..codegen.catalogue import Catalogue
from ..codegen.dtypes import dtype_named
from ..codegen.errors import ColdforgeError
from ..codegen.freeze.winner import OTHER_SIZES, Winner
from ..codegen.problem import Problem
from ..codegen.settings import Settings
from ..codegen.target import Target
from .client import WorkerClient

if TYPE_CHECKING:
    from .workbench import Workbench

LIMIT_S = 1800.0
SAMPLES = 9
_WARMUP = 3


def survey(
    winners: Sequence[Winner], target: Target, settings: Settings, package: str, declared: Catalogue
) -> list[Winner]:
    """The winners, those of this device with what each took at the sizes of all others that it covers.

    Args:
        winners: what the package holds.
        target: the device.
        package: importable here, built.
        declared: has the operators.

    Raises:
        ColdforgeError: the worker was lost, or could not load the package.
    """
    groups: dict[str, list[Winner]] = {}
    for winner in winners:
        if (winner.kind, winner.device) == (target.kind, target.device) and not winner.portable_only:
            groups.setdefault(_alike(winner), []).append(winner)
    rows: dict[str, list[dict[str, Any]]] = {}
    wanted = [group for group in groups.values() if len(group) > 1]
    if not wanted:
        return list(winners)
    roots = [str(root) for root in declared.roots[1:]]
    with WorkerClient(target, settings) as client:
        for group in wanted:
            problems = [_problem(winner, declared).to_dict() for winner in group]
            message = {"kind": "survey", "problems": problems, "entries": [w.name for w in group]}
            answer = client.ask({**message, "package": package, "roots": roots}, LIMIT_S)
            rows |= answer["rows"]
    return [_with(winner, rows[winner.name]) if rows.get(winner.name) else winner for winner in winners]


def _alike(winner: Winner) -> str:
    """What winners have in common that answer the same calls but for their sizes."""
    parts = (winner.operator, winner.dtype, winner.precision, dict(winner.specialisation))
    return json.dumps(parts, sort_keys=True)


def _problem(winner: Winner, declared: Catalogue) -> Problem:
    operator = declared.operator(winner.operator)
    absent = tuple(n for n in operator.optional_tensors if not winner.specialisation[f"has_{n}"])
    dims, dtype = dict(winner.workload), dtype_named(winner.dtype)
    problem = Problem(operator, dims, dtype, absent, operator.scalars, winner.workload_name)
    return problem.in_class(winner.precision)


def _with(winner: Winner, rows: list[dict[str, Any]]) -> Winner:
    return dataclasses.replace(winner, measurement={**winner.measurement, OTHER_SIZES: rows})


def run_survey(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's side: entry -> its rows, as `OTHER_SIZES` says."""
    import importlib

    import torch

    from ..codegen.catalogue import catalogue
    from .inputs import draw, workload_kinds
    from .measure import INPUT_SETS
    from .peers import answering_variant, frozen_kernel

    device, package = workbench.device, message["package"]
    declared = catalogue(*(Path(root) for root in message["roots"]))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in message["entries"]}
    device.settle()
    for plain in message["problems"]:
        problem = declared.problem_from_dict(plain)
        sizes = {name: problem.dims[name] for name in problem.operator.family.run_time}
        frozen = frozen_kernel(problem, problem.precision, package)
        kind = workload_kinds(problem)[0]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where an entry does not run, the reference answers
            sets = [
                {name: value.to(device.torch_device) for name, value in draw(problem, kind, seed).items()}
                for seed in range(INPUT_SETS)
            ]
            assert frozen.function is not None
            frozen.function(sets[0])  # loads the package
            extension = importlib.import_module(f"{package}.runtime.package").STATE.extension
            if extension is None:
                raise ColdforgeError(f"{package} has no extension; build it first")
            calls = frozen.calls(sets)
            for number, variant in enumerate(extension.variants):
                name = variant.rpartition("@")[0]
                if name not in found or any(row["sizes"] == sizes for row in found[name]):
                    continue  # of an entry's variants the first that runs here is the one that answers
                with extension.only(number):
                    frozen.function(sets[0])
                    if answering_variant(package)[0] != variant:
                        continue
                    device.sample_ms(calls, _WARMUP, cold=False)
                    taken = device.sample_ms(calls, SAMPLES, cold=device.cold_headline)
                found[name].append({"sizes": sizes, "time_ms": statistics.median(taken)})
    return {"rows": {name: rows for name, rows in found.items() if rows}}
