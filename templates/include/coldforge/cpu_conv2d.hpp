// SPDX-License-Identifier: Apache-2.0
// Direct 2-D convolution on a CPU. A block of OC channels by PX pixels of a row accumulates in vector
// registers; each input vector that is loaded serves all channels of the block, each weight all its pixels.
//
// P holds the problem's constants (C_in, C_out, R, S, stride_h, ...), C the config's (TILE_X, PX, ...).
#pragma once

#include "coldforge/cpu_product_sum.hpp"
#include "coldforge/cpu_window.hpp"

namespace coldforge {
namespace {

template <class P, class C, class Args, class Epilogue>
struct Conv2d {
  using Acc = typename Select<C::ACC_FP64, double, float>::type;
  using Weight = typename Select<C::PACKED, Acc, float>::type;
  using Staged = StagedWindow<P, C, Acc>;

  // VEC lanes, or what the level this is compiled for has: a config tuned at one level is built for all.
  static constexpr int LANES = smaller(C::VEC, NATIVE_VECTOR_BYTES / int(sizeof(Acc)));
  using Sum = typename Select<C::ACC_KAHAN, CompensatedProductSum<LANES>, PlainSum<Acc, LANES>>::type;
  static constexpr int VECTORS = C::PX / LANES;
  static constexpr int BLOCK = C::OC_PER_THREAD;
  static constexpr int TAPS = P::R * P::S;
  static constexpr int TERMS = P::C_in * TAPS;
  static_assert(C::PX % LANES == 0, "a register block is whole vectors");
  static_assert(C::TILE_X >= C::PX && C::OC_TILE >= BLOCK, "a register block fits the tile");
  static_assert(P::groups == 1, "every output channel reads every input channel");

  // --- weights: [C_out][C_in][R][S] as they come, or block by block [C_in][R][S][channels of the block] ---

  // A tile of channels is cut in blocks of BLOCK from its start; what is left over is a smaller block.
  static constexpr bool HAS_FULL = P::C_out >= BLOCK;
  static constexpr int TILE_TAIL = P::C_out >= C::OC_TILE ? C::OC_TILE % BLOCK : 0;
  static constexpr int LAST_TAIL = P::C_out % C::OC_TILE % BLOCK;
  static constexpr int block_size(int k, int k_end) { return smaller(BLOCK, k_end - k); }

  // In both orders the block that starts at channel k starts at element k * TERMS.
  static void pack(const float* weight, Weight* packed) {
    for (int k0 = 0; k0 < P::C_out; k0 += C::OC_TILE) {
      const int k_end = smaller(k0 + C::OC_TILE, P::C_out);
      for (int k = k0; k < k_end; k += BLOCK) {
        const int size = block_size(k, k_end);
        for (int o = 0; o < size; ++o)
          for (int i = 0; i < TERMS; ++i)
            packed[int64_t(k) * TERMS + i * size + o] = weight[int64_t(k + o) * TERMS + i];
      }
    }
  }

  // --- one register block: OC channels from k on, PX pixels of a row from (y, x) of the tile on ---

  // Writes whole blocks: channel o, pixel x to out[o * out_plane + x].
  template <int OC, class Window>
  static COLDFORGE_INLINE void block(const Window window, int y, int x, const Weight* weight,
                                     const float* bias, int k, float* out, int64_t out_plane,
                                     const Epilogue& epilogue) {
    Sum sum[OC][VECTORS];
#pragma GCC unroll 16
    for (int o = 0; o < OC; ++o) {
      const Acc start = P::has_bias ? Acc(bias[k + o]) : Acc(0);
#pragma GCC unroll 8
      for (int i = 0; i < VECTORS; ++i) sum[o][i].start(start);
    }
    repeat<P::C_in, false>([&](int c) COLDFORGE_INLINED {
      repeat<P::R, C::UNROLL_ROWS>([&](auto r) COLDFORGE_INLINED {
        const typename Window::Element* const row = window.at(c, y, r) + x;
        repeat<P::S, C::UNROLL_TAPS>([&](auto s) COLDFORGE_INLINED {
          const auto* const first = row + Window::tap(s);
          Vector<Acc, LANES> in[VECTORS];
#pragma GCC unroll 8
          for (int i = 0; i < VECTORS; ++i) in[i] = load<Acc, LANES>(first + i * LANES);
          const int term = (c * P::R + r) * P::S + s;
#pragma GCC unroll 16
          for (int o = 0; o < OC; ++o) {
            const Weight w = C::PACKED ? weight[term * OC + o] : weight[o * TERMS + term];
            const Vector<Acc, LANES> factor = broadcast<Acc, LANES>(Acc(w));
#pragma GCC unroll 8
            for (int i = 0; i < VECTORS; ++i) sum[o][i].add_product(factor, in[i]);
          }
        });
      });
    });
    // No loops: around another loop they would be unrolled too late for `sum` to stay in registers.
    unroll<OC>([&](auto o) COLDFORGE_INLINED {
      unroll<VECTORS>([&](auto i) COLDFORGE_INLINED {
        alignas(64) float piece[LANES];
        store<float, LANES, Acc>(piece, sum[o][i].result());
        // Unrolled before it is vectorised, this loop would stay scalar.
#pragma GCC unroll 1
        for (int lane = 0; lane < LANES; ++lane) piece[lane] = epilogue(piece[lane], k + o);
        // As a vector: a memcpy was seen to go through general registers.
        store<float, LANES, float>(out + o * out_plane + i * LANES, load<float, LANES>(piece));
      });
    });
  }

  // The block of `size` channels, which is BLOCK or one of the two tails.
  template <class... Arguments>
  static COLDFORGE_INLINE void block_of(int size, const Arguments&... arguments) {
    if constexpr (HAS_FULL)
      if (size == BLOCK) return block<BLOCK>(arguments...);
    if constexpr (TILE_TAIL > 0)
      if (size == TILE_TAIL) return block<TILE_TAIL>(arguments...);
    if constexpr (LAST_TAIL > 0 && LAST_TAIL != TILE_TAIL) block<LAST_TAIL>(arguments...);
  }

  // --- one tile: rows x width pixels of channels [k0, k_end) ---

  struct Tile {
    int64_t y0, x0;
    int rows, width, k0, k_end;
  };

  template <class Window>
  static COLDFORGE_INLINE void tile(const Window window, const Tile& t, const Args& args,
                                    const Weight* weight, float* y, const Epilogue& epilogue) {
    const int64_t plane = args.H_out * args.W_out;
    // Only a tile narrower than a block needs somewhere else to write whole blocks to.
    const bool narrow = t.width < C::PX;
    float whole[BLOCK * C::PX];
    const auto compute = [&](int k, int row, int x) COLDFORGE_INLINED {
      const int size = block_size(k, t.k_end);
      float* const out = y + k * plane + (t.y0 + row) * args.W_out + t.x0;
      // The last block of a row is moved back to end with it: some pixels are computed twice, none is cut.
      x = narrow ? 0 : smaller(x, t.width - C::PX);
      block_of(size, window, row, x, weight + int64_t(k) * TERMS, args.bias, k, narrow ? whole : out + x,
               narrow ? C::PX : plane, epilogue);
      if (narrow)
        for (int o = 0; o < size; ++o)
          for (int i = 0; i < t.width; ++i) out[o * plane + i] = whole[o * C::PX + i];
    };
    if constexpr (C::CHANNELS_OUTSIDE) {
      for (int k = t.k0; k < t.k_end; k += BLOCK)
        for (int row = 0; row < t.rows; ++row)
          for (int x = 0; x < t.width; x += C::PX) compute(k, row, x);
    } else {
      for (int row = 0; row < t.rows; ++row)
        for (int x = 0; x < t.width; x += C::PX)
          for (int k = t.k0; k < t.k_end; k += BLOCK) compute(k, row, x);
    }
  }

  // --- the work units [begin, end) ---

  static void run(int64_t begin, int64_t end, const Args& args) {
    const Epilogue epilogue(args);
    alignas(64) Acc staged[Staged::ELEMENTS];
    alignas(64) Weight packed[C::PACKED ? P::C_out * TERMS : 1];
    const Weight* weight = packed;
    if constexpr (C::PACKED) {
      pack(args.weight, packed);
    } else {
      weight = args.weight;
    }
    // Columns are shared out evenly: 126 by tiles of 64 are 63 and 63.
    const int64_t columns = ceil_div<int64_t>(args.W_out, C::TILE_X);
    const int64_t width = ceil_div<int64_t>(args.W_out, columns);
    const int64_t rows = ceil_div<int64_t>(args.H_out, C::TILE_Y);
    constexpr int channel_tiles = ceil_div<int>(P::C_out, C::OC_TILE);
    for (int64_t unit = begin; unit < end; ++unit) {
      int64_t rest = unit / channel_tiles;
      Tile t;
      t.k0 = int(unit % channel_tiles) * C::OC_TILE;
      t.k_end = smaller(t.k0 + C::OC_TILE, P::C_out);
      t.x0 = rest % columns * width;
      t.width = int(smaller<int64_t>(width, args.W_out - t.x0));
      rest /= columns;
      t.y0 = rest % rows * C::TILE_Y;
      t.rows = int(smaller<int64_t>(C::TILE_Y, args.H_out - t.y0));
      const int64_t n = rest / rows;

      const Image<float> image = {args.x + n * P::C_in * args.H * args.W, args.H, args.W};
      float* const y = args.y + n * P::C_out * args.H_out * args.W_out;
      if constexpr (!C::STAGED) {
        if (t.width >= C::PX) {
          tile(ImageWindow<P, float>(image, t.y0, t.x0), t, args, weight, y, epilogue);
          continue;
        }
      }
      Staged::fill(staged, image, t.y0, t.x0, t.rows);
      tile(Staged{staged}, t, args, weight, y, epilogue);
    }
  }
};

}  // namespace
}  // namespace coldforge
