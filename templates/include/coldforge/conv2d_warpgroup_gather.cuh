// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: from global memory to operands.
#pragma once

#include "coldforge/conv2d_warpgroup_geometry.cuh"

namespace coldforge {

constexpr int GATHER_BARRIER = 1;

template <class G>
__device__ __forceinline__ void await_gatherers() {
  __syncwarp();
  named_barrier_sync(GATHER_BARRIER, G::STAGERS);
}

// The range of the tile's values, the same in every gathering thread; only of the finite ones where FINITE.
// `slot`: not that of the call before.
template <class G, bool FINITE>
__device__ __forceinline__ MagnitudeRange range_of(typename G::Shared& shared, int slot) {
  const typename G::Element* raw = &shared.raw[0][0][0];
  MagnitudeRange range;
#pragma unroll 4
  for (u32 i = threadIdx.x * 4; i < G::C_IN * G::ROWS * G::COLUMNS; i += G::STAGERS * 4) {
    const auto four = load_vector<4>(raw + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (FINITE) {
        range.see_finite(to_float(four.at[j]));
      } else {
        range.see(to_float(four.at[j]));
      }
    }
  }
  range.of_warp();
  if (threadIdx.x % 32 == 0) {
    shared.largest[slot][threadIdx.x / 32] = range.largest;
    shared.least[slot][threadIdx.x / 32] = range.least;
  }
  await_gatherers<G>();
#pragma unroll
  for (int warp = 0; warp < G::STAGERS / 32; ++warp) {
    range.largest = max(range.largest, shared.largest[slot][warp]);
    range.least = min(range.least, shared.least[slot][warp]);
  }
  return range;
}

// The scale of a tile. `turn` is 0 and 1 in turn.
template <class G>
__device__ __forceinline__ SplitScale scale_of(typename G::Shared& shared, int turn) {
  const MagnitudeRange range = range_of<G, false>(shared, 2 * turn);
  if (range.finite()) return SplitScale(range, true);
  return SplitScale(range_of<G, true>(shared, 2 * turn + 1), false);
}

// Makes operands of the tile's pixels, eight channels at a time; where some do not bear the scale, notes
// which.
template <class G>
__device__ __forceinline__ void fill_stage(OperandStage<G>& stage, const typename G::Shared& shared,
                                           const SplitScale& scale) {
  uint4* operands = reinterpret_cast<uint4*>(stage.operands);
#pragma unroll 2
  for (u32 i = threadIdx.x; i < G::C_GROUPS * G::ROWS * G::COLUMNS; i += G::STAGERS) {
    const u32 column = i % G::COLUMNS, row = i / G::COLUMNS % G::ROWS, group = i / (G::COLUMNS * G::ROWS);
    float value[8];
#pragma unroll
    for (u32 c = 0; c < 8; ++c) {
      const bool inside = G::C_IN % 8 == 0 || group * 8 + c < G::C_IN;
      value[c] = inside ? to_float(shared.raw[inside ? group * 8 + c : 0][row][column]) : 0.0f;
    }
    u32 words[4][G::PARTS];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      split<G::PARTS>(words[j], value[2 * j] * scale.scale, value[2 * j + 1] * scale.scale);
    const u32 place = group * (G::PHASES * G::LINES * G::PITCH) + G::place_of(int(row), int(column));
#pragma unroll
    for (int part = 0; part < G::PARTS; ++part)
      operands[part * (G::PART_BYTES / 16) + place] =
          uint4{words[0][part], words[1][part], words[2][part], words[3][part]};
    if (scale.exact) continue;
    bool fit = true;
#pragma unroll
    for (int c = 0; c < 8; ++c) fit = fit && scale.bears(value[c]);
    // A warp's pixels are 32 neighbours of a row: all of its lanes come here, or none.
    const u32 columns = __ballot_sync(0xffffffffu, !fit);
    if (threadIdx.x % 32 == 0) (&stage.unfit[0][0][0])[i / 32] = columns;
  }
  if (threadIdx.x == 0) {
    stage.unscale = scale.unscale;
    stage.usable = scale.usable;
    stage.exact = scale.exact;
  }
}

}  // namespace coldforge
