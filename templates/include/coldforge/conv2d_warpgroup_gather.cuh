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

// 32 neighbouring pixels of a row, of eight channels: what a warp copies to shared memory, and makes operands
// of, by itself. So it fetches the next tile's as soon as it has read them, and waits for no other warp.
template <class G>
struct GatherUnit {
  static constexpr u32 ACROSS = G::COLUMNS / 32, COUNT = G::C_GROUPS * G::ROWS * ACROSS;
  u32 group, row, column;

  __device__ __forceinline__ explicit GatherUnit(u32 number)
      : group(G::C_GROUPS == 1 ? 0 : number / (G::ROWS * ACROSS)),
        row(number / ACROSS - group * G::ROWS),
        column(number % ACROSS * 32) {}
  // Whether the input has the `c`-th channel of the unit.
  __device__ __forceinline__ bool has(u32 c) const { return G::C_IN % 8 == 0 || group * 8 + c < G::C_IN; }
};

// Begins to copy a unit of a tile; outside the image it is zero. Every row of the image begins at a multiple
// of N elements.
template <class G, int N>
__device__ __forceinline__ void fetch_unit(typename G::Shared& shared, const typename G::Element* x,
                                           const GatherUnit<G>& unit, const Conv2dTensorTile<G>& tile,
                                           const Conv2dSizes& sizes) {
  constexpr u32 PER_ROW = 32 / N;
  const i64 plane = static_cast<i64>(sizes.H) * sizes.W;
  const u32 iy = tile.iy + unit.row;
  // Of the unit's first pixel, which may be outside.
  const i64 first = (static_cast<i64>(tile.n) * G::C_IN + unit.group * 8) * plane +
                    static_cast<i64>(static_cast<int>(iy)) * sizes.W +
                    static_cast<int>(tile.ix + unit.column);
#pragma unroll
  for (u32 k = 0; k < PER_ROW / 4; ++k) {
    const u32 i = k * 32 + threadIdx.x % 32, c = i / PER_ROW, column = i % PER_ROW * N;
    if (!unit.has(c)) continue;
    const bool inside =
        iy < static_cast<u32>(sizes.H) && tile.ix + unit.column + column < static_cast<u32>(sizes.W);
    const i64 offset = first + c * plane + column;
    stage_elements<N>(&shared.raw[unit.group * 8 + c][unit.row][unit.column + column],
                      x + (inside ? offset : 0), inside);
  }
}

template <class G>
__device__ __forceinline__ void fetch_unit(typename G::Shared& shared, const typename G::Element* x,
                                           const GatherUnit<G>& unit, const Conv2dTensorTile<G>& tile,
                                           const Conv2dSizes& sizes) {
  if (sizes.W % G::COPY == 0) {
    fetch_unit<G, G::COPY>(shared, x, unit, tile, sizes);
  } else if (sizes.W % 2 == 0) {
    fetch_unit<G, 2>(shared, x, unit, tile, sizes);
  } else {
    fetch_unit<G, 1>(shared, x, unit, tile, sizes);
  }
}

// The range of the tile's values, the same in every gathering thread; only of the finite ones where FINITE.
// `slot`: not that of the call before.
template <class G, bool FINITE>
__device__ __forceinline__ MagnitudeRange range_of(typename G::Shared& shared, u32 warp, int slot) {
  const u32 lane = threadIdx.x % 32;
  MagnitudeRange range;
#pragma unroll 2
  for (u32 number = warp; number < GatherUnit<G>::COUNT; number += G::GATHERERS) {
    const GatherUnit<G> unit(number);
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
      const u32 c = k * 4 + lane / 8;
      if (!unit.has(c)) continue;
      const auto four = load_vector<4>(&shared.raw[unit.group * 8 + c][unit.row][unit.column + lane % 8 * 4]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (FINITE) {
          range.see_finite(to_float(four.at[j]));
        } else {
          range.see(to_float(four.at[j]));
        }
      }
    }
  }
  range.of_warp();
  if (lane == 0) {
    shared.largest[slot][warp] = range.largest;
    shared.least[slot][warp] = range.least;
  }
  await_gatherers<G>();
#pragma unroll
  for (int other = 0; other < G::GATHERERS; ++other) {
    range.largest = max(range.largest, shared.largest[slot][other]);
    range.least = min(range.least, shared.least[slot][other]);
  }
  return range;
}

// The scale of a tile. `turn` is 0 and 1 in turn.
template <class G>
__device__ __forceinline__ SplitScale scale_of(typename G::Shared& shared, u32 warp, int turn) {
  const MagnitudeRange range = range_of<G, false>(shared, warp, 2 * turn);
  if (range.finite()) return SplitScale(range, true);
  return SplitScale(range_of<G, true>(shared, warp, 2 * turn + 1), false);
}

// Makes operands of a unit, a pixel a lane; where some do not bear the scale, notes which.
template <class G>
__device__ __forceinline__ void fill_unit(OperandStage<G>& stage, const typename G::Shared& shared,
                                          const GatherUnit<G>& unit, const SplitScale& scale) {
  const u32 lane = threadIdx.x % 32;
  float value[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const bool inside = unit.has(c);
    value[c] =
        inside ? to_float(shared.raw[inside ? unit.group * 8 + c : 0][unit.row][unit.column + lane]) : 0.0f;
  }
  u32 words[4][G::PARTS];
#pragma unroll
  for (int j = 0; j < 4; ++j)
    split<G::PARTS>(words[j], value[2 * j] * scale.scale, value[2 * j + 1] * scale.scale);
  const int place = unit.group * (G::PHASES * G::LINES * G::PITCH) +
                    G::place_of(static_cast<int>(unit.row), static_cast<int>(unit.column + lane));
  uint4* const operands = reinterpret_cast<uint4*>(stage.operands) + place;
#pragma unroll
  for (int part = 0; part < G::PARTS; ++part)
    operands[part * (G::PART_BYTES / 16)] =
        uint4{words[0][part], words[1][part], words[2][part], words[3][part]};
  if (scale.exact) return;
  bool fit = true;
#pragma unroll
  for (int c = 0; c < 8; ++c) fit = fit && scale.bears(value[c]);
  const u32 columns = __ballot_sync(0xffffffffu, !fit);
  if (lane == 0) stage.unfit[unit.group][unit.row][unit.column / 32] = columns;
}

}  // namespace coldforge
