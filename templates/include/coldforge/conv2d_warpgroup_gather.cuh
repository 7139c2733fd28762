// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: from global memory to operands.
#pragma once

#include "coldforge/conv2d_warpgroup_geometry.cuh"

namespace coldforge {

constexpr int GATHERERS = 128, GATHER_BARRIER = 1;

// A thread's part of a tile of input: pixels of eight channels; zero outside of the image and behind the last
// channel. They are read twice, the second time from the L2 cache: registers belong to those who multiply.
template <class G>
struct GatheredTile {
  static constexpr int ITEMS = G::C_GROUPS * G::ROWS * G::COLUMNS;

  const typename G::Element* sample;
  const Conv2dTensorTile<G>& tile;
  const Conv2dSizes& sizes;
  u64 plane;

  __device__ __forceinline__ GatheredTile(const typename G::Element* x, const Conv2dTensorTile<G>& tile,
                                          const Conv2dSizes& sizes)
      : tile(tile), sizes(sizes), plane(static_cast<u64>(sizes.H) * static_cast<u32>(sizes.W)) {
    sample = x + static_cast<u64>(tile.n) * G::C_IN * plane;
  }

  // Calls `use` for each of the thread's pixels with its number and eight values.
  template <class Use>
  __device__ __forceinline__ void each(Use use) const {
#pragma unroll 2
    for (u32 item = threadIdx.x; item < ITEMS; item += GATHERERS) {
      float value[8];
      read(value, item);
      use(item, value);
    }
  }

 private:
  __device__ __forceinline__ void read(float (&value)[8], u32 item) const {
    const u32 column = item % G::COLUMNS, row = item / G::COLUMNS % G::ROWS,
              group = item / (G::COLUMNS * G::ROWS);
    const u32 iy = tile.iy + row, ix = tile.ix + column;
    const bool inside = iy < static_cast<u32>(sizes.H) && ix < static_cast<u32>(sizes.W);
    const typename G::Element* from =
        sample + group * 8 * plane + (inside ? static_cast<u64>(iy) * static_cast<u32>(sizes.W) + ix : 0);
#pragma unroll
    for (u32 c = 0; c < 8; ++c) {
      value[c] = inside && (G::C_IN % 8 == 0 || group * 8 + c < G::C_IN)
                     ? to_float(load_readonly<1>(from).at[0])
                     : 0.0f;
      from += plane;
    }
  }
};

// The range of the tile's values, the same in every gathering thread; only of the finite ones where FINITE.
// `slot`: not that of the call before.
template <class G, bool FINITE>
__device__ __forceinline__ MagnitudeRange range_of(typename G::Shared& shared, const GatheredTile<G>& pixels,
                                                   int slot) {
  MagnitudeRange range;
  pixels.each([&](u32, const float (&value)[8]) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if constexpr (FINITE) {
        range.see_finite(value[c]);
      } else {
        range.see(value[c]);
      }
    }
  });
  range.of_warp();
  if (threadIdx.x % 32 == 0) {
    shared.largest[slot][threadIdx.x / 32] = range.largest;
    shared.least[slot][threadIdx.x / 32] = range.least;
  }
  named_barrier_sync(GATHER_BARRIER, GATHERERS);
#pragma unroll
  for (int warp = 0; warp < GATHERERS / 32; ++warp) {
    range.largest = max(range.largest, shared.largest[slot][warp]);
    range.least = min(range.least, shared.least[slot][warp]);
  }
  return range;
}

// The scale of a tile. `turn` is 0 and 1 in turn.
template <class G>
__device__ __forceinline__ SplitScale scale_of(typename G::Shared& shared, const GatheredTile<G>& pixels,
                                               int turn) {
  const MagnitudeRange range = range_of<G, false>(shared, pixels, 2 * turn);
  if (range.finite()) return SplitScale(range, true);
  return SplitScale(range_of<G, true>(shared, pixels, 2 * turn + 1), false);
}

// Makes operands of the tile's pixels; notes which hold a value that does not bear the scale where some do
// not.
template <class G>
__device__ __forceinline__ void fill_stage(OperandStage<G>& stage, const GatheredTile<G>& pixels,
                                           const SplitScale& scale) {
  uint4* operands = reinterpret_cast<uint4*>(stage.operands);
  pixels.each([&](u32 item, const float (&value)[8]) {
    const u32 column = item % G::COLUMNS, row = item / G::COLUMNS % G::ROWS,
              group = item / (G::COLUMNS * G::ROWS);
    u32 words[4][G::PARTS];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      split<G::PARTS>(words[j], value[2 * j] * scale.scale, value[2 * j + 1] * scale.scale);
    const u32 place = group * (G::PHASES * G::LINES * G::PITCH) + G::place_of(int(row), int(column));
#pragma unroll
    for (int part = 0; part < G::PARTS; ++part)
      operands[part * (G::PART_BYTES / 16) + place] =
          uint4{words[0][part], words[1][part], words[2][part], words[3][part]};
    if (scale.exact) return;
    bool fit = true;
#pragma unroll
    for (int c = 0; c < 8; ++c) fit = fit && scale.bears(value[c]);
    // A warp's pixels are 32 neighbours of a row: all of its lanes come here, or none.
    const u32 columns = __ballot_sync(0xffffffffu, !fit);
    if (threadIdx.x % 32 == 0) (&stage.unfit[0][0][0])[item / 32] = columns;
  });
  if (threadIdx.x == 0) {
    stage.unscale = scale.unscale;
    stage.usable = scale.usable;
    stage.exact = scale.exact;
  }
}

// Asks for a tile's input to be in the L2 cache before long.
template <class G>
__device__ __forceinline__ void foresee_tile(const typename G::Element* x, const Conv2dTensorTile<G>& tile,
                                             const Conv2dSizes& sizes) {
  constexpr u32 LINE = 128 / sizeof(typename G::Element), LINES = (G::COLUMNS + LINE - 1) / LINE;
  const u64 plane = static_cast<u64>(sizes.H) * static_cast<u32>(sizes.W);
  const typename G::Element* sample = x + static_cast<u64>(tile.n) * G::C_IN * plane;
  for (u32 i = threadIdx.x; i < G::C_IN * G::ROWS * LINES; i += GATHERERS) {
    const u32 iy = tile.iy + i / LINES % G::ROWS, ix = tile.ix + i % LINES * LINE;
    if (iy < static_cast<u32>(sizes.H) && ix < static_cast<u32>(sizes.W))
      prefetch_l2(sample + i / (LINES * G::ROWS) * plane + static_cast<u64>(iy) * static_cast<u32>(sizes.W) +
                  ix);
  }
}

}  // namespace coldforge
