# SPDX-License-Identifier: Apache-2.0
"""A convolution summed in parts through a workspace, on both targets: what a launch may ask for, in small.

Its input channels are shared out over SPLIT work units, which leave partial sums in the workspace. They are
put together by whichever unit arrives last at a counter that starts at zero (FORM=counted), or by a second
kernel (FORM=staged), which the other form does not even define.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache, compile_source
from coldforge.codegen.freeze import Winner, winner_of
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import KernelSource, render
from coldforge.codegen.space import Config, Space
from coldforge.codegen.space_file import load_space
from coldforge.codegen.target import Target
from coldforge.tuner.request import TrialRequest, trial_request

FINISH_SHARED_BYTES = 60_000
"""Dynamic shared memory of the second CUDA kernel: more than a function may take unasked."""

LAUNCH = {
    "workspace_bytes": "round_up(N * C_out * 4, 64) + N * C_out * SPLIT * H_out * W_out * 4",
    "zeroed_bytes": "N * C_out * 4 if FORM == 'counted' else 0",
}
LAUNCHES = {
    "cpu": {
        **LAUNCH,
        "units": "N * C_out * SPLIT",
        "grain": "1",
        "finish_units": "N * C_out if FORM == 'staged' else 0",
        "finish_grain": "2",
    },
    "cuda": {
        **LAUNCH,
        "grid": "N * C_out * SPLIT",
        "block": "64",
        "shared_bytes": "0",
        "finish_grid": "N * C_out if FORM == 'staged' else 0",
        "finish_block": "96",
        "finish_shared_bytes": str(FINISH_SHARED_BYTES),
    },
}

COMMON = """\
{% import "kernel.jinja" as kernel %}
{{ banner }}
namespace {
{{ kernel.args_struct(args) }}
{{ kernel.constants("P", problem) }}
{{ kernel.epilogue_struct(epilogue, dtype, "FUNCTION") }}
constexpr long long SPLIT = {{ config.SPLIT }};

// The sums of a plane (an image's output channel) stand behind the counters. Volatile: others write them.
FUNCTION volatile float* sums_of(const Args& a, long long plane) {
  return static_cast<volatile float*>(a.workspace) + (a.N * P::C_out + 15) / 16 * 16 +
         plane * SPLIT * a.H_out * a.W_out;
}

FUNCTION void add_part(const Args& a, long long plane, long long part, long long pixel) {
  const long long n = plane / P::C_out, k = plane % P::C_out, i = pixel / a.W_out, j = pixel % a.W_out;
  float sum = 0.0f;
  for (long long c = part * P::C_in / SPLIT; c < (part + 1) * P::C_in / SPLIT; ++c)
    for (long long r = 0; r < P::R; ++r)
      for (long long s = 0; s < P::S; ++s) {
        const long long h = i * P::stride_h - P::padding_h + r * P::dilation_h;
        const long long w = j * P::stride_w - P::padding_w + s * P::dilation_w;
        if (h < 0 || h >= a.H || w < 0 || w >= a.W) continue;
        const long long tap = ((k * P::C_in + c) * P::R + r) * P::S + s;
        sum += a.x[((n * P::C_in + c) * a.H + h) * a.W + w] * a.weight[tap];
      }
  sums_of(a, plane)[part * a.H_out * a.W_out + pixel] = sum;
}

FUNCTION float whole(const Args& a, long long plane, long long pixel) {
  const int k = int(plane % P::C_out);
  float v = a.bias ? a.bias[k] : 0.0f;
  for (long long part = 0; part < SPLIT; ++part) v += sums_of(a, plane)[part * a.H_out * a.W_out + pixel];
  return Epilogue(a)(v, k);
}
}  // namespace
"""

CPP = (
    """\
#define FUNCTION inline
#include <math.h>
#include <stdint.h>
#ifndef COLDFORGE_ENTRY
#define COLDFORGE_ENTRY {{ symbol }}
#endif
#ifndef COLDFORGE_FINISH
#define COLDFORGE_FINISH coldforge_finish
#endif
#define ENTRY extern "C" __attribute__((visibility("default"))) void
"""
    + COMMON
    + """
ENTRY COLDFORGE_ENTRY(int64_t begin, int64_t end, void* args) {
  const Args& a = *static_cast<const Args*>(args);
  const long long pixels = a.H_out * a.W_out;
  for (int64_t unit = begin; unit < end; ++unit) {
    const long long plane = unit / SPLIT;
    for (long long pixel = 0; pixel < pixels; ++pixel) add_part(a, plane, unit % SPLIT, pixel);
{% if config.FORM == "counted" %}
    unsigned* const counter = static_cast<unsigned*>(a.workspace) + plane;
    if (__atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL) == SPLIT - 1)
      for (long long pixel = 0; pixel < pixels; ++pixel) a.y[plane * pixels + pixel] = whole(a, plane, pixel);
{% endif %}
  }
}
{% if config.FORM == "staged" %}
ENTRY COLDFORGE_FINISH(int64_t begin, int64_t end, void* args) {
  const Args& a = *static_cast<const Args*>(args);
  const long long pixels = a.H_out * a.W_out;
  for (long long o = begin * pixels; o < end * pixels; ++o) a.y[o] = whole(a, o / pixels, o % pixels);
}
{% endif %}
"""
)

CUDA = (
    "#define FUNCTION __device__ __forceinline__\n"
    + COMMON
    + """
extern "C" __global__ void {{ symbol }}(const __grid_constant__ Args a) {
  const long long plane = blockIdx.x / SPLIT, pixels = a.H_out * a.W_out;
  for (long long pixel = threadIdx.x; pixel < pixels; pixel += blockDim.x)
    add_part(a, plane, blockIdx.x % SPLIT, pixel);
{% if config.FORM == "counted" %}
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(static_cast<unsigned*>(a.workspace) + plane, 1u) == SPLIT - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (long long pixel = threadIdx.x; pixel < pixels; pixel += blockDim.x)
    a.y[plane * pixels + pixel] = whole(a, plane, pixel);
{% endif %}
}
{% if config.FORM == "staged" %}
extern "C" __global__ void coldforge_finish(const __grid_constant__ Args a) {
  extern __shared__ float pool[];
  // At the far end of the pool: a launch with less shared memory faults.
  float* const mine = pool + FINISH_SHARED_BYTES / 4 - blockDim.x + threadIdx.x;
  const long long pixels = a.H_out * a.W_out;
  for (long long pixel = threadIdx.x; pixel < pixels; pixel += blockDim.x) {
    *mine = whole(a, blockIdx.x, pixel);
    a.y[blockIdx.x * pixels + pixel] = *mine;
  }
}
{% endif %}
""".replace("FINISH_SHARED_BYTES", str(FINISH_SHARED_BYTES))
)


class Split:
    """The space on one target, and its variants.

    Args:
        folder: where the declaration and the cache stand.
        target: what is compiled for.
        shape: fields over a small convolution of 4 channels to 6.
    """

    def __init__(self, folder: Path, target: Target, **shape: int) -> None:
        self.target, self.space = target, _declare(folder, target)
        dims = {"N": 2, "H": 24, "W": 24, "C_in": 4, "C_out": 6, **shape}
        self.problem: Problem = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small", dims)
        self._cache = Cache(folder / "cache")

    def config(self, form: str, split: int = 2) -> Config:
        """A config by its parameters."""
        return self.space.config({"FORM": form, "SPLIT": split})

    def compiled(self, config: Config) -> tuple[KernelSource, Artifact]:
        """The variant's source and binary."""
        source = render(self.space, self.problem, config, self.target)
        return source, compile_source(source, self.target, self._cache)

    def request(self, config: Config) -> TrialRequest:
        """What the worker is asked to judge."""
        return trial_request(self.space, self.problem, config, self.compiled(config)[1])

    def winner(self, config: Config) -> Winner:
        """The variant as if it had won a study."""
        source, artifact = self.compiled(config)
        measurement: dict[str, Any] = {"time_ms": 1.0, "floor_ms": 0.1, "error": 1e-7, "bound_ratio": 0.5}
        return winner_of(
            self.problem,
            self.space,
            config,
            self.target,
            source,
            artifact,
            precision="fp32",
            measurement=measurement,
            study="a study",
        )


def _declare(folder: Path, target: Target) -> Space:
    file = "split.cu.jinja" if target.kind == "cuda" else "split.cpp.jinja"
    (folder / file).write_text(CUDA if target.kind == "cuda" else CPP)
    document = {
        "template": "split",
        "target": target.kind,
        "archs": [target.arch],
        "file": file,
        "parameters": {
            "FORM": {"values": ["counted", "staged"], "help": "how the parts are put together"},
            "SPLIT": {"values": [2, 3], "help": "parts of the input channels"},
        },
        "default": {"FORM": "counted", "SPLIT": 2},
        "launch": LAUNCHES[target.kind],
    }
    path = folder / f"space.split.{target.kind}.yaml"
    path.write_text(yaml.safe_dump(document))
    return load_space(path, "conv2d")
