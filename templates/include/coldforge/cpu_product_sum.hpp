// SPDX-License-Identifier: Apache-2.0
// Ways to sum products, one sum a lane: plainly in the type of the sum, or in fp32 with what its additions
// round away carried along.
#pragma once

#include "coldforge/cpu_vector.hpp"

namespace coldforge {
namespace {

template <class T, int LANES>
struct PlainSum {
  Vector<T, LANES> sum;

  COLDFORGE_INLINE void start(T value) { sum = broadcast<T, LANES>(value); }
  COLDFORGE_INLINE void add_product(Vector<T, LANES> a, Vector<T, LANES> b) { sum += a * b; }
  COLDFORGE_INLINE Vector<T, LANES> result() const { return sum; }
};

// What an addition rounds away is found by two-sum, whichever of the two is larger. A product may be fused
// with the operation that takes it: then it was not rounded at all there, and what is found is off by no more
// than the product's own rounding.
template <int LANES>
struct CompensatedProductSum {
  Vector<float, LANES> sum, lost;

  COLDFORGE_INLINE void start(float value) {
    sum = broadcast<float, LANES>(value);
    lost = Vector<float, LANES>{};
  }
  COLDFORGE_INLINE void add_product(Vector<float, LANES> a, Vector<float, LANES> b) {
    const Vector<float, LANES> product = a * b;
    const Vector<float, LANES> next = sum + product;
    const Vector<float, LANES> added = next - sum;
    lost += (sum - (next - added)) + (product - added);
    sum = next;
  }
  // Beside an infinite sum what was lost is NaN: then the sum alone is right.
  COLDFORGE_INLINE Vector<float, LANES> result() const {
    const auto finite = lost - lost == Vector<float, LANES>{};
    return finite ? sum + lost : sum;
  }
};

}  // namespace
}  // namespace coldforge
