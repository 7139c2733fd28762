// SPDX-License-Identifier: Apache-2.0
// Depthwise convolution: what follows from the problem and the config at compile time, and a thread's place.
#pragma once

#include "coldforge/accumulator.cuh"
#include "coldforge/types.cuh"

namespace coldforge {

// The run-time sizes of one call. Each fits in 31 bits; products of them need not.
struct DepthwiseSizes {
  int N, H, W, H_out, W_out;
};

// A block computes TILE_Y x TILE_X pixels of PLANES planes of the input, and of each all MULTIPLIER planes
// of the output. A thread computes PY rows of VEC neighbouring columns, from top to bottom; LANES_X threads
// stand side by side.
//
// Counted from the first input row that an output row needs, input row j holds tap row r of the output row
// (j - r * dilation_h) / stride_h further down, where that is a whole number. So a thread holds the sums of
// OPEN output rows; to each that it completes belong the input rows up to LAST, of which NEW were not needed
// before.
template <class P, class C, class T, class A, class H>
struct DepthwiseGeometry {
  using Problem = P;
  using Config = C;
  using Element = T;
  using Accumulator = A;
  using Operand = typename A::Operand;
  using Hint = H;

  static constexpr int R = P::R, S = P::S, TAPS = R * S;
  static constexpr int PLANES_IN = P::C_in, MULTIPLIER = P::C_out / P::C_in;
  static constexpr int TILE_X = C::TILE_X, TILE_Y = C::TILE_Y, PY = C::PY, VEC = C::VEC;
  static constexpr int UNROLL = C::UNROLL, AHEAD = C::AHEAD;
  static constexpr bool STAGED = C::STAGED, SLIDING = C::SLIDE;
  // Weights in registers, or where they are many in shared memory.
  static constexpr bool HELD = C::HELD, TAPS_SHARED = SLIDING && !HELD;

  static constexpr int LANES_X = TILE_X / VEC, LANES_Y = TILE_Y / PY, LANES = LANES_X * LANES_Y;
  static constexpr int THREADS = C::BLOCK, PLANES = THREADS / LANES;

  static constexpr int LAST = (R - 1) * P::dilation_h;
  static constexpr int NEW = P::stride_h < LAST + 1 ? P::stride_h : LAST + 1;
  static constexpr int OPEN = LAST / P::stride_h + 1;

  // Rows of the image are read VEC elements at a time where they all begin at a multiple of that. So a
  // thread's window begins LEAD columns early, and a tile in shared memory, which is copied 16 bytes at a
  // time, SHIFT columns.
  static constexpr int COPY = 16 / int(sizeof(T));
  static constexpr int SHIFT = (COPY - P::padding_w % COPY) % COPY, LEAD = SHIFT % VEC;
  static constexpr int SPAN = (VEC - 1) * P::stride_w + (S - 1) * P::dilation_w + 1;
  static constexpr int WINDOW = round_up(LEAD + SPAN, VEC);
  static constexpr int ROWS = (TILE_Y - 1) * P::stride_h + LAST + 1;
  static constexpr int COLUMNS = round_up(SHIFT - LEAD + (TILE_X - VEC) * P::stride_w + WINDOW, COPY);

  static constexpr int STAGE_BYTES = STAGED ? PLANES * ROWS * COLUMNS * int(sizeof(T)) : 0;
  static constexpr int TAP_BYTES = TAPS_SHARED ? PLANES * TAPS * 4 : 0;

  // Whether a thread multiplies column `column` of its window with a tap, and row `j` as counted above.
  static __host__ __device__ constexpr bool has_column(int column) {
    for (int s = 0; s < S; ++s) {
      const int rest = column - LEAD - s * P::dilation_w;
      if (rest >= 0 && rest % P::stride_w == 0 && rest / P::stride_w < VEC) return true;
    }
    return false;
  }
  static __host__ __device__ constexpr bool has_row(int j) {
    for (int r = 0; r < R; ++r) {
      const int rest = j - r * P::dilation_h;
      if (rest >= 0 && rest % P::stride_h == 0) return true;
    }
    return false;
  }

  static_assert(P::C_in == P::groups && P::C_out % P::C_in == 0, "a group is one input channel");
  static_assert(TILE_X % VEC == 0 && TILE_Y % PY == 0 && THREADS % LANES == 0, "pixels do not divide");
  static_assert(PY % UNROLL == 0, "rows do not divide");
  static_assert(STAGE_BYTES + TAP_BYTES == C::SHARED_BYTES, "the declared and the real shared memory differ");
  static_assert(COPY % VEC == 0, "a thread's columns take more than one access");
};

// Where a block works: planes of the input from `plane` on (of those of all samples), and the first output
// row and column. Tiles are numbered along x, then y, then planes.
template <class G>
struct DepthwiseTile {
  i64 plane;
  int planes, oy, ox;

  __device__ __forceinline__ explicit DepthwiseTile(const DepthwiseSizes& sizes) {
    const u32 tiles_x = (static_cast<u32>(sizes.W_out) + G::TILE_X - 1) / G::TILE_X;
    const u32 tiles_y = (static_cast<u32>(sizes.H_out) + G::TILE_Y - 1) / G::TILE_Y;
    const u32 row = blockIdx.x / tiles_x, first = row / tiles_y;
    ox = static_cast<int>(blockIdx.x - row * tiles_x) * G::TILE_X;
    oy = static_cast<int>(row - first * tiles_y) * G::TILE_Y;
    plane = static_cast<i64>(first) * G::PLANES;
    const i64 left = static_cast<i64>(sizes.N) * G::PLANES_IN - plane;
    planes = left < G::PLANES ? static_cast<int>(left) : G::PLANES;
  }
};

// A thread's place in its block: its first column and row in the tile, and its plane.
template <class G>
struct DepthwisePlace {
  int x, y, plane;

  __device__ __forceinline__ DepthwisePlace() {
    const int thread = static_cast<int>(threadIdx.x);
    x = thread % G::LANES_X * G::VEC;
    y = thread / G::LANES_X % G::LANES_Y * G::PY;
    plane = thread / G::LANES;
  }
};

}  // namespace coldforge
