# SPDX-License-Identifier: Apache-2.0
"""What a call of a frozen operator costs beside its kernel: against an op of its schema that does nothing.

The empty op is C++ on PyTorch's stable interface too, and returns a tensor of one element. All rows are timed
interleaved, call after call without waiting for the device. A batch of 0 computes nothing, so that its row is
the call alone; the smallest shape adds a kernel to it (on a GPU its launch).

    python benchmarks/call_overhead.py --target cpu --out overhead.json
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from coldforge.codegen.atomic import write_text
from coldforge.codegen.settings import load_settings
from coldforge.generated import conv2d_divide_leaky_relu as operator
from coldforge.generated.runtime.ninja import TORCH_TARGET_VERSION

CALLS, LIMIT_NS = 100, 3000.0
ATTRIBUTES = ([1, 1], [0, 0], [1, 1], 1, None)
SOURCE = """
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
namespace detail = torch::stable::detail;
void nothing(StableIValue* stack, uint64_t, uint64_t) {
  int32_t type = 0, index = 0;
  const auto x = detail::to<AtenTensorHandle>(stack[0]);
  aoti_torch_get_device_type(x, &type);
  aoti_torch_get_device_index(x, &index);
  const int64_t size = 1, stride = 1;
  AtenTensorHandle result = nullptr;
  aoti_torch_empty_strided(1, &size, &stride, aoti_torch_dtype_float32(), type, index, &result);
  aoti_torch_delete_tensor_object(x);
  aoti_torch_delete_tensor_object(detail::to<AtenTensorHandle>(stack[1]));
  if (auto* bias = detail::to<StableIValue*>(stack[2])) {
    aoti_torch_delete_tensor_object(detail::to<AtenTensorHandle>(*bias));
    delete bias;
  }
  for (int i = 5; i < 8; ++i) torch_delete_list(detail::to<StableListHandle>(stack[i]));
  if (auto* precision = detail::to<StableIValue*>(stack[9])) {
    torch_delete_string(detail::to<StringHandle>(*precision));
    delete precision;
  }
  stack[0] = detail::from(result);
}
STABLE_TORCH_LIBRARY(coldforge_nothing, m) { m.def("SCHEMA"); }
STABLE_TORCH_LIBRARY_IMPL(coldforge_nothing, CPU, m) { m.impl("nothing", &nothing); }
STABLE_TORCH_LIBRARY_IMPL(coldforge_nothing, CUDA, m) { m.impl("nothing", &nothing); }
"""


def empty_op(folder: Path) -> Any:
    """Builds and loads the op that does nothing, of the operator's schema."""
    frozen = torch.ops.coldforge.conv2d_divide_leaky_relu.default
    schema = re.sub(r"^coldforge::\w+", "nothing", str(frozen._schema))
    source, library = folder / "nothing.cpp", folder / "nothing.so"
    source.write_text(SOURCE.replace("SCHEMA", schema.replace('"', '\\"')))
    torch_root = Path(torch.__file__).parent
    command = [load_settings().cxx, "-std=c++17", "-O2", "-fPIC", "-shared", str(source), "-o", str(library)]
    command += [f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}", "-isystem", str(torch_root / "include")]
    subprocess.run([*command, f"-L{torch_root / 'lib'}", "-ltorch_cpu"], check=True)
    torch.ops.load_library(str(library))
    return torch.ops.coldforge_nothing.nothing.default


def rows_of(empty: Any, device: str) -> dict[str, Callable[[], Any]]:
    """The calls that are compared, by name."""
    x, weight, bias = (torch.randn(s, device=device) for s in ((1, 8, 3, 3), (64, 8, 3, 3), (64,)))
    none = x[:0].contiguous()
    op = torch.ops.coldforge.conv2d_divide_leaky_relu.default
    grads = [t.clone().requires_grad_() for t in (weight, bias)]
    f = torch.nn.functional
    return {
        "empty op": functools.partial(empty, none, weight, bias, 2.0, 0.01, *ATTRIBUTES),
        "op, batch 0": functools.partial(op, none, weight, bias, 2.0, 0.01, *ATTRIBUTES),
        "function, batch 0": functools.partial(operator, none, weight, bias),
        "function, smallest": functools.partial(operator, x, weight, bias),
        "function with gradients, smallest": functools.partial(operator, x, *grads),
        "eager, smallest": lambda: f.leaky_relu(f.conv2d(x, weight, bias) / 2.0, 0.01),
    }


def measured(
    rows: dict[str, Callable[[], Any]], rounds: int, wait: Callable[[], Any]
) -> dict[str, list[float]]:
    """ns a call of each row, one sample a round; the rows take turns."""
    samples: dict[str, list[float]] = {name: [] for name in rows}
    for number in range(rounds + 5):
        for name, call in rows.items():
            wait()
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            if number >= 5:
                samples[name].append((time.perf_counter_ns() - begin) / CALLS)
    return samples


def main() -> int:
    """Prints, and writes if asked, one JSON document; exit code 1 when the plain call costs too much."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    operator(torch.randn(1, 8, 3, 3), torch.randn(64, 8, 3, 3), torch.randn(64))  # builds and verifies
    wait = torch.cuda.synchronize if options.target == "cuda" else lambda: None
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(empty_op(Path(folder)), options.target)
    samples = measured(rows, options.rounds, wait)
    base = samples["empty op"]
    table = {
        name: {
            "ns": statistics.median(times),
            "fastest_ns": min(times),
            "over_empty_ns": statistics.median(a - b for a, b in zip(times, base, strict=True)),
            "fastest_over_empty_ns": min(times) - min(base),
        }
        for name, times in samples.items()
    }
    over = table["function, batch 0"]["over_empty_ns"]
    document = {
        "command": "python benchmarks/call_overhead.py " + " ".join(sys.argv[1:]),
        "device": torch.cuda.get_device_name() if options.target == "cuda" else platform.processor() or "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rounds": options.rounds,
        "calls_per_sample": CALLS,
        "rows": table,
        "limit_ns": LIMIT_NS,
        "within_limit": over <= LIMIT_NS,
    }
    print(json.dumps(document, indent=1))
    if options.out is not None:
        write_text(options.out, json.dumps(document, indent=1) + "\n")
    return 0 if document["within_limit"] else 1


if __name__ == "__main__":
    sys.exit(main())
