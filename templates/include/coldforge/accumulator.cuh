// SPDX-License-Identifier: Apache-2.0
// Ways to sum products: in fp32, in fp32 with the rounding errors carried along, in fp64.
#pragma once

#include "coldforge/types.cuh"

namespace coldforge {

struct AccumulatorFp32 {
  using Operand = float;
  float sum;

  __device__ __forceinline__ void start(float value) { sum = value; }
  __device__ __forceinline__ void add_product(Operand a, Operand b) { sum = fmaf(a, b, sum); }
  __device__ __forceinline__ float result() const { return sum; }
};

struct AccumulatorFp64 {
  using Operand = double;
  double sum;

  __device__ __forceinline__ void start(float value) { sum = static_cast<double>(value); }
  __device__ __forceinline__ void add_product(Operand a, Operand b) { sum = fma(a, b, sum); }
  __device__ __forceinline__ float result() const { return static_cast<float>(sum); }
};

// Kahan-Babuska: the plain sum runs by itself and its rounding errors are summed beside it, so an infinity
// passes through the sum as it should and only spoils the correction, which is then dropped. (Feeding the
// correction back at each step, as in Kahan's own form, would turn an infinity into a NaN.) The intrinsics
// forbid contraction: fused operations would change what the error term means.
struct AccumulatorKahan {
  using Operand = float;
  float sum;
  float correction;

  __device__ __forceinline__ void start(float value) {
    sum = value;
    correction = 0.0f;
  }
  __device__ __forceinline__ void add_product(Operand a, Operand b) {
    const float product = __fmul_rn(a, b);
    const float next = __fadd_rn(sum, product);
    correction = __fadd_rn(correction, __fsub_rn(product, __fsub_rn(next, sum)));
    sum = next;
  }
  __device__ __forceinline__ float result() const { return isfinite(correction) ? sum + correction : sum; }
};

}  // namespace coldforge
