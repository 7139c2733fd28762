# SPDX-License-Identifier: Apache-2.0
"""Records a space on this CPU for `coldforge replay`: every legal config of an operator with its time.

    python benchmarks/record_cpu.py conv2d_subtract_mish --shape N=1,H=32,W=32 -o 32x32.csv.gz

Each config is timed in every one of many rounds over all of them, and its least time is what counts: what
else a machine does disturbs some rounds, and no config more than another. One thread. Results are only
compared with the reference at the workload's shape, within 1e-3: `coldforge tune` is what verifies.
"""

from __future__ import annotations

import argparse
import gzip
import io
import math
import sys
from collections.abc import Callable
from pathlib import Path

from coldforge.codegen.atomic import write_bytes
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.errors import ColdforgeError
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.settings import load_settings
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import Target, detect
from coldforge.tuner.cli.options import parse_shape
from steps import one_line

ROUNDS, CALLS, LIMIT = 40, 3, 1e-3


class Recorder:
    """The configs of one problem, compiled and bound to inputs."""

    def __init__(self, problem: Problem, space: Space, target: Target) -> None:
        from coldforge.codegen.render import render
        from coldforge.tuner.devices.cpu import CpuDevice
        from coldforge.tuner.timed_sets import TimedSet

        settings = load_settings()
        self.device, self.cache = CpuDevice(target, settings), Cache(settings.home / "cache")
        self.problem, self.space, self.target = problem, space, target
        self.configs = space.feasible(problem, target)
        self.sources = [render(space, problem, config, target) for config in self.configs]
        self.set = TimedSet.make(self.device, problem, "normal", 0)
        tensors = {t.name: v for t, v in zip(problem.tensors, self.set.inputs, strict=True) if v is not None}
        self.right = problem.reference(tensors)

    def bind(self, at: int) -> tuple[Callable[[], None], float]:
        """A config's call, and the seconds that compiling took."""
        import torch
        from coldforge.tuner.checks import abi_scalars, abi_sizes

        artifact = compile_source(self.sources[at], self.target, self.cache)
        launch = self.space.launch(self.problem, self.configs[at], self.target)
        arguments = [*self.set.inputs, self.set.output]
        if "workspace_bytes" in self.space.launch_exprs:
            arguments.append(torch.empty(launch.workspace_bytes, dtype=torch.uint8))
        sizes, scalars = abi_sizes(self.problem), abi_scalars(self.problem)
        return self.device.bind(
            self.device.load(artifact), launch, arguments, sizes, scalars
        ), artifact.seconds

    def check(self, at: int) -> None:
        """Compares what the call of a config just left with the reference.

        Raises:
            ColdforgeError: it is another.
        """
        apart = float((self.set.output - self.right).abs().max() / self.right.abs().max())
        if not apart <= LIMIT:
            raise ColdforgeError(f"{self.configs[at].key}: off by {apart:.2g} of the largest result")


def least_ms(recorder: Recorder, calls: list[Callable[[], None]]) -> list[float]:
    """The least time of each call over all rounds, in milliseconds."""
    best = [math.inf] * len(calls)
    for done in range(ROUNDS):
        for at, call in enumerate(calls):
            best[at] = min(best[at], *recorder.device.sample_ms([call], CALLS, cold=False))
        print(f"round {done + 1} of {ROUNDS}: best {min(best):.4g} ms", file=sys.stderr, end="\r")
    print(file=sys.stderr)
    return best


def table(configs: list[Config], times_ms: list[float], compile_s: list[float]) -> str:
    """A compact CSV."""
    text = io.StringIO()
    names = list(configs[0])
    print(*names, "time_ms", "compile_ms", sep=",", file=text)
    for config, time, seconds in zip(configs, times_ms, compile_s, strict=True):
        print(*(config[name] for name in names), f"{time:.6g}", f"{1e3 * seconds:.0f}", sep=",", file=text)
    return text.getvalue()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("operator")
    parser.add_argument("--workload", default="small")
    parser.add_argument("--shape", metavar="N=1,H=32", help="override fields of the workload")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.csv.gz")
    given = parser.parse_args()
    target = detect("cpu")
    target = Target(target.kind, target.arch, target.device, {**target.attributes, "threads": 1})
    known = catalogue()
    operator = known.operator(given.operator)
    problem = make_problem(operator, given.workload, parse_shape(given.shape), "fp32")
    (space,) = known.spaces(operator, "cpu", None)
    recorder = Recorder(problem, space, target)
    bound = []
    with recorder.device.session():
        for at in range(len(recorder.configs)):
            bound.append(recorder.bind(at))
            print(f"compiled {at + 1} of {len(recorder.configs)}", file=sys.stderr, end="\r")
            bound[-1][0]()
            recorder.check(at)
        times = least_ms(recorder, [call for call, _ in bound])
    text = table(recorder.configs, times, [seconds for _, seconds in bound])
    write_bytes(given.output, gzip.compress(text.encode(), mtime=0))
    print(f"{given.output}: {len(times)} configs, the best {min(times):.4g} ms")
    return 0


if __name__ == "__main__":
    sys.exit(one_line(main))
