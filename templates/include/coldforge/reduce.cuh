// SPDX-License-Identifier: Apache-2.0
// Reductions of values in shared memory by a whole block, with PyTorch's names and its treatment of NaN and
// infinities. Every thread gets the result. THREADS is a multiple of 32, `scratch` has room for 32 floats.
#pragma once

#include "coldforge/types.cuh"

namespace coldforge {

struct Adding {
  __device__ __forceinline__ static float start() { return 0.0f; }
  __device__ __forceinline__ static float both(float a, float b) { return a + b; }
};

// A NaN on either side stays.
struct Larger {
  __device__ __forceinline__ static float start() { return __int_as_float(0xff800000); }  // -inf
  __device__ __forceinline__ static float both(float a, float b) { return a > b || a != a ? a : b; }
};

struct Smaller {
  __device__ __forceinline__ static float start() { return __int_as_float(0x7f800000); }  // inf
  __device__ __forceinline__ static float both(float a, float b) { return a < b || a != a ? a : b; }
};

template <class Op>
__device__ __forceinline__ float warp_reduce(float value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2)
    value = Op::both(value, __shfl_xor_sync(0xffffffffu, value, apart));
  return value;
}

// One value from each thread.
template <int THREADS, class Op>
__device__ __forceinline__ float block_reduce(float value, float* scratch) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  value = warp_reduce<Op>(value);
  if constexpr (THREADS > 32) {
    __syncthreads();  // nobody reads an earlier reduction's scratch any more
    if (lane == 0) scratch[warp] = value;
    __syncthreads();
    value = warp_reduce<Op>(lane < THREADS / 32 ? scratch[lane] : Op::start());
  }
  return value;
}

// Each thread's values first, then the block's; `map` is applied to each value.
template <int THREADS, class Op, class T, class Map>
__device__ __forceinline__ float reduce_values(const T* values, int count, float* scratch, Map map) {
  float mine = Op::start();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += THREADS) {
    mine = Op::both(mine, map(static_cast<float>(values[i])));
  }
  return block_reduce<THREADS, Op>(mine, scratch);
}

template <int THREADS, class T>
__device__ __forceinline__ float reduce_sum(const T* values, int count, float* scratch) {
  return reduce_values<THREADS, Adding>(values, count, scratch, [](float v) { return v; });
}

template <int THREADS, class T>
__device__ __forceinline__ float reduce_mean(const T* values, int count, float* scratch) {
  return reduce_sum<THREADS>(values, count, scratch) / static_cast<float>(count);
}

template <int THREADS, class T>
__device__ __forceinline__ float reduce_amax(const T* values, int count, float* scratch) {
  return reduce_values<THREADS, Larger>(values, count, scratch, [](float v) { return v; });
}

template <int THREADS, class T>
__device__ __forceinline__ float reduce_amin(const T* values, int count, float* scratch) {
  return reduce_values<THREADS, Smaller>(values, count, scratch, [](float v) { return v; });
}

// The largest value is subtracted first unless it is infinite: then the exponentials are 0 or infinite
// anyway.
template <int THREADS, class T>
__device__ __forceinline__ float reduce_logsumexp(const T* values, int count, float* scratch) {
  const float largest = reduce_amax<THREADS>(values, count, scratch);
  const float shift = isinf(largest) ? 0.0f : largest;
  return logf(reduce_values<THREADS, Adding>(values, count, scratch,
                                             [=](float v) { return expf(v - shift); })) +
         shift;
}

}  // namespace coldforge
