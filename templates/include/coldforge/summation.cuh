// SPDX-License-Identifier: Apache-2.0
// Ways to add up a long run of values one by one: in fp32, in fp32 with the rounding errors carried along, in
// fp64. Each value is already the sum of some neighbours.
#pragma once

#include "coldforge/types.cuh"

namespace coldforge {

// A plain sum of many values of one sign is rounded the same way again and again: its error grows with their
// number. Sums of 16, and of 16 such sums, keep the chains short.
struct AdderFp32 {
  using Result = float;
  float values = 0.0f, sixteens = 0.0f, rest = 0.0f;
  u32 count = 0;

  __device__ __forceinline__ void add(float value) {
    values += value;
    if ((++count & 15u) != 0) return;
    sixteens += values;
    values = 0.0f;
    if ((count & 255u) != 0) return;
    rest += sixteens;
    sixteens = 0.0f;
  }
  __device__ __forceinline__ float result() const { return rest + (sixteens + values); }
};

struct AdderFp64 {
  using Result = double;
  double sum = 0.0;

  __device__ __forceinline__ void add(float value) { sum += static_cast<double>(value); }
  __device__ __forceinline__ double result() const { return sum; }
};

// The plain sum runs by itself and its exact rounding errors are summed beside it (see AccumulatorKahan): an
// infinity only spoils the correction, which is then dropped. The intrinsics forbid reassociation.
struct AdderKahan {
  using Result = float;
  float sum = 0.0f, correction = 0.0f;

  __device__ __forceinline__ void add(float value) {
    const float next = __fadd_rn(sum, value);
    const float added = __fsub_rn(next, sum);
    const float lost = __fadd_rn(__fsub_rn(sum, __fsub_rn(next, added)), __fsub_rn(value, added));
    correction = __fadd_rn(correction, lost);
    sum = next;
  }
  __device__ __forceinline__ float result() const { return isfinite(correction) ? sum + correction : sum; }
};

// The sum of N values (a power of two) as a tree; the array is used up.
template <int N>
__device__ __forceinline__ float pairwise_sum(float (&values)[N]) {
  static_assert((N & (N - 1)) == 0, "a tree of a power of two");
#pragma unroll
  for (int width = N / 2; width > 0; width /= 2) {
#pragma unroll
    for (int i = 0; i < width; ++i) values[i] += values[i + width];
  }
  return values[0];
}

// The sum over LANES neighbouring lanes (a power of two), the same bits in each. The whole warp calls it.
template <int LANES, class T>
__device__ __forceinline__ T lanes_sum(T value) {
#pragma unroll
  for (int apart = LANES / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}

}  // namespace coldforge
