// SPDX-License-Identifier: Apache-2.0
// The two stages of a collapsed transposed convolution: warps sum parts of planes, then a block finishes each
// sample: in the same launch, the block that completes it, or in a second one.
#pragma once

#include "coldforge/arrival.cuh"
#include "coldforge/collapse_finish.cuh"
#include "coldforge/collapse_stream.cuh"

namespace coldforge {

// The parts of a launch, numbered by sample, channel and part of a plane. A warp does one of them, so that a
// block of BLOCK threads may reach into several samples.
template <class G>
struct CollapseParts {
  static constexpr int WARPS = G::Config::BLOCK / WARP;
  static constexpr i64 PER_SAMPLE = static_cast<i64>(G::C_IN) * G::SPLIT;
  i64 first, end;  // of this block

  __device__ __forceinline__ explicit CollapseParts(i64 N) {
    first = static_cast<i64>(blockIdx.x) * WARPS;
    end = min(N * PER_SAMPLE, first + WARPS);
  }
  __device__ __forceinline__ i64 first_sample() const { return first / PER_SAMPLE; }
  __device__ __forceinline__ i64 samples() const { return (end - 1) / PER_SAMPLE + 1 - first_sample(); }
  // How many of them are of sample n.
  __device__ __forceinline__ u32 of_sample(i64 n) const {
    return static_cast<u32>(min(end, (n + 1) * PER_SAMPLE) - max(first, n * PER_SAMPLE));
  }
};

// Each warp's part; after it, the block has written all of its partial sums.
template <class G>
__device__ __forceinline__ void collapse_stream(const typename G::Element* x,
                                                const typename G::Element* weight,
                                                const CollapseWorkspace<G>& workspace,
                                                const CollapseParts<G>& parts, const CollapseSizes& sizes) {
  const int lane = static_cast<int>(threadIdx.x) % WARP;
  const i64 index = parts.first + static_cast<int>(threadIdx.x) / WARP;
  if (index >= parts.end) return;
  const i64 plane = index / G::SPLIT;
  const int part = static_cast<int>(index % G::SPLIT);
  if (part == 0) {
    const typename G::Element* taps = weight + plane % G::C_IN * (static_cast<i64>(G::C_OUT) * G::TAPS);
    if constexpr (G::FOLDED) {
      fold_taps<G>(taps, workspace.weights(plane), lane);
    } else {
      prefetch_taps<G>(taps, lane);
    }
  }
  stream_part<G>(x, workspace, plane, part, sizes, lane);
}

// Calls `finish(n)`, by the whole block, for each sample of which this block's parts are the last to be done.
template <class G, class Finish>
__device__ __forceinline__ void finish_completed(const CollapseWorkspace<G>& workspace,
                                                 const CollapseParts<G>& parts, u32& completed,
                                                 Finish finish) {
  __syncthreads();
  if (threadIdx.x < WARP) {
    bool last = false;
    const i64 n = parts.first_sample() + static_cast<int>(threadIdx.x);
    if (static_cast<int>(threadIdx.x) < parts.samples()) {
      last =
          arrive(workspace.counters + n, parts.of_sample(n), static_cast<u32>(CollapseParts<G>::PER_SAMPLE));
    }
    const u32 mask = __ballot_sync(0xffffffffu, last);
    if (threadIdx.x == 0) completed = mask;
  }
  __syncthreads();
#pragma unroll 1
  for (u32 left = completed; left != 0; left &= left - 1)
    finish(parts.first_sample() + __ffs(static_cast<int>(left)) - 1);
}

}  // namespace coldforge
