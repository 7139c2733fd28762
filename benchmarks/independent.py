# SPDX-License-Identifier: Apache-2.0
"""A second opinion: frozen operators timed by this file alone, with PyTorch's events and none of coldforge's
timing code, and compared with what `coldforge bench` says.

    coldforge bench conv2d_divide_leaky_relu --json > conv.json
    coldforge bench conv_transpose2d_mean_logsumexp --json > mean.json
    python benchmarks/independent.py --bench conv.json --bench mean.json --out independent.json

On a GPU each sample reads a large buffer, so that the L2 cache is cold, and then times one call between two
events; on a CPU it times one call with `time.perf_counter`, with a warm cache, as `bench` does there. Frozen
kernel and PyTorch eager are timed in turns. Exits with 1 when a time differs from a bench's by more than
--limit percent: on a CPU, where the machine is shared, the ratio of the two is compared in its place. Also
where nothing of the benches given could be compared, and where the two do not compute the same.

It imports torch and the package of the frozen kernels, nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

Call = Callable[[], torch.Tensor]
SETS = 2
FLUSH_BYTES = 256 << 20
"""Several times the L2 of any GPU of today."""
SAME = 1e-5
"""Relative difference of two results of class fp32: each is off by some 1e-7."""
QUERY = "driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"


def conv2d_divide_leaky_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The first founding operator as a user writes it."""
    return F.leaky_relu(F.conv2d(x, weight, bias) / 2.0, 0.01)


def conv_transpose2d_mean_logsumexp(
    x: torch.Tensor, weight: torch.Tensor, conv_bias: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The second one."""
    mean = F.conv_transpose2d(x, weight, conv_bias).mean((2, 3), keepdim=True) + bias
    return 10.0 * mean.logsumexp(1, keepdim=True).sum((2, 3))


SHAPES: dict[str, dict[str, list[tuple[int, ...]]]] = {
    "conv2d_divide_leaky_relu": {
        "seed": [(128, 8, 128, 128), (64, 8, 3, 3), (64,)],
        "small": [(4, 8, 64, 64), (64, 8, 3, 3), (64,)],
    },
    "conv_transpose2d_mean_logsumexp": {
        "seed": [(16, 64, 512, 512), (64, 128, 3, 3), (128,), (128, 1, 1)],
        "small": [(1, 64, 256, 256), (64, 128, 3, 3), (128,), (128, 1, 1)],
    },
}
EAGER: dict[str, Callable[..., torch.Tensor]] = {
    "conv2d_divide_leaky_relu": conv2d_divide_leaky_relu,
    "conv_transpose2d_mean_logsumexp": conv_transpose2d_mean_logsumexp,
}


class BadBench(Exception):
    """A file given as --bench that is none; the message is one line."""


class Clock:
    """Times calls on one device.

    Attributes:
        late: Samples for which the device had to wait for the host, however long it was kept busy before.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda, self.late = device.type == "cuda", 0
        if self.cuda:
            self._buffer = torch.ones(FLUSH_BYTES // 4, device=device)
            self._sum = torch.zeros((), device=device)
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def once_ms(self, call: Call) -> float:
        """One call, the cache cold on a GPU."""
        if not self.cuda:
            began = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - began)
        start, stop = self._events
        ahead = False
        for reads in (4, 8, 16, 32):
            # The device reads while the host enqueues; one that began the call earlier waited for the host.
            for _ in range(reads):
                torch.sum(self._buffer, dim=0, out=self._sum)
            start.record()
            call()
            stop.record()
            ahead = not start.query()
            torch.cuda.synchronize()
            if ahead:
                break
        self.late += not ahead
        return start.elapsed_time(stop)


def in_turns(clock: Clock, contestants: Mapping[str, list[Call]], seconds: float) -> dict[str, list[float]]:
    """Samples of each, round by round, for so many seconds after a tenth of it to warm up."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    began, turn = time.monotonic(), 0
    while time.monotonic() - began < seconds or turn < 5:
        warm = time.monotonic() - began > 0.1 * seconds
        for name, calls in contestants.items():
            sample = clock.once_ms(calls[turn % len(calls)])
            if warm or turn >= 4:
                samples[name].append(sample)
        turn += 1
    return samples


def measured(name: str, workload: str, package: str, device: torch.device, seconds: float) -> dict[str, Any]:
    """One operator: its frozen kernel and PyTorch eager."""
    frozen = getattr(importlib.import_module(package), name)
    generator = torch.Generator(device=device).manual_seed(20)
    sets = []
    for _ in range(SETS):
        tensors = [torch.randn(s, device=device, generator=generator) for s in SHAPES[name][workload]]
        tensors[1] /= tensors[1][0].numel() ** 0.5
        sets.append(tensors)
    with torch.no_grad():
        contestants: dict[str, list[Call]] = {
            "frozen": [lambda t=t: frozen(*t) for t in sets],
            "eager": [lambda t=t: EAGER[name](*t) for t in sets],
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # the package warns where its reference answers
            got, want = contestants["frozen"][0](), contestants["eager"][0]()
        difference = float((got - want).norm() / want.norm())
        del got, want
        clock = Clock(device)
        samples = in_turns(clock, contestants, seconds)
    times = {who: statistics.median(values) for who, values in samples.items()}
    ratios = [e / f for e, f in zip(samples["eager"], samples["frozen"], strict=True)]
    quarters = {
        who: statistics.quantiles(values, n=4)[::2] if len(values) > 1 else values * 2
        for who, values in samples.items()
    }
    return {
        "operator": name,
        "workload": workload,
        "cold": device.type == "cuda",
        "times_ms": times,
        "quarters_ms": quarters,
        "samples": {who: len(values) for who, values in samples.items()},
        "late_samples": clock.late,
        "eager_over_frozen": statistics.median(ratios),
        "relative_difference": difference,
        **record(device),
    }


def record(device: torch.device) -> dict[str, Any]:
    """The device as it is now, and versions."""
    found: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cpu":
        return {
            **found,
            "device": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
        }
    found |= {"device": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    try:
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "--id=0"]
        values = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split(
            ","
        )
        names = ("driver", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w")
        found |= {name: value.strip() for name, value in zip(names, values, strict=True)}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        found["nvidia_smi"] = str(error)
    return found


def compared(found: Mapping[str, Any], bench: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs between this measurement and a bench's: in percent of the bench's figure."""
    rows = {row["name"]: row["time_ms"] for row in bench["rows"]}
    pairs = [(who, ms, rows.get(who)) for who, ms in found["times_ms"].items()]
    pairs.append(("eager / frozen", found["eager_over_frozen"], bench["speedup"].get("eager")))
    # A CPU is shared with others: only what both had in common cancels.
    decides = {"frozen", "eager"} if found["cold"] else {"eager / frozen"}
    return [
        {
            "what": who,
            "here": here,
            "bench": there,
            "percent": 100 * (here / there - 1),
            "decides": who in decides,
        }
        for who, here, there in pairs
        if there
    ]


def bench_of(path: Path, operators: list[str], workload: str) -> dict[str, Any] | None:
    """The document of `coldforge bench --json`, or what a file of benchmarks/results holds of one; None when
    it is of nothing that is measured here.

    Raises:
        BadBench: It cannot be read, or is no such document.
    """
    try:
        document = json.loads(path.read_text())
        document = document.get("result", document)
        subject = (document["operator"], document["workload"], document["rows"], document["speedup"])
    except OSError as error:
        raise BadBench(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, AttributeError, LookupError, TypeError):
        raise BadBench(f"{path} is no document of `coldforge bench --json`") from None
    if subject[0] in operators and subject[1] == workload:
        return document
    print(f"{path}: of {subject[0]} {subject[1]}, which is not measured", file=sys.stderr)
    return None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operator", action="append", choices=list(SHAPES), help="[default: both]")
    parser.add_argument("--target", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--workload", choices=("seed", "small"), help="[default: seed on cuda, small on cpu]")
    parser.add_argument("--package", default="coldforge.generated", help="of the frozen kernels")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each operator")
    parser.add_argument("--bench", action="append", type=Path, default=[], metavar="FILE")
    parser.add_argument("--limit", type=float, default=2.0, help="percent by which a time may differ")
    parser.add_argument("--out", type=Path, help="the JSON file")
    return parser.parse_args()


def _this_command() -> str:
    """The command line that runs, as a user types it; that of `steps.py` imports more than torch."""
    return f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".rstrip()


def main() -> int:
    """Measures, compares, prints a table and writes JSON."""
    options = _options()
    cuda = options.target == "cuda" or (options.target == "auto" and torch.cuda.is_available())
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    workload, operators = options.workload or ("seed" if cuda else "small"), options.operator or list(SHAPES)
    try:
        benches = [bench for path in options.bench if (bench := bench_of(path, operators, workload))]
    except BadBench as error:
        print(f"independent.py: {error}", file=sys.stderr)
        return 2
    results, far, judged_rows = [], 0, 0
    for name in operators:
        found = measured(name, workload, options.package, device, options.seconds)
        times = ", ".join(f"{who} {ms:.4f} ms" for who, ms in found["times_ms"].items())
        print(
            f"{name} {workload} on {found['device']}: {times}, {found['eager_over_frozen']:.3f} times as fast"
        )
        found["compared"] = [c for b in benches if b["operator"] == name for c in compared(found, b)]
        if not found["relative_difference"] <= SAME:  # nor NaN
            far += 1
            print(f"  results differ by {found['relative_difference']:.1e} of eager's, over {SAME:.0e}")
        for row in found["compared"]:
            judged_rows += row["decides"]
            over = row["decides"] and abs(row["percent"]) > options.limit
            far += over
            judged = (
                "more than allowed" if over else "within the limit" if row["decides"] else "for the record"
            )
            print(
                f"  {row['what']:15}{row['here']:10.4f}{row['bench']:10.4f}{row['percent']:+8.2f}%  {judged}"
            )
        results.append(found)
    document = {"command": _this_command(), "limit_percent": options.limit, "results": results}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        aside = options.out.with_suffix(".part")
        aside.write_text(json.dumps(document, indent=1) + "\n")
        os.replace(aside, options.out)
    if options.bench and not judged_rows:
        print("nothing of what --bench gives could be compared", file=sys.stderr)
        return 1
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
