// SPDX-License-Identifier: Apache-2.0
// The reductions of an epilogue chain: one value of `count` > 0 neighbours, NaN and infinities as PyTorch has
// them. Sums are held in double: there are few.
#pragma once

#include "coldforge/cpu_vector.hpp"

namespace coldforge {
namespace {

struct NoReduction {};

struct Reduce_amax {
  static float reduce(const float* v, int64_t count) {
    float result = v[0];
    // Nothing compares greater than a NaN, so the first one stays.
    for (int64_t i = 1; i < count; ++i) result = v[i] > result || v[i] != v[i] ? v[i] : result;
    return result;
  }
};

struct Reduce_amin {
  static float reduce(const float* v, int64_t count) {
    float result = v[0];
    for (int64_t i = 1; i < count; ++i) result = v[i] < result || v[i] != v[i] ? v[i] : result;
    return result;
  }
};

struct Reduce_sum {
  static double total(const float* v, int64_t count) {
    double result = 0.0;
    for (int64_t i = 0; i < count; ++i) result += double(v[i]);
    return result;
  }
  static float reduce(const float* v, int64_t count) { return float(total(v, count)); }
};

struct Reduce_mean {
  static float reduce(const float* v, int64_t count) {
    return float(Reduce_sum::total(v, count) / double(count));
  }
};

struct Reduce_logsumexp {
  static float reduce(const float* v, int64_t count) {
    const float most = Reduce_amax::reduce(v, count);
    // Infinities are not shifted: inf - inf would be NaN where the answer is inf, or -inf of nothing else.
    const float shift = most - most == 0.0f ? most : 0.0f;
    double sum = 0.0;
    for (int64_t i = 0; i < count; ++i) sum += double(expf(v[i] - shift));
    return logf(float(sum)) + shift;
  }
};

}  // namespace
}  // namespace coldforge
