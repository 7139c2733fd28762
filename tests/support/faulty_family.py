# SPDX-License-Identifier: Apache-2.0
"""A tiny family whose configs are quick to compile and to run, some of them with a planted fault.

``STEP`` decides how much work a config does: `BEST` an eighth of what the next best does, so that no noise
of a shared machine hides which it is. ``FAULT`` is "none", or the name of a fault; each of them stands at one
place of the order.
"""

from __future__ import annotations

import os
from pathlib import Path

NAME = "ladder"
BEST = 5
FAULTS = ("template", "compiler", "endless", "resources", "wrong", "illegal", "loop", "segfault")
"""What goes wrong: the template raises, the compiler refuses, the compiler never returns, the launch asks for
more than there is, a wrong result, a write to memory that is not there, a kernel that never ends, an end of
the worker."""

_FAMILY = """\
tensors: {x: [rows, columns]}
output: {y: [rows, columns]}
reference: reference:ladder
workloads: {small: {rows: 8, columns: 64}}
"""
_REFERENCE = """\
def ladder(x):
    return 2 * x + 1
"""
# What dies of a host's fault on a GPU cannot be written in CUDA: the worker, where this file is imported,
# reads from nowhere when the binary with that name is loaded.
_SEGFAULT = """\
import ctypes
import sys

if "coldforge.tuner.devices.cuda" in sys.modules:
    device = sys.modules["coldforge.tuner.devices.cuda"].CudaDevice
    if not hasattr(device, "plain_load"):
        device.plain_load = device.load

        def load(self, artifact):
            if "segfault" in artifact.name:
                ctypes.string_at(16)
            return self.plain_load(artifact)

        device.load = load


"""
_FRONT = """\
{{ banner }}
{% if config.FAULT == "template" %}{{ 1 // 0 }}{% endif %}
{% if config.FAULT == "compiler" %}
#error a planted fault
{% endif %}
{% if config.FAULT == "endless" %}
#include <PIPE>
{% endif %}
struct Args {
  const float* x;
  float* y;
  WORKSPACE
  long long rows;
};
"""
_CPU = """\
extern "C" void abort();
#ifndef COLDFORGE_ENTRY
#define COLDFORGE_ENTRY {{ symbol }}
#endif
extern "C" __attribute__((visibility("default")))
void COLDFORGE_ENTRY(long long begin, long long end, void* raw) {
  const Args& args = *static_cast<const Args*>(raw);
{% if config.FAULT == "illegal" %}
  *static_cast<volatile float*>(args.y + (1ll << 40)) = 1;
{% elif config.FAULT == "loop" %}
  for (;;) asm volatile("");
{% elif config.FAULT == "segfault" %}
  abort();
{% endif %}
  for (int turn = 0; turn < {{ derived.TURNS }}; ++turn) {
    asm volatile("" ::: "memory");
    for (long long i = begin * {{ problem.columns }}; i < end * {{ problem.columns }}; ++i)
      args.y[i] = 2 * args.x[i] + {{ 2 if config.FAULT == "wrong" else 1 }};
  }
}
"""
_CUDA = """\
extern "C" __global__ void {{ symbol }}(const __grid_constant__ Args args) {
{% if config.FAULT == "illegal" %}
  *static_cast<volatile float*>(args.y + (1ll << 40)) = 1;
{% elif config.FAULT == "loop" %}
  for (;;) asm volatile("" ::: "memory");
{% elif config.FAULT == "resources" %}
  __shared__ volatile float more[8192];
  more[threadIdx.x * 128] = 1;
{% elif config.FAULT == "segfault" %}
  if (blockIdx.x == 0x7ffffffe) __trap();  // never; a twin in machine code is not loaded
{% endif %}
  for (int turn = 0; turn < {{ derived.TURNS }}; ++turn) {
    asm volatile("" ::: "memory");
    for (int i = threadIdx.x; i < {{ problem.columns }}; i += blockDim.x) {
      const long long at = blockIdx.x * {{ problem.columns }}ll + i;
      args.y[at] = 2 * args.x[at] + {{ 2 if config.FAULT == "wrong" else 1 }};
    }
  }
}
"""
_LAUNCH = {
    "cpu": "{units: rows, grain: 64, workspace_bytes: \"1000000000000000 if FAULT == 'resources' else 0\"}",
    # Each is allowed; together with what the kernel declares it is too much, as only the driver finds.
    "cuda": "{grid: rows, block: 64, shared_bytes: \"220000 if FAULT == 'resources' else 0\"}",
}
_SUFFIX = {"cpu": "cpp", "cuda": "cu"}


def planted(good: int) -> dict[str, int]:
    """Fault -> the STEP of its one config, spread over all of them; the first config has none."""
    return {name: 1 + index * (good - 1) // len(FAULTS) for index, name in enumerate(FAULTS)}


def write_faulty(folder: Path, target: str, good: int, *, faults: bool = True, turns: int = 100) -> Path:
    """Writes the family ``ladder``; returns its folder.

    Args:
        folder: where its folder is made.
        target: "cpu" or "cuda".
        good: how many configs have no fault.
        faults: whether there are `FAULTS` besides, one config each.
        turns: passes over the data that the fastest config makes; the others make eight times as many.
    """
    place = folder / NAME
    place.mkdir(parents=True)
    pipe = folder / "never_written_to.pipe"
    os.mkfifo(pipe)
    body = (_FRONT + (_CPU if target == "cpu" else _CUDA)).replace("PIPE", str(pipe))
    workspace = "float* workspace;" if target == "cpu" else ""
    (place / "family.yaml").write_text(_FAMILY)
    (place / "reference.py").write_text((_SEGFAULT if target == "cuda" else "") + _REFERENCE)
    (place / f"{NAME}.{_SUFFIX[target]}.jinja").write_text(body.replace("WORKSPACE", workspace))
    names = ["none", *(FAULTS if faults else ())]
    rule = " or ".join(
        [
            "FAULT == 'none'",
            *(f"(FAULT == '{name}' and STEP == {step})" for name, step in planted(good).items()),
        ]
    )
    space = [
        f"target: {target}",
        f"parameters: {{STEP: {list(range(good))}, FAULT: [{', '.join(names)}]}}",
        f'derived: {{TURNS: "{turns} if STEP == {BEST} else {8 * turns} + STEP * {max(1, turns // 50)}"}}',
        f'constraints: [{{require: "{rule}", reason: a fault stands at one place}}]',
        f"launch: {_LAUNCH[target]}",
    ]
    (place / "space.yaml").write_text("\n".join(space) + "\n")
    return place
