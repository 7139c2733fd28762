# SPDX-License-Identifier: Apache-2.0
"""How the time of a frozen kernel grows with the batch and with the image: cold and warm cache, small shapes
as CUDA graphs, the share of the floor, and which frozen entry serves each shape.

    python benchmarks/sizes.py --out results
    python benchmarks/sizes.py --operator conv2d_divide_leaky_relu --batches 1,2,4 --images 32,33 --target cpu
    python benchmarks/sizes.py --draw results/sizes.json

A cliff is a shape at which the share of the floor is CLIFF times worse than at the next smaller. The plot
needs the extra `bench`; without it only the JSON file is written, and --draw makes the plot elsewhere. Exit
code 1: a result was beyond the error bound, or, with --draw, there is no plot.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.settings import load_settings
from coldforge.codegen.target import detect
from coldforge.tuner.floor import Ceilings, ceilings_of, floor_of
from steps import one_line, out_folder, this_command, write_json

if TYPE_CHECKING:
    import torch
    from coldforge.tuner.devices.base import Call, Device
    from coldforge.tuner.peers import Contestant

OPERATORS = ("conv2d_divide_leaky_relu", "conv_transpose2d_mean_logsumexp")
BATCHES = {"cuda": (1, 2, 3, 4, 7, 8, 16, 32, 33, 64, 100, 128, 256, 512), "cpu": (1, 2, 3, 4, 7, 8)}
IMAGES = {
    "cuda": (32, 33, 61, 64, 100, 127, 128, 129, 200, 225, 256, 384, 511, 512),
    "cpu": (32, 33, 61, 64, 100),
}
CLIFF = 1.3
SAMPLES = 15
SMALL_MS = 0.1
"""Shapes that take less are timed as graphs too, GRAPH_CALLS in one: one after the other, warm."""
GRAPH_CALLS = 20


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operator", action="append", help="may be repeated [default: both founding ones]")
    parser.add_argument("--target", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--workload", help="what is varied: seed on cuda, small on cpu")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--precision", help="error class; the dtype's own when not given")
    parser.add_argument("--batches", type=_numbers)
    parser.add_argument("--images", type=_numbers)
    parser.add_argument("--package", default="coldforge.generated", help="whose kernels")
    parser.add_argument("--out", type=Path, help="folder of the results [default: $OUT, else build/sizes]")
    parser.add_argument("--name", default="sizes", help="of the files")
    parser.add_argument("--draw", metavar="JSON", type=Path, help="only draw what was measured")
    return parser.parse_args()


class Bench:
    """A device, and the package whose kernels are timed on it."""

    def __init__(self, device: Device, ceilings: Ceilings, package: str) -> None:
        self.device, self.ceilings, self.package = device, ceilings, package

    def measured(self, problem: Problem, axis: str) -> dict[str, Any]:
        """One shape: who answered, how exactly, and how fast."""
        from coldforge.tuner.peers import answering_variant, frozen_kernel, manifest_entry

        frozen = frozen_kernel(problem, problem.precision, self.package)
        sets = [self._inputs(problem, seed) for seed in range(2)]
        assert frozen.function is not None
        output = frozen.function(sets[0])
        variant, why = answering_variant(self.package)
        about: dict[str, Any] = {"axis": axis, "size": self._size(problem, axis)}
        about["shape"] = {name: problem.dims[name] for name in problem.operator.family.run_time}
        if variant is None:
            return {**about, "time_ms": None, "reason": why}
        entry = manifest_entry(self.package, variant)
        tuned = {name: entry["workload"][name] for name in problem.operator.family.run_time}
        floor = floor_of(problem, self.ceilings, problem.precision, cold=self.device.cold_headline)
        row = {**about, "variant": variant, "exact": tuned == about["shape"], "tuned_at": tuned}
        row |= self._judged(problem, sets[0], output)
        del output
        row |= self._times(frozen, sets)
        row |= {"floor_ms": floor.time_ms, "limit": floor.limit, "cache_resident": floor.cache_resident}
        row["cold"] = self.device.cold_headline
        return {**row, "fraction": floor.time_ms / row["time_ms"]}

    def _size(self, problem: Problem, axis: str) -> int:
        return problem.dims["N" if axis == "batch" else "H"]

    def _inputs(self, problem: Problem, seed: int) -> dict[str, torch.Tensor]:
        """Normal numbers drawn on the device: a batch of 512 takes gigabytes."""
        import torch

        torch.manual_seed(seed)
        made = {}
        for index, spec in enumerate(t for t in problem.tensors if t.present):
            value = torch.randn(spec.shape, device=self.device.torch_device)
            made[spec.name] = (value / problem.reduction_length**0.5 if index == 1 else value).to(
                problem.dtype.torch
            )
        return made

    def _judged(
        self, problem: Problem, tensors: dict[str, torch.Tensor], output: torch.Tensor
    ) -> dict[str, Any]:
        """The first and the last sample against float64."""
        from coldforge.tuner.bound import expect, judge, samples_of

        error = ratio = 0.0
        for sample in sorted({0, problem.dims["N"] - 1}):
            part, inputs = samples_of(problem, tensors, sample, 1)
            judgement = judge(
                output[sample : sample + 1].clone(), expect(part, inputs, part.scalars, part.precision)
            )
            error, ratio = max(error, judgement.error), max(ratio, judgement.ratio)
        return {"error": error, "bound_ratio": ratio}

    def _times(self, frozen: Contestant, sets: Sequence[dict[str, torch.Tensor]]) -> dict[str, Any]:
        calls = frozen.calls(sets)
        cold = self.device.cold_headline
        self.device.sample_ms(calls, 3, cold=False)
        taken = statistics.median(self.device.sample_ms(calls, SAMPLES, cold=cold))
        warm = statistics.median(self.device.sample_ms(calls, SAMPLES, cold=False))
        row = {"time_ms": taken, "stream_ms": taken, "warm_ms": warm, "graph_warm_ms": None}
        if self.device.kind == "cuda" and warm < SMALL_MS:
            one = self.graph(calls[0], 1)
            many = self.graph(calls[0], GRAPH_CALLS)
            row["time_ms"] = statistics.median(self.device.sample_ms([one], SAMPLES, cold=True))
            together = statistics.median(self.device.sample_ms([many], SAMPLES, cold=False))
            row["graph_warm_ms"] = together / GRAPH_CALLS
        return row

    def graph(self, call: Call, count: int) -> Call:
        """`count` calls, captured; replaying them is one launch."""
        import torch

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        side.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _ in range(count):
                call()
        return partial(_replay, captured)


def _replay(captured: torch.cuda.CUDAGraph) -> None:
    captured.replay()


def swept(base: Problem, batches: Iterable[int], images: Iterable[int]) -> list[tuple[str, Problem]]:
    """The shapes by axis, the smallest first; each varies one size of the base."""
    shapes = [("batch", base.with_dims(N=count)) for count in sorted(set(batches))]
    return shapes + [("image", base.with_dims(H=side, W=side)) for side in sorted(set(images))]


def cliffs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where the share of the floor is CLIFF times worse than at the next smaller size of the same axis.

    That a small size has a smaller share than the next larger is no cliff: a launch has its own cost. A floor
    with a warm cache falls where the tensors fit it: shapes on either side of that say nothing.
    """
    found = []
    for axis in ("batch", "image"):
        line = [row for row in rows if row["axis"] == axis and row.get("fraction")]
        for smaller, row in itertools.pairwise(line):
            worse = smaller["fraction"] / row["fraction"]
            if worse > CLIFF and (smaller["cache_resident"] == row["cache_resident"] or row["cold"]):
                found.append({"axis": axis, "size": row["size"], "worse": worse})
    return found


def wrong(document: dict[str, Any]) -> list[str]:
    """Where a result was beyond the error bound: what was timed there computes something else."""
    return [
        f"{operator}: {row['axis']} {row['size']} is {row['bound_ratio']:.3g} times its error bound off"
        for operator, measured in document["operators"].items()
        for row in measured["rows"]
        if row["time_ms"] is not None and not row["bound_ratio"] <= 1
    ]


def _print(operator: str, rows: Sequence[dict[str, Any]], steep: Sequence[dict[str, Any]]) -> None:
    heads = "".join(f"{name:>10}" for name in ("ms", "warm", "graph", "floor"))
    print(f"\n{operator}\n{'axis':<7}{'size':>5}{heads}{'share':>7}  error    entry")
    for row in rows:
        if row["time_ms"] is None:
            print(f"{row['axis']:<7}{row['size']:>5}  {row['reason']}")
            continue
        graph = "-" if row["graph_warm_ms"] is None else f"{row['graph_warm_ms']:.4f}"
        served = "exact" if row["exact"] else "nearest " + "x".join(str(v) for v in row["tuned_at"].values())
        print(
            f"{row['axis']:<7}{row['size']:>5}{row['time_ms']:>10.4f}{row['warm_ms']:>10.4f}{graph:>10}"
            f"{row['floor_ms']:>10.4f}{row['fraction']:>7.2f}  {row['error']:.1e}  {served}"
        )
    print("cliffs: " + (", ".join(f"{c['axis']} {c['size']} ({c['worse']:.2f}x)" for c in steep) or "none"))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Times every shape of every operator; see the top of the file."""
    import torch
    from coldforge.tuner.devices import open_device

    started, settings, target = time.monotonic(), load_settings(), detect(options.target)
    workload = options.workload or ("seed" if target.kind == "cuda" else "small")
    device = open_device(target, settings)
    document: dict[str, Any] = {"command": this_command(), "device": target.device, "dtype": options.dtype}
    document |= {"workload": workload, "cliff": CLIFF, "operators": {}}
    with device.session(), torch.no_grad():
        bench = Bench(device, ceilings_of(device, settings.home), options.package)
        device.settle()
        for name in options.operator or OPERATORS:
            base = make_problem(catalogue().operator(name), workload, dtype=options.dtype)
            base = base.in_class(options.precision or base.precision)
            batches, images = options.batches or BATCHES[target.kind], options.images or IMAGES[target.kind]
            rows = [bench.measured(problem, axis) for axis, problem in swept(base, batches, images)]
            steep = cliffs(rows)
            document["operators"][name] = {"rows": rows, "cliffs": steep, "base": base.to_dict()}
            _print(name, rows, steep)
        document["device_record"] = device.facts()
    document["seconds"] = round(time.monotonic() - started, 1)
    return document


def main() -> int:
    """Measures, writes and draws."""
    options = _options()
    if options.draw is not None:
        document, folder, name = json.loads(options.draw.read_text()), options.draw.parent, options.draw.stem
    else:
        folder, name = out_folder(options.out, "sizes"), options.name
        document = measure(options)
        write_json(folder / f"{name}.json", document)
        print(f"\n{folder / name}.json, {document['seconds']} s")
    faults = wrong(document)
    for line in faults:
        print(line, file=sys.stderr)
    try:
        from sizes_plot import draw
    except ModuleNotFoundError as error:
        print(f"no plot: {error}; pip install 'coldforge[bench]', then --draw {name}.json", file=sys.stderr)
        return 1 if faults or options.draw is not None else 0
    for operator, measured in document["operators"].items():
        path = folder / f"{name}_{operator}.svg"
        draw(operator, measured, document, path)
        print(path)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(one_line(main))
