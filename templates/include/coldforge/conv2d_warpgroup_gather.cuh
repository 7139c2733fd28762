// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: from global memory to operands.
#pragma once

#include "coldforge/conv2d_warpgroup_geometry.cuh"

namespace coldforge {

// The input of a tile, a pixel of eight channels at a time, of which a thread has some; zero outside of the
// image and behind the last channel. Few enough are kept in registers, more are read again.
template <class G>
struct GatheredTile {
  static constexpr int ITEMS = G::C_GROUPS * G::ROWS * G::COLUMNS,
                       EACH = (ITEMS + G::THREADS - 1) / G::THREADS;
  static constexpr bool KEPT = EACH <= 8;

  const typename G::Element* sample;
  const Conv2dTensorTile<G>& tile;
  const Conv2dSizes& sizes;
  float kept[KEPT ? EACH : 1][8];

  __device__ __forceinline__ GatheredTile(const typename G::Element* x, const Conv2dTensorTile<G>& tile,
                                          const Conv2dSizes& sizes)
      : tile(tile), sizes(sizes) {
    sample = x + static_cast<u64>(tile.n) * G::C_IN * static_cast<u64>(sizes.H) * static_cast<u32>(sizes.W);
    if constexpr (KEPT) {
#pragma unroll
      for (int k = 0; k < EACH; ++k) read(kept[k], item_of(k));
    }
  }
  static __device__ __forceinline__ u32 item_of(int k) {
    return threadIdx.x + static_cast<u32>(k * G::THREADS);
  }

  // Calls `use` for each of the thread's pixels with its eight values.
  template <class Use>
  __device__ __forceinline__ void each(Use use) {
    if constexpr (KEPT) {
#pragma unroll
      for (int k = 0; k < EACH; ++k) {
        if (ITEMS % G::THREADS == 0 || item_of(k) < ITEMS) use(item_of(k), kept[k]);
      }
    } else {
#pragma unroll 2
      for (u32 item = threadIdx.x; item < ITEMS; item += G::THREADS) {
        read(kept[0], item);
        use(item, kept[0]);
      }
    }
  }

 private:
  __device__ __forceinline__ void read(float (&value)[8], u32 item) const {
    const u32 column = item % G::COLUMNS, row = item / G::COLUMNS % G::ROWS,
              group = item / (G::COLUMNS * G::ROWS);
    const u32 iy = tile.iy + row, ix = tile.ix + column;
    const bool inside = iy < static_cast<u32>(sizes.H) && ix < static_cast<u32>(sizes.W) && item < ITEMS;
    const u64 plane = static_cast<u64>(sizes.H) * static_cast<u32>(sizes.W);
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

// The range of the tile's values, the same in every thread; only of the finite ones where FINITE.
template <class G, bool FINITE>
__device__ __forceinline__ MagnitudeRange range_of(typename G::Shared& shared, GatheredTile<G>& pixels) {
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
    shared.largest[threadIdx.x / 32] = range.largest;
    shared.least[threadIdx.x / 32] = range.least;
  }
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < G::WARPS; ++warp) {
    range.largest = max(range.largest, shared.largest[warp]);
    range.least = min(range.least, shared.least[warp]);
  }
  return range;
}

// The scale of a tile, the same in every thread. Has a barrier in it.
template <class G>
__device__ __forceinline__ SplitScale scale_of(typename G::Shared& shared, GatheredTile<G>& pixels) {
  const MagnitudeRange range = range_of<G, false>(shared, pixels);
  if (range.finite()) return SplitScale(range, true);
  __syncthreads();
  return SplitScale(range_of<G, true>(shared, pixels), false);
}

// Makes operands of the tile's pixels.
template <class G>
__device__ __forceinline__ void split_pixels(typename G::Shared& shared, GatheredTile<G>& pixels,
                                             float scale) {
  uint4* operands = reinterpret_cast<uint4*>(shared.operands);
  pixels.each([&](u32 item, const float (&value)[8]) {
    const u32 column = item % G::COLUMNS, row = item / G::COLUMNS % G::ROWS,
              group = item / (G::COLUMNS * G::ROWS);
    u32 words[4][G::PARTS];
#pragma unroll
    for (int j = 0; j < 4; ++j) split<G::PARTS>(words[j], value[2 * j] * scale, value[2 * j + 1] * scale);
    const u32 place = group * (G::PHASES * G::LINES * G::PITCH) + G::place_of(int(row), int(column));
#pragma unroll
    for (int part = 0; part < G::PARTS; ++part)
      operands[part * (G::PART_BYTES / 16) + place] =
          uint4{words[0][part], words[1][part], words[2][part], words[3][part]};
  });
}

// Notes which pixels hold a value that does not bear the scale.
template <class G>
__device__ __forceinline__ void note_unfit(typename G::Shared& shared, GatheredTile<G>& pixels,
                                           const SplitScale& scale) {
  pixels.each([&](u32 item, const float (&value)[8]) {
    bool fit = true;
#pragma unroll
    for (int c = 0; c < 8; ++c) fit = fit && scale.bears(value[c]);
    // A warp's pixels are 32 neighbours of a row: all of its lanes come here, or none.
    const u32 columns = __ballot_sync(0xffffffffu, !fit);
    if (threadIdx.x % 32 == 0) (&shared.unfit[0][0][0])[item / 32] = columns;
  });
}

// Asks for a tile's input to be in the L2 cache before long.
template <class G>
__device__ __forceinline__ void foresee_tile(const typename G::Element* x, const Conv2dTensorTile<G>& tile,
                                             const Conv2dSizes& sizes) {
  constexpr u32 LINE = 128 / sizeof(typename G::Element), LINES = (G::COLUMNS + LINE - 1) / LINE;
  const u64 plane = static_cast<u64>(sizes.H) * static_cast<u32>(sizes.W);
  const typename G::Element* sample = x + static_cast<u64>(tile.n) * G::C_IN * plane;
  for (u32 i = threadIdx.x; i < G::C_IN * G::ROWS * LINES; i += G::THREADS) {
    const u32 iy = tile.iy + i / LINES % G::ROWS, ix = tile.ix + i % LINES * LINE;
    if (iy < static_cast<u32>(sizes.H) && ix < static_cast<u32>(sizes.W))
      prefetch_l2(sample + i / (LINES * G::ROWS) * plane + static_cast<u64>(iy) * static_cast<u32>(sizes.W) +
                  ix);
  }
}

}  // namespace coldforge
