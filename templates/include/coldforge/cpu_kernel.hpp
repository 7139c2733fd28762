// SPDX-License-Identifier: Apache-2.0
// What the bodies of short kernels use: sums and maxima over f(0), ..., f(count - 1).
//
// Internal linkage throughout: see cpu_vector.hpp.
#pragma once

#include "coldforge/cpu_vector.hpp"

namespace coldforge {
namespace {

// LANES partial results side by side, each of every LANES-th value, put together as a tree: the compiler may
// not reorder a sum by itself, so a plain loop would add one value at a time.
template <int LANES, class Value, class Combine>
COLDFORGE_INLINE float reduce(int64_t count, float start, const Value& value, const Combine& combine) {
  static_assert(LANES > 0 && (LANES & (LANES - 1)) == 0, "LANES must be a power of two");
  constexpr int WIDTH = smaller(LANES, NATIVE_VECTOR_BYTES / 4);
  float lanes[LANES];
  for (int k = 0; k < LANES; ++k) lanes[k] = start;
  Vector<float, WIDTH> parts[LANES / WIDTH];
  __builtin_memcpy(parts, lanes, sizeof(parts));
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    unroll<LANES / WIDTH>([&](auto part) COLDFORGE_INLINED {
      float values[WIDTH];
      for (int k = 0; k < WIDTH; ++k) values[k] = value(i + part * WIDTH + k);
      parts[part] = combine(parts[part], load<float, WIDTH>(values));
    });
  }
  __builtin_memcpy(lanes, parts, sizeof(parts));
  for (int k = 0; i < count; ++i, ++k) lanes[k] = combine(lanes[k], value(i));
  for (int width = LANES / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) lanes[k] = combine(lanes[k], lanes[k + width]);
  }
  return lanes[0];
}

// The sum of value(i).
template <int LANES, class Value>
COLDFORGE_INLINE float sum(int64_t count, const Value& value) {
  return reduce<LANES>(count, 0.0f, value, [](auto a, auto b) COLDFORGE_INLINED { return a + b; });
}

// The largest value(i); a NaN among them is the result.
template <int LANES, class Value>
COLDFORGE_INLINE float largest(int64_t count, const Value& value) {
  const auto larger_one = [](auto a, auto b) COLDFORGE_INLINED { return (a > b) | (a != a) ? a : b; };
  return reduce<LANES>(count, -__builtin_inff(), value, larger_one);
}

}  // namespace
}  // namespace coldforge
