// SPDX-License-Identifier: Apache-2.0
// Direct convolution: what follows from the problem and the config at compile time, and the layout of shared
// memory.
#pragma once

#include "coldforge/accumulator.cuh"
#include "coldforge/types.cuh"

namespace coldforge {

// The run-time sizes of one call. Each fits in 31 bits; products of them need not.
struct Conv2dSizes {
  int N, H, W, H_out, W_out;
};

// The stages of input pixels and, where they are kept in shared memory, the weights as [channel, r, s][output
// channel]. A weight row is 4 words longer than its channels, so that 8 taps by 4 channels, which a warp
// stores at once, lie in 32 different banks; 16-byte reads stay aligned.
template <class G, bool WITH_WEIGHTS>
struct Conv2dShared {
  alignas(16) typename G::Element input[G::STAGES][G::C_STEP][G::ROWS][G::COLUMNS];
  alignas(16) float weight[G::WEIGHT_STAGES][G::C_STEP * G::R * G::S][G::OC_TILE + 4];
};

template <class G>
struct Conv2dShared<G, false> {
  alignas(16) typename G::Element input[G::STAGES][G::C_STEP][G::ROWS][G::COLUMNS];
};

// A block computes TILE_Y x TILE_X pixels of OC_TILE output channels; a thread, PY x PX pixels of
// OC_PER_THREAD channels. A thread's PX pixels are PX / VEC runs of VEC neighbours, and LANES_X threads stand
// side by side in each run's row: so a warp reads and writes long unbroken runs, and all its threads want the
// same weights.
template <class P, class C, class T, class A>
struct Conv2dGeometry {
  using Problem = P;
  using Config = C;
  using Element = T;
  using Accumulator = A;
  using Operand = typename A::Operand;

  static constexpr int R = P::R, S = P::S, C_IN = P::C_in, C_OUT = P::C_out;
  static constexpr int TILE_X = C::TILE_X, TILE_Y = C::TILE_Y, OC_TILE = C::OC_TILE, VEC = C::VEC;
  static constexpr int PX = C::PX, PY = C::PY, K = C::OC_PER_THREAD, RUNS = PX / VEC;
  static constexpr bool PERSISTENT = C::PERSISTENT;

  static constexpr int LANES_X = TILE_X / PX, LANES_Y = TILE_Y / PY;
  static constexpr int PIXEL_THREADS = LANES_X * LANES_Y;
  static constexpr int THREADS = PIXEL_THREADS * (OC_TILE / K);
  static constexpr int OC_TILES = (C_OUT + OC_TILE - 1) / OC_TILE;
  static constexpr bool WHOLE_OC_TILES = C_OUT % OC_TILE == 0;

  // Input channels are taken C_STEP at a time; stages beyond the first are filled while another is used.
  static constexpr int C_STEP = C::C_TILE < C_IN ? C::C_TILE : C_IN;
  static constexpr int STEPS = (C_IN + C_STEP - 1) / C_STEP;
  static constexpr int STAGES = C::STAGES;
  static constexpr int WEIGHT_STAGES = STEPS == 1 ? 1 : STAGES;

  // Rows of the image are copied COPY elements (16 bytes) at a time where they all begin at a multiple of
  // that. So the tile begins at such a column, SHIFT columns left of the first that is needed. A run of VEC
  // outputs reads WINDOW columns; the first that it needs is the one at LEAD.
  static constexpr int COPY = 16 / int(sizeof(T));
  static constexpr int SHIFT = (COPY - P::padding_w % COPY) % COPY;
  static constexpr int LEAD = SHIFT % VEC;
  static constexpr int WINDOW = round_up(LEAD + (VEC - 1) * P::stride_w + (S - 1) * P::dilation_w + 1, VEC);
  static constexpr int COLUMNS = round_up(SHIFT - LEAD + (TILE_X - VEC) * P::stride_w + WINDOW, COPY);
  static constexpr int ROWS = (TILE_Y - 1) * P::stride_h + (R - 1) * P::dilation_h + 1;
  static constexpr int THREAD_ROWS = (PY - 1) * P::stride_h + (R - 1) * P::dilation_h + 1;

  // With unrolled kernel rows, input row (py, r) was already read for an earlier r by the thread's output row
  // py + REUSE_STEP, REUSE_AFTER kernel rows before.
  static constexpr int COMMON = greatest_divisor(P::stride_h, P::dilation_h);
  static constexpr int REUSE_AFTER = P::stride_h / COMMON, REUSE_STEP = P::dilation_h / COMMON;

  using Shared = Conv2dShared<Conv2dGeometry, C::WEIGHTS_SHARED>;

  static_assert(PX % VEC == 0 && TILE_X % PX == 0 && TILE_Y % PY == 0, "pixels do not divide");
  static_assert(TILE_X * P::stride_w % COPY == 0, "tiles do not begin at a multiple of a copy");
  static_assert(K % 4 == 0 && OC_TILE % K == 0, "channels do not divide");
  static_assert(sizeof(Shared) == C::SHARED_BYTES, "the declared and the real shared memory differ");
  static_assert(THREADS == C::THREADS, "the declared and the real block size differ");
};

}  // namespace coldforge
