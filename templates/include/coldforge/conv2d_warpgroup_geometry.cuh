// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: what follows from the problem and the config at compile time,
// and the layout of shared memory.
#pragma once

#include "coldforge/conv2d_tensor_weights.cuh"
#include "coldforge/stream_load.cuh"
#include "coldforge/warpgroup.cuh"

namespace coldforge {

template <class G>
using RawTile = typename G::Element[G::C_STEP][G::ROWS][G::COLUMNS];
template <class G>
using StagedResults = unsigned char[G::WARPGROUPS][G::OC_TILE][G::RESULT_BYTES];

// With FETCH_EARLY the next input tile arrives while one is computed; else the tile lies where the results go
// later: it is not needed any more when the first of them is there.
template <class G, bool EARLY>
struct Conv2dWarpgroupTile {
  alignas(16) StagedResults<G> results;
  alignas(16) RawTile<G> raw;
};
template <class G>
struct Conv2dWarpgroupTile<G, false> {
  union {
    alignas(16) StagedResults<G> results;
    RawTile<G> raw;
  };
};

// Weights are among the operands until they are in registers.
template <class G>
struct Conv2dWarpgroupShared : Conv2dWarpgroupTile<G, G::FETCH_EARLY> {
  using Weights = uint4[G::PARTS][G::UNITS][G::OC_TILE];
  alignas(16) unsigned char operands[G::OPERAND_BYTES];
  float unscale[G::OC_TILE];
  float bias[G::OC_TILE];
  u32 largest[G::WARPS];
  u32 least[G::WARPS];

  __device__ __forceinline__ Weights& weights() { return *reinterpret_cast<Weights*>(operands); }
};

// A block computes a tile of TILE_Y rows of 64 channels, at most WIDEST columns, STAGE_ROWS rows at a time;
// four warps, runs of RUN pixels of operands, which are output pixels and, between the rows, some that are
// not.
template <class P, class C, class T>
struct Conv2dWarpgroupGeometry {
  using Problem = P;
  using Config = C;
  using Element = T;

  static constexpr int R = P::R, S = P::S, TAPS = R * S, C_IN = P::C_in, C_OUT = P::C_out;
  static constexpr int TILE_Y = C::TILE_Y, COLUMNS = C::COLUMNS, STAGE_ROWS = C::STAGE_ROWS, RUN = C::RUN;
  static constexpr int THREADS = C::THREADS, WARPS = THREADS / 32, WARPGROUPS = THREADS / 128;
  // The rows that four warps compute of a tile.
  static constexpr int OWN_ROWS = round_up((TILE_Y + WARPGROUPS - 1) / WARPGROUPS, STAGE_ROWS);
  static constexpr bool FETCH_EARLY = C::FETCH_EARLY;
  static constexpr int OC_TILE = 64, OC_TILES = (C_OUT + OC_TILE - 1) / OC_TILE;
  static constexpr bool WHOLE_OC_TILES = C_OUT % OC_TILE == 0;

  static constexpr int PARTS = 2;
  static constexpr float LOW_SCALE = 2048.0f;
  static constexpr int C_STEP = C_IN, C_GROUPS = (C_IN + 7) / 8, UNITS = C_GROUPS * TAPS, PAIRS = UNITS / 2;
  static __device__ __forceinline__ int unit_of(int tap) { return tap; }

  static constexpr int COPY = 16 / int(sizeof(T));
  static constexpr int SHIFT = (COPY - P::padding_w % COPY) % COPY;
  static constexpr int ROWS = (TILE_Y - 1) * P::stride_h + (R - 1) * P::dilation_h + 1;
  static constexpr int WIDEST = (COLUMNS - SHIFT - (S - 1) * P::dilation_w - 1) / P::stride_w + 1;

  // Operands: a plane for each part, eight channels and remainder of row and column by the strides, so that
  // neighbouring outputs are neighbours for every tap.
  static constexpr int PHASES = P::stride_h * P::stride_w;
  static constexpr int PITCH = COLUMNS / P::stride_w, LINES = (ROWS + P::stride_h - 1) / P::stride_h;
  static constexpr int PART_BYTES = C_GROUPS * PHASES * LINES * PITCH * 16;
  static constexpr int RUNS = (STAGE_ROWS * PITCH + RUN - 1) / RUN;
  // Runs may read on behind the last plane, for pixels that are none.
  static constexpr int BEHIND = (RUN + (SHIFT + (S - 1) * P::dilation_w) / P::stride_w + 1) * 16;
  static constexpr int WEIGHT_BYTES = PARTS * UNITS * OC_TILE * 16;
  static constexpr int OPERAND_BYTES =
      PARTS * PART_BYTES + BEHIND > WEIGHT_BYTES ? PARTS * PART_BYTES + BEHIND : WEIGHT_BYTES;
  // A channel's results begin where they do within 128 bytes of global memory.
  static constexpr int RESULT_BYTES = round_up(STAGE_ROWS * WIDEST * int(sizeof(T)), 128) + 128;

  using Shared = Conv2dWarpgroupShared<Conv2dWarpgroupGeometry>;

  static __host__ __device__ constexpr int place_of(int row, int column) {
    const int phase = row % P::stride_h * P::stride_w + column % P::stride_w;
    return (phase * LINES + row / P::stride_h) * PITCH + column / P::stride_w;
  }
  // Bytes from a pixel's place to what a unit multiplies.
  static __host__ __device__ constexpr int offset_of(int unit) {
    const int tap = unit % TAPS, row = tap / S * P::dilation_h, column = SHIFT + tap % S * P::dilation_w;
    return (unit / TAPS * (PHASES * LINES * PITCH) + place_of(row, column)) * 16;
  }

  static_assert(sizeof(T) == 4 && COLUMNS % P::stride_w == 0 && WIDEST >= 8, "odd columns");
  static_assert(TILE_Y % STAGE_ROWS == 0 && THREADS % 128 == 0, "odd rows");
  static_assert(sizeof(Shared) == C::SHARED_BYTES, "the declared and the real shared memory differ");
};

// Splits the tile's pixels, eight channels at a time.
template <class G>
__device__ __forceinline__ void split_in_phases(typename G::Shared& shared, float scale) {
  uint4* operands = reinterpret_cast<uint4*>(shared.operands);
#pragma unroll 2
  for (u32 i = threadIdx.x; i < G::C_GROUPS * G::ROWS * G::COLUMNS; i += G::THREADS) {
    const u32 column = i % G::COLUMNS, row = i / G::COLUMNS % G::ROWS, group = i / (G::COLUMNS * G::ROWS);
    float value[8];
#pragma unroll
    for (u32 c = 0; c < 8; ++c) {
      const bool inside = G::C_IN % 8 == 0 || group * 8 + c < G::C_IN;
      value[c] = inside ? shared.raw[inside ? group * 8 + c : 0][row][column] * scale : 0.0f;
    }
    u32 words[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) split<2>(words[j], value[2 * j], value[2 * j + 1]);
    const u32 place = group * (G::PHASES * G::LINES * G::PITCH) + G::place_of(int(row), int(column));
#pragma unroll
    for (int part = 0; part < 2; ++part)
      operands[part * (G::PART_BYTES / 16) + place] =
          uint4{words[0][part], words[1][part], words[2][part], words[3][part]};
  }
}

}  // namespace coldforge
