// SPDX-License-Identifier: Apache-2.0
// Convolution on tensor cores: what follows from the problem and the config at compile time, and the layout
// of shared memory.
#pragma once

#include "coldforge/matrix.cuh"
#include "coldforge/types.cuh"

namespace coldforge {

// The run-time sizes of one call. Each fits in 31 bits; products of them need not.
struct Conv2dSizes {
  int N, H, W, H_out, W_out;
};

// A step's channels of the input tile as they are in global memory (`raw`), and as the tensor cores take
// them: eight channels of a pixel in 16 bytes, in PARTS planes. Weights alike, eight input channels of a tap
// and an output channel in 16 bytes. Where a thread keeps its weights in registers they are here only until
// the first tile is.
template <class G>
struct Conv2dTensorShared {
  using Raw = typename G::Element[G::C_STEP][G::ROWS][G::COLUMNS];
  using Pixels = uint4[G::PARTS][G::STEP_GROUPS][G::ROWS][G::COLUMNS];
  using Weights = uint4[G::PARTS][G::UNITS][G::OC_TILE];

  alignas(16) Raw raw;
  alignas(16) unsigned char operands[G::OPERAND_BYTES];
  // What turns a sum of scaled products back, but for the scale of the pixels; and the bias.
  float unscale[G::OC_TILE];
  float bias[G::OC_TILE];
  // Of each warp: the largest finite magnitude that it met, and the least but zero, or 0 beside inf or NaN.
  u32 largest[G::WARPS];
  u32 least[G::WARPS];
  // Of each warp one pass's results; a channel's begin a quarter of the banks behind those two before it.
  alignas(16)
      Vector<typename G::Element, G::PIXELS> staged[G::STAGED ? G::WARPS : 1][G::STAGED ? G::OC_WARP : 1][9];

  __device__ __forceinline__ Pixels& pixels() { return *reinterpret_cast<Pixels*>(operands); }
  __device__ __forceinline__ Weights& weights() {
    return *reinterpret_cast<Weights*>(operands + (G::WEIGHTS_SHARED ? sizeof(Pixels) : 0));
  }
};

// A block computes a tile of TILE_Y rows of OC_TILE channels, at most WIDEST columns; a warp, passes of PASS
// pixels of OC_WARP channels. A pass is PIXEL_MATRICES 16-row matrices of pixels by OC_WARP / 8 matrices of
// channels; a thread gets PIXELS neighbours of it, which are 16 bytes.
template <class P, class C, class T>
struct Conv2dTensorGeometry {
  using Problem = P;
  using Config = C;
  using Element = T;

  static constexpr int R = P::R, S = P::S, TAPS = R * S, C_IN = P::C_in, C_OUT = P::C_out;
  static constexpr int TILE_Y = C::TILE_Y, COLUMNS = C::COLUMNS, OC_TILE = C::OC_TILE, OC_WARP = C::OC_WARP;
  static constexpr int THREADS = C::THREADS, WARPS = THREADS / 32;
  static constexpr int STAGERS = THREADS;  // that copy input to shared memory
  static constexpr int CHANNEL_WARPS = OC_TILE / OC_WARP, PIXEL_WARPS = WARPS / CHANNEL_WARPS;
  static constexpr int OC_TILES = (C_OUT + OC_TILE - 1) / OC_TILE;
  static constexpr bool WHOLE_OC_TILES = C_OUT % OC_TILE == 0;
  static constexpr bool PERSISTENT = C::PERSISTENT, WEIGHTS_SHARED = C::WEIGHTS_SHARED;
  static constexpr bool STAGED = C::STAGED;

  static constexpr int PIXELS = 16 / int(sizeof(T)), PASS = 8 * PIXELS;
  static constexpr int PIXEL_MATRICES = PIXELS / 2, CHANNEL_MATRICES = OC_WARP / 8;

  // 16-bit floats are operands as they are. A float is a half and the half nearest to what is left of it,
  // times LOW_SCALE; with one product that is left out.
  static constexpr bool AS_THEY_ARE = sizeof(T) == 2, BFLOAT = C::BFLOAT;
  static constexpr int PARTS = C::PRODUCTS == 3 ? 2 : 1;
  static constexpr float LOW_SCALE = 2048.0f;

  // Input channels are taken C_STEP at a time. With more than one step a warp holds the results of HELD
  // passes, which are all of its tile. Eight input channels of a tap are a unit: the matrix instructions take
  // two, or one. Units of a group of channels run down the kernel's columns, so that two mostly are of one
  // column.
  static constexpr int C_STEP = C::C_TILE < C_IN ? C::C_TILE : C_IN, STEPS = (C_IN + C_STEP - 1) / C_STEP;
  static constexpr int STEP_GROUPS = (C_STEP + 7) / 8, C_GROUPS = STEPS * STEP_GROUPS,
                       UNITS = C_GROUPS * TAPS;

  static constexpr int HELD = C::HELD;
  static __host__ __device__ constexpr int row_of(int unit) { return unit % TAPS % R; }
  static __host__ __device__ constexpr int column_of(int unit) { return unit % TAPS / R; }
  static __device__ __forceinline__ int unit_of(int tap) { return tap % S * R + tap / S; }

  // Rows of the image are copied COPY elements (16 bytes) at a time where they all begin at a multiple of
  // that. So the tile begins at such a column, SHIFT columns left of the first that is needed.
  static constexpr int COPY = 16 / int(sizeof(T));
  static constexpr int SHIFT = (COPY - P::padding_w % COPY) % COPY;
  static constexpr int ROWS = (TILE_Y - 1) * P::stride_h + (R - 1) * P::dilation_h + 1;
  static constexpr int WIDEST = (COLUMNS - SHIFT - (S - 1) * P::dilation_w - 1) / P::stride_w + 1;

  // The 8 pixels of a matrix are every PIXELS-th output, so that a thread gets neighbours. In shared memory
  // the lowest bits of a column are mixed with higher ones, so that they lie in different banks.
  static constexpr int MIX_BITS = P::stride_w % 2 != 0 && PIXELS == 4 ? 3 : 7;
  static constexpr int MIX_SHIFT = (PIXELS == 8 ? 3 : 2) + (P::stride_w % 4 == 2   ? 1
                                                            : P::stride_w % 4 == 0 ? 2
                                                            : PIXELS == 4          ? 1
                                                                                   : 0);

  static constexpr int PIXEL_BYTES = PARTS * STEP_GROUPS * ROWS * COLUMNS * 16;
  static constexpr int WEIGHT_BYTES = PARTS * UNITS * OC_TILE * 16;
  static constexpr int OPERAND_BYTES = WEIGHTS_SHARED               ? PIXEL_BYTES + WEIGHT_BYTES
                                       : PIXEL_BYTES > WEIGHT_BYTES ? PIXEL_BYTES
                                                                    : WEIGHT_BYTES;

  using Shared = Conv2dTensorShared<Conv2dTensorGeometry>;

  static_assert(PARTS == 1 || sizeof(T) == 4, "a 16-bit float has one part");
  static_assert(OC_WARP % 16 == 0 && OC_TILE % OC_WARP == 0 && WARPS % CHANNEL_WARPS == 0, "odd warps");
  static_assert(STEPS == 1 || (C_STEP % 8 == 0 && WEIGHTS_SHARED), "odd steps");
  static_assert(COLUMNS % 32 == 0 && WIDEST >= 8, "odd columns");
  static_assert(PARTS * CHANNEL_MATRICES % 4 == 0, "weights are loaded by four matrices");
  static_assert(sizeof(Shared) == C::SHARED_BYTES, "the declared and the real shared memory differ");

  static __device__ __forceinline__ u32 mixed(u32 column) {
    return column ^ ((column >> MIX_SHIFT) & MIX_BITS);
  }
};

// Where a block works. The input row and column are those of the tile's first element; above and left of the
// image they are negative and wrap around, so that one unsigned comparison tests both edges. An image that is
// narrow enough is taken in whole rows, of which each channel's outputs are one run of memory.
template <class G>
struct Conv2dTensorTile {
  int n, oy, ox, width, pixels;
  u32 iy, ix;

  static __device__ __forceinline__ int columns(const Conv2dSizes& sizes) {
    return sizes.W_out <= G::WIDEST ? sizes.W_out : G::WIDEST / 8 * 8;
  }

  // Tiles are numbered along x, then y, then n.
  __device__ __forceinline__ Conv2dTensorTile(u64 index, const Conv2dSizes& sizes) {
    const u32 wide = static_cast<u32>(columns(sizes));
    const u32 tiles_x = (static_cast<u32>(sizes.W_out) + wide - 1) / wide;
    const u32 tiles_y = (static_cast<u32>(sizes.H_out) + G::TILE_Y - 1) / G::TILE_Y;
    const u64 row = index / tiles_x;
    ox = static_cast<int>(static_cast<u32>(index - row * tiles_x) * wide);
    n = static_cast<int>(row / tiles_y);
    oy = static_cast<int>(row - static_cast<u64>(n) * tiles_y) * G::TILE_Y;
    iy = static_cast<u32>(oy) * G::Problem::stride_h - G::Problem::padding_h;
    ix = static_cast<u32>(ox) * G::Problem::stride_w - G::Problem::padding_w - G::SHIFT;
    width = min(static_cast<int>(wide), sizes.W_out - ox);
    pixels = width * min(G::TILE_Y, sizes.H_out - oy);
  }

  static __device__ __forceinline__ u64 count(const Conv2dSizes& sizes) {
    const u64 wide = static_cast<u64>(columns(sizes));
    const u64 tiles_x = (static_cast<u64>(sizes.W_out) + wide - 1) / wide;
    const u64 tiles_y = (static_cast<u64>(sizes.H_out) + G::TILE_Y - 1) / G::TILE_Y;
    return tiles_x * tiles_y * static_cast<u64>(sizes.N);
  }
};

// A pixel of a tile by its number, row by row. `reciprocal` is 2^32 / width rounded up: exact for any number
// below 2^16 and width up to 2^16.
struct Conv2dPixel {
  u32 row, column;

  __device__ __forceinline__ Conv2dPixel(u32 number, u32 width, u32 reciprocal) {
    row = width == 1 ? number : __umulhi(number, reciprocal);
    column = number - row * width;
  }
  static __device__ __forceinline__ u32 reciprocal_of(int width) {
    return width == 1 ? 0 : 0xffffffffu / static_cast<u32>(width) + 1;
  }
};

}  // namespace coldforge
