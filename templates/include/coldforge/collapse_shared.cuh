// SPDX-License-Identifier: Apache-2.0
// What a block keeps in shared memory while it finishes a sample.
#pragma once

#include "coldforge/collapse_geometry.cuh"

namespace coldforge {

__host__ __device__ constexpr int smaller_of(int a, int b) { return a < b ? a : b; }

// How many values a thread of the finish has on their way at once.
constexpr int FINISH_LOADS = 32;

template <class G, int THREADS>
struct FinishShared {
  static constexpr int PLACES = smaller_of(4, 2048 / THREADS);
  using Sum = typename G::Sum;

  Sum sums[G::C_IN * G::SUMS];     // of the pixels that a tap meets
  Sum products[THREADS * PLACES];  // of some places of a channel, by group of threads
  Sum channels[G::C_OUT];          // results
  float scratch[32];               // of reductions
  u32 completed[4];                // which samples this block has to finish
};

}  // namespace coldforge
