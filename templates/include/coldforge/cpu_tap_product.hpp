// SPDX-License-Identifier: Apache-2.0
// The product of tap sums and weights: out[k] = sum over c, t of T[c][t] * weight[c][k][t]. Weights of one c
// are contiguous, k and t together, so T[c] is multiplied along them as a pattern that repeats. Each product
// is made on its own, even where all taps have one sum: an infinite sum then meets taps of both signs.
//
// P holds the problem's constants (C_in, C_out, R, S), C the config's.
#pragma once

#include "coldforge/cpu_vector.hpp"

namespace coldforge {
namespace {

// SUMS: distinct tap sums of a channel, R * S of them or 1.
template <class P, class C, int SUMS>
struct TapProduct {
  static constexpr int TAPS = P::R * P::S;
  // The rounding errors of a sum of few products have nothing to hide behind.
  static constexpr bool WIDE = C::ACC_FP64 || P::C_in * TAPS < 64;
  using T = typename Select<WIDE, double, float>::type;
  static constexpr int LANES = smaller(C::VEC * int(sizeof(float)), NATIVE_VECTOR_BYTES) / int(sizeof(T));
  // Channels whose products are added in registers, as a tree.
  static constexpr int GROUP = 4;
  // Output channels at a time: their sums stay in the first-level cache.
  static constexpr int TILE = smaller(larger(2048 / TAPS, 1), P::C_out);
  static constexpr int LENGTH = TILE * TAPS;
  static constexpr bool COMPENSATED = C::ACC_KAHAN && !WIDE;

  alignas(64) T sums[LENGTH];
  alignas(64) T lost[COMPENSATED ? LENGTH : 1];
  alignas(64) T pattern[GROUP][SUMS * LANES];

  // Output channels [k, k + count), count <= TILE: to out[count]. `tap_sum(c, t)` gives T[c][t].
  template <class TapSum>
  void multiply(const float* weight, const TapSum& tap_sum, int k, int count, double* out) {
    const int length = count * TAPS;
    for (int i = 0; i < length; ++i) sums[i] = T(0);
    if constexpr (COMPENSATED)
      for (int i = 0; i < length; ++i) lost[i] = T(0);
    const float* first = weight + int64_t(k) * TAPS;
    int c = 0;
    for (; c + GROUP <= P::C_in; c += GROUP, first += int64_t(GROUP) * CHANNEL)
      add_channels<GROUP>(first, length, tap_sum, c);
    for (; c < P::C_in; ++c, first += CHANNEL) add_channels<1>(first, length, tap_sum, c);
    for (int i = 0; i < count; ++i) {
      double total = 0.0;
      for (int t = 0; t < TAPS; ++t) {
        const int at = i * TAPS + t;
        total += double(sums[at]);
        if constexpr (COMPENSATED)
          if (lost[at] - lost[at] == T(0)) total += double(lost[at]);
      }
      out[i] = total;
    }
  }

 private:
  static constexpr int64_t CHANNEL = int64_t(P::C_out) * TAPS;

  template <int CHANNELS, class TapSum>
  void add_channels(const float* weight, int length, const TapSum& tap_sum, int c) {
    for (int g = 0; g < CHANNELS; ++g) {
      for (int t = 0; t < SUMS; ++t) pattern[g][t] = T(tap_sum(c + g, t));
      for (int i = SUMS; i < SUMS * LANES; ++i) pattern[g][i] = pattern[g][i - SUMS];
    }
    // A step through the pattern, which has no end where it has one sum only.
    constexpr int STEP = SUMS > 1 ? 1 : 0;
    int i = 0;
    for (; i + SUMS * LANES <= length; i += SUMS * LANES)
      for (int v = 0; v < SUMS; ++v) add_products<CHANNELS, LANES>(weight, i + v * LANES, v * LANES);
    int at = 0;
    for (; i + LANES <= length; i += LANES, at += STEP * LANES) add_products<CHANNELS, LANES>(weight, i, at);
    for (; i < length; ++i, at += STEP) add_products<CHANNELS, 1>(weight, i, at);
  }

  // WIDTH elements from element `i` of the tile on, whose place in the pattern is `at`.
  template <int CHANNELS, int WIDTH>
  COLDFORGE_INLINE void add_products(const float* weight, int i, int at) {
    const Vector<T, WIDTH> v = products<CHANNELS, 0, WIDTH>(weight + i, at);
    const Vector<T, WIDTH> sum = load<T, WIDTH>(sums + i);
    const Vector<T, WIDTH> t = sum + v;
    if constexpr (COMPENSATED) {
      const Vector<T, WIDTH> added = t - sum;
      store<T, WIDTH, T>(lost + i, load<T, WIDTH>(lost + i) + ((sum - (t - added)) + (v - added)));
    }
    store<T, WIDTH, T>(sums + i, t);
  }

  template <int CHANNELS, int FIRST, int WIDTH>
  COLDFORGE_INLINE Vector<T, WIDTH> products(const float* weight, int at) const {
    if constexpr (CHANNELS == 1) {
      return load<T, WIDTH>(pattern[FIRST] + at) * load<T, WIDTH>(weight + FIRST * CHANNEL);
    } else {
      return products<CHANNELS / 2, FIRST, WIDTH>(weight, at) +
             products<CHANNELS / 2, FIRST + CHANNELS / 2, WIDTH>(weight, at);
    }
  }
};

}  // namespace
}  // namespace coldforge
