# SPDX-License-Identifier: Apache-2.0
"""Small CUDA kernels of the copy engine, its barriers and products of four warps that are right, for faults
to be planted in."""

from __future__ import annotations

import numpy
from coldforge.codegen.emulator import Array, Call
from coldforge.codegen.space import Launch
from emulator_kernels import Base, numbers

TILES = 5

# y[i] = x[i] + x[i ^ 1], 256 at a time: one warp asks for the input, two compute and send the results.
RING = """
#include "coldforge/copy_engine.cuh"
using namespace coldforge;
struct Args { const float* x; float* y; long long n; };
constexpr int T = 256;
extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args args) {
  __shared__ alignas(128) float stages[2][T];
  __shared__ alignas(128) float out[T];
  __shared__ alignas(8) u64 full[2];
  __shared__ alignas(8) u64 empty[2];
  const int t = threadIdx.x, tiles = static_cast<int>(args.n) / T;
  if (t == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&empty[i], 64);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (t < 32) {
    for (int tile = 0; t == 0 && tile < tiles; ++tile) {
      const int stage = tile % 2, use = tile / 2;
      mbarrier_wait(&empty[stage], (use & 1) ^ 1);
      mbarrier_expect(&full[stage], T * 4);
      bulk_load(stages[stage], args.x + tile * T, T * 4, &full[stage]);
    }
    return;
  }
  const int c = t - 32;
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % 2, use = tile / 2;
    mbarrier_wait(&full[stage], use & 1);
    float v[4];
    for (int k = 0; k < 4; ++k) v[k] = stages[stage][k * 64 + c] + stages[stage][(k * 64 + c) ^ 1];
    mbarrier_arrive(&empty[stage]);
    for (int k = 0; k < 4; ++k) out[k * 64 + c] = v[k];
    publish_shared();
    named_barrier_sync(1, 64);
    if (c == 0) {
      bulk_store(args.y + tile * T, out, T * 4);
      bulk_commit();
      bulk_wait_read();
    }
    named_barrier_sync(2, 64);
  }
}
"""

# y[i][j] = sum over k of x[i][k] * x[64 + j][k], 64 by 32 by 16 halves, the right factor in shared memory.
PRODUCT = """
// for sm_90a
#include "coldforge/warpgroup.cuh"
using namespace coldforge;
struct Args { const unsigned* x; float* y; long long n; };
extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args args) {
  __shared__ alignas(128) unsigned factors[2][32][4];
  const int t = threadIdx.x, lane = t % 32;
  if (t < 32) {
    for (int k = 0; k < 8; ++k) factors[k / 4][t][k % 4] = args.x[(64 + t) * 8 + k];
  }
  const unsigned* own = args.x + (t / 32 * 16 + lane / 4) * 8 + lane % 4;
  const unsigned a[4] = {own[0], own[64], own[4], own[68]};
  publish_shared();
  __syncthreads();
  float sums[16];
  warpgroup_begin();
  multiply_warpgroup<false>(sums, a, MatrixPlace(factors).at(0, 32 * 16));
  warpgroup_commit();
  warpgroup_wait<0>();
  for (int i = 0; i < 16; ++i) {
    const int row = t / 32 * 16 + i / 2 % 2 * 8 + lane / 4, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    args.y[row * 32 + column] = sums[i];
  }
}
"""

# y[i] = x[i ^ 32] of 64 numbers, handed over from one warp to another in both directions.
HANDOVER = """
#include "coldforge/memory.cuh"
using namespace coldforge;
struct Args { const float* x; float* y; long long n; };
extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args args) {
  __shared__ float there[32];
  __shared__ float back[32];
  const int t = threadIdx.x, lane = t % 32;
  if (t < 32) {
    there[lane] = args.x[t];
    named_barrier_arrive(3, 64);
    named_barrier_sync(4, 64);
    args.y[t] = back[lane];
  } else {
    back[lane] = args.x[t];
    named_barrier_arrive(4, 64);
    named_barrier_sync(3, 64);
    args.y[t] = there[lane];
  }
}
"""


def _call(x: numpy.ndarray, y: numpy.ndarray, block: int, order: str) -> Call:
    arrays = [Array("x", "input", x), Array("y", "output", y)]
    return Call(Launch(grid=1, block=block), arrays, [len(x)], order=order, time_limit_s=2)


def _ring(order: str) -> Call:
    x = numbers(256 * TILES)
    return _call(x, numpy.empty_like(x), 96, order)


_HALVES = numpy.random.default_rng(3).integers(-9, 10, (96, 16)).astype(numpy.float16)


def _product(order: str) -> Call:
    return _call(_HALVES.view(numpy.uint32).reshape(-1), numpy.empty((64, 32), numpy.float32), 128, order)


def _handover(order: str) -> Call:
    x = numbers(64)
    return _call(x, numpy.empty_like(x), 64, order)


_X = numbers(256 * TILES)
_WIDE = _HALVES.astype(numpy.float32)
ENGINE_BASES = {
    "ring": Base(RING, _ring, _X + _X[numpy.arange(len(_X)) ^ 1]),
    "product": Base(PRODUCT, _product, _WIDE[:64] @ _WIDE[64:].T),
    "handover": Base(HANDOVER, _handover, numpy.roll(numbers(64), 32)),
}
