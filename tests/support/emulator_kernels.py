# SPDX-License-Identifier: Apache-2.0
"""Three small CUDA kernels that are right, for faults to be planted in, and how each is launched."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import pytest
from coldforge.codegen.compile import Cache
from coldforge.codegen.emulator import Array, Call
from coldforge.codegen.render import KernelSource, inline_headers
from coldforge.codegen.space import Launch

ORDERS = ("forward", "reverse", "shuffle:1")
THREADS = 64

# y[i] = x[i - 1] + x[i] + x[i + 1]: a tile with a halo in static shared memory.
STENCIL = """
struct Args { const float* x; float* y; long long n; };
constexpr int T = 64;
extern "C" __global__ void __launch_bounds__(T) coldforge_kernel(const __grid_constant__ Args args) {
  __shared__ alignas(16) float tile[T + 2];
  __shared__ alignas(16) float rows[4][8];
  const int t = threadIdx.x, n = static_cast<int>(args.n), first = blockIdx.x * T, i = first + t;
  tile[t + 1] = i < n ? args.x[i] : 0.0f;
  if (t < 2) {
    const int j = t == 0 ? first - 1 : first + T;
    tile[t == 0 ? 0 : T + 1] = j >= 0 && j < n ? args.x[j] : 0.0f;
  }
  if (t < 32) rows[t / 8][t % 8] = 0.0f;
  __syncthreads();
  const float* from = tile + t;
  const float sum = from[0] + from[1] + from[2] + rows[t / 16][t % 8];
  __syncthreads();
  if (i < n) args.y[i] = sum;
}
"""

# The sum of x: dynamic shared memory, shuffles, and a last block that adds up what the others left.
REDUCTION = """
struct Args { const float* x; float* y; void* workspace; long long n; };
constexpr int T = 64;
extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args args) {
  extern __shared__ float sums[];
  __shared__ bool last;
  unsigned* counter = static_cast<unsigned*>(args.workspace);
  float* partial = static_cast<float*>(args.workspace) + 64;
  const int t = threadIdx.x;
  float v = 0.0f;
  for (long long i = blockIdx.x * T + t; i < args.n; i += gridDim.x * T) v += args.x[i];
  sums[t] = v;
  __syncthreads();
  if (t < 32) {
    v = sums[t] + sums[t + 32];
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
  }
  if (t == 0) {
    partial[blockIdx.x] = v;
    __threadfence();
    last = atomicAdd(counter, 1u) == gridDim.x - 1;
    __threadfence();  // so that what the others wrote is seen
  }
  __syncthreads();
  if (last && t == 0) {
    v = 0.0f;
    for (unsigned b = 0; b < gridDim.x; ++b) v += partial[b];
    args.y[0] = v;
  }
}
"""

# y[i] = x[i] + x[i ^ 1], tile after tile, the next tile on its way while one is used.
PIPELINE = """
#include "coldforge/memory.cuh"
struct Args { const float* x; float* y; long long n; };
constexpr int T = 64;
extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args args) {
  __shared__ alignas(16) float stages[2][4 * T];
  const int t = threadIdx.x, tiles = static_cast<int>((args.n + 4 * T - 1) / (4 * T));
  const auto fill = [&](int stage, int tile) {
    const long long at = static_cast<long long>(tile) * (4 * T) + 4 * t;
    const bool inside = tile < tiles && at < args.n;
    coldforge::cp_async<16>(&stages[stage][4 * t], args.x + (inside ? at : 0), inside);
    coldforge::cp_async_commit();
  };
  fill(0, 0);
  for (int tile = 0; tile < tiles; ++tile) {
    fill((tile + 1) % 2, tile + 1);
    coldforge::cp_async_wait<1>();
    __syncthreads();
    for (int k = 0; k < 4; ++k) {
      const int at = k * T + t;
      const long long i = static_cast<long long>(tile) * (4 * T) + at;
      if (i < args.n) args.y[i] = stages[tile % 2][at] + stages[tile % 2][at ^ 1];
    }
    __syncthreads();
  }
}
"""


def shared_cache(factory: pytest.TempPathFactory) -> Cache:
    """A cache for all test processes of a run: each build of the emulator is made once."""
    base = factory.getbasetemp()
    return Cache((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulator")


def source(text: str, name: str = "small") -> KernelSource:
    """A kernel text as the renderer would give it: headers inlined."""
    whole = inline_headers(text, "small.cu")
    return KernelSource(whole, "coldforge_kernel", hashlib.sha256(whole.encode()).hexdigest(), name, "cuda")


def numbers(count: int) -> numpy.ndarray:
    """Floats of which every sum of a few is exact."""
    return (numpy.arange(count) * 37 % 101 - 50).astype(numpy.float32)


@dataclass(frozen=True)
class Base:
    """A right kernel.

    Attributes:
        text: its source.
        call: a launch in a given order of threads.
        expected: the output "y".
    """

    text: str
    call: Callable[[str], Call]
    expected: numpy.ndarray


def _stencil(order: str) -> Call:
    x = numbers(150)
    arrays = [Array("x", "input", x), Array("y", "output", numpy.empty_like(x))]
    return Call(Launch(grid=3, block=THREADS), arrays, [len(x)], order=order, time_limit_s=1)


def _reduction(order: str) -> Call:
    x = numbers(999)
    workspace = Array("workspace", "workspace", workspace_bytes=256 + 4 * 5, zeroed_bytes=4)
    arrays = [Array("x", "input", x), Array("y", "output", numpy.empty(1, numpy.float32)), workspace]
    launch = Launch(grid=5, block=THREADS, shared_bytes=4 * THREADS, workspace_bytes=276, zeroed_bytes=4)
    return Call(launch, arrays, [len(x)], order=order, time_limit_s=1)


def _pipeline(order: str) -> Call:
    x = numbers(600)
    arrays = [Array("x", "input", x), Array("y", "output", numpy.empty_like(x))]
    return Call(Launch(grid=1, block=THREADS), arrays, [len(x)], order=order, time_limit_s=1)


_X = numpy.concatenate([[0], numbers(150), [0]]).astype(numpy.float32)
BASES = {
    "stencil": Base(STENCIL, _stencil, _X[:-2] + _X[1:-1] + _X[2:]),
    "reduction": Base(REDUCTION, _reduction, numbers(999).sum(keepdims=True)),
    "pipeline": Base(PIPELINE, _pipeline, numbers(600) + numbers(600)[numpy.arange(600) ^ 1]),
}
