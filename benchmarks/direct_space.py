# SPDX-License-Identifier: Apache-2.0
"""Compiles every feasible config of a CUDA space and counts what comes out: how many compile, how many differ
in machine code, how many spill registers, how good the space's register estimate is. Needs no GPU.

    python benchmarks/direct_space.py --arch sm_90 --jobs 8 --out direct_space.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from coldforge.codegen.atomic import write_text
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache
from coldforge.codegen.compile.pool import CompileRequest, compile_many
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import Target, cuda_target

HEAVY_SPILL_BYTES = 64
"""Spills beyond this many bytes stored a thread make a config pointless."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operator", default="conv2d_divide_leaky_relu")
    parser.add_argument("--template", default="direct")
    parser.add_argument("--workload", default="seed")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--jobs", type=int, default=2, help="compiling processes")
    parser.add_argument("--every", type=int, default=1, help="compile only every n-th config")
    parser.add_argument("--cache", type=Path, help="keep the cubins here")
    parser.add_argument("--out", type=Path, help="write a record of each config here")
    return parser.parse_args()


def compile_space(
    space: Space, problem: Problem, target: Target, configs: list[Config], jobs: int, cache: Cache
) -> list[dict[str, Any]]:
    """Compiles `configs`; one record each, in order: config and either resources or the error."""
    requests = (CompileRequest(render(space, problem, config, target), target) for config in configs)
    records: dict[int, dict[str, Any]] = {}
    for index, result in compile_many(requests, jobs, cache):
        record: dict[str, Any] = {"config": configs[index].key}
        if isinstance(result, Artifact):
            env = space.environment(problem, configs[index], target)
            record |= result.resources.to_dict()
            record |= {
                "code": result.code_digest[:16],
                "estimate": env.get("REGISTERS"),
                "compiler": result.compiler,
            }
        else:
            record["error"] = str(result)
        records[index] = record
        if len(records) % 100 == 0:
            print(f"{len(records)}/{len(configs)}", file=sys.stderr, flush=True)
    return [records[index] for index in sorted(records)]


def summary(records: list[dict[str, Any]], feasible: int, seconds: float) -> dict[str, Any]:
    """Counts of a list of records."""
    compiled = [record for record in records if "error" not in record]
    heavy = [record for record in compiled if record["spill_store_bytes"] > HEAVY_SPILL_BYTES]
    codes = Counter(record["code"] for record in compiled)
    return {
        "feasible": feasible,
        "compiled": len(compiled),
        "failed": len(records) - len(compiled),
        "distinct_machine_code": len(codes),
        "spilling": sum(record["spill_store_bytes"] > 0 for record in compiled),
        "spilling_heavily": len(heavy),
        "compilers": sorted({record["compiler"] for record in compiled}),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Runs the count and prints the summary as JSON."""
    options = _options()
    found = catalogue()
    operator = found.operator(options.operator)
    target = cuda_target(options.arch)
    space = found.space(operator, target, options.template)
    problem = make_problem(operator, options.workload, dtype=options.dtype)
    configs = space.feasible(problem, target)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        cache = Cache(options.cache or Path(scratch))
        chosen = configs[:: options.every]
        records = compile_space(space, problem, target, chosen, options.jobs, cache)
    counts = summary(records, len(configs), time.perf_counter() - started)
    if options.out:
        write_text(options.out, json.dumps({"summary": counts, "configs": records}, indent=1))
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
