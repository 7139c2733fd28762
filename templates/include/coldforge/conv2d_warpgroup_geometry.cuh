// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: what follows from the problem and the config at compile time,
// and the layout of shared memory.
#pragma once

#include "coldforge/conv2d_tensor_weights.cuh"
#include "coldforge/warpgroup.cuh"

namespace coldforge {

// A tile's operands and what is known of them.
template <class G>
struct OperandStage {
  alignas(16) unsigned char operands[G::OPERAND_BYTES];
  // Of each group of eight channels and row, which columns hold a value that does not bear the tile's scale:
  // only where not all of them do.
  u32 unfit[G::C_GROUPS][G::ROWS][G::COLUMNS / 32];
  float unscale;
  u32 usable, exact;  // as of SplitScale
};

// Weights are among the first stage's operands until they are in registers. `results` holds, of each output
// channel, the newest part of what goes to memory: a ring of G::RING bytes.
template <class G>
struct Conv2dWarpgroupShared {
  using Weights = uint4[G::PARTS][G::UNITS][G::OC_TILE];
  using Raw = typename G::Element[G::C_STEP][G::ROWS][G::COLUMNS];
  alignas(128) unsigned char results[G::CONSUMERS][G::OC_TILE][G::RING];
  // The tile of input that is made operands of next.
  alignas(16) Raw raw;
  OperandStage<G> stages[G::STAGES];
  // What turns a sum of scaled products back, but for the scale of the pixels; and the bias.
  float unscale[G::OC_TILE];
  float bias[G::OC_TILE];
  // Of each gathering warp: the largest finite magnitude that it met, and the least but zero, or 0 beside inf
  // or NaN; in turn for this tile and the next, each also without what is not finite.
  u32 largest[4][G::GATHERERS];
  u32 least[4][G::GATHERERS];
  // Barriers. Of each stage: it is filled; it has been read.
  u64 full[G::STAGES];
  u64 empty[G::STAGES];
  u64 weights_read;

  __device__ __forceinline__ Weights& weights() { return *reinterpret_cast<Weights*>(stages[0].operands); }
};

// A block computes tiles of TILE_Y rows of 64 channels, at most WIDEST columns. Its first warps gather tiles
// of input; each four others, a consumer, compute a tile, RUN neighbouring pixels of a row at a time.
template <class P, class C, class T>
struct Conv2dWarpgroupGeometry {
  using Problem = P;
  using Config = C;
  using Element = T;

  static constexpr int R = P::R, S = P::S, TAPS = R * S, C_IN = P::C_in, C_OUT = P::C_out;
  static constexpr int TILE_Y = C::TILE_Y, COLUMNS = C::COLUMNS, RUN = C::RUN, RING = C::RING;
  static constexpr int CONSUMERS = C::CONSUMERS, STAGES = C::STAGES, GATHERERS = C::GATHERERS;
  static constexpr int THREADS = 32 * GATHERERS + 128 * CONSUMERS, WARPS = THREADS / 32;
  static constexpr int STAGERS = 32 * GATHERERS;  // that copy input to shared memory
  static constexpr int OC_TILE = 64, OC_TILES = (C_OUT + OC_TILE - 1) / OC_TILE;
  static constexpr bool WHOLE_OC_TILES = C_OUT % OC_TILE == 0;

  // Whether a consumer stores whole lines alone: those that begin in its tile, of which the last ones end in
  // the row below, so that it computes EXTRA elements of that too.
  static constexpr bool WHOLE_LINES = C::WHOLE_LINES != 0;
  static constexpr int LINE = 128, EXTRA = LINE / int(sizeof(T));

  // Registers of a thread that does not multiply, once it has given others away; of one that does; 0: as
  // compiled.
  static constexpr int LEFT = C::LEFT, TAKEN = C::TAKEN;

  // A float is a half and the half nearest to what is left of it, times LOW_SCALE; or a half alone.
  static constexpr int PARTS = C::PARTS;
  static constexpr float LOW_SCALE = 2048.0f;
  static constexpr bool AS_THEY_ARE = false;  // 16-bit numbers are made scaled halves too
  static constexpr int C_STEP = C_IN, C_GROUPS = (C_IN + 7) / 8, UNITS = C_GROUPS * TAPS, PAIRS = UNITS / 2;
  static __device__ __forceinline__ int unit_of(int tap) { return tap; }

  // Input is copied 16 bytes at a time where every row of the image begins at a multiple of that; so a tile
  // begins at such a column, SHIFT columns left of the first that is needed.
  static constexpr int COPY = 16 / int(sizeof(T));
  static constexpr int SHIFT = (COPY - P::padding_w % COPY) % COPY;
  static constexpr int ROWS =
      (TILE_Y - 1 + (WHOLE_LINES ? 1 : 0)) * P::stride_h + (R - 1) * P::dilation_h + 1;
  static constexpr int WIDEST = (COLUMNS - SHIFT - (S - 1) * P::dilation_w - 1) / P::stride_w + 1;

  // Operands: a plane for each part, eight channels and remainder of row and column by the strides, so that
  // neighbouring outputs are neighbours for every tap.
  static constexpr int PHASES = P::stride_h * P::stride_w;
  static constexpr int PITCH = COLUMNS / P::stride_w, LINES = (ROWS + P::stride_h - 1) / P::stride_h;
  static constexpr int PART_BYTES = C_GROUPS * PHASES * LINES * PITCH * 16;
  // Runs may read on behind the last plane, for pixels that are none.
  static constexpr int BEHIND = (RUN + (SHIFT + (S - 1) * P::dilation_w) / P::stride_w + 1) * 16;
  static constexpr int WEIGHT_BYTES = PARTS * UNITS * OC_TILE * 16;
  static constexpr int OPERAND_BYTES =
      PARTS * PART_BYTES + BEHIND > WEIGHT_BYTES ? PARTS * PART_BYTES + BEHIND : WEIGHT_BYTES;
  // What a ring holds beside a run: parts of two lines, before a run's first element, and what waits for the
  // rest of its line.
  static constexpr int RUN_BYTES = RUN * int(sizeof(T)), PARTS_BYTES = 2 * (LINE - int(sizeof(T)));

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

  static_assert(GATHERERS % 4 == 0, "a consumer begins at a multiple of four warps");
  static_assert(COLUMNS % 32 == 0 && COLUMNS % P::stride_w == 0 && WIDEST >= 8, "odd columns");
  static_assert((RING & (RING - 1)) == 0 && RING >= RUN_BYTES + PARTS_BYTES,
                "results would overtake themselves");
  static_assert(sizeof(T) == 4 || PARTS == 1, "16-bit values are not split");
  static_assert(sizeof(Shared) == C::SHARED_BYTES, "the declared and the real shared memory differ");
};

}  // namespace coldforge
