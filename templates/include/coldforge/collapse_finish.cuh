// SPDX-License-Identifier: Apache-2.0
// What a block does once all partial sums of a sample are there.
#pragma once

#include "coldforge/collapse_combine.cuh"
#include "coldforge/collapse_product.cuh"
#include "coldforge/reduce.cuh"

namespace coldforge {

// channels = the sums over all output pixels of sample n, before the convolution's bias. All threads call it.
template <class G, int THREADS>
__device__ __forceinline__ void sum_sample(FinishShared<G, THREADS>& shared,
                                           const CollapseWorkspace<G>& workspace,
                                           const typename G::Element* weight, i64 n,
                                           const CollapseSizes& sizes) {
  const auto* partials = workspace.segments(n * G::C_IN);
  const bool finite = __syncthreads_and(combine_inner_rows<G, THREADS>(shared, partials)) != 0;
  if constexpr (G::BORDER_ROWS > 0) {
    add_border_rows<G, THREADS>(shared, partials, sizes);
    __syncthreads();
  }
  if constexpr (G::FOLDED) {
    // Infinities and NaN must meet the taps one by one: taps of both signs make a NaN of an infinity.
    if (finite) {
      multiply<G, THREADS, 1, WrittenWeights>(shared, workspace.weights(n * G::C_IN));
      return;
    }
  }
  multiply<G, THREADS, G::TAPS, PlainWeights>(shared, weight);
}

}  // namespace coldforge
