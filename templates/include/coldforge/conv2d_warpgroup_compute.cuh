// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: a run of pixels of 64 channels.
#pragma once

#include "coldforge/conv2d_warpgroup_geometry.cuh"

namespace coldforge {

// A lane's channel of the block's: of the two rows of its matrices, which so are neighbours. Then lanes that
// store at once go to different banks where planes of the output are a multiple of 16 bytes.
__device__ __forceinline__ int channel_of(int row) {
  return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 * 2 + row;
}

// A thread's weights: for each pair of units, and for a last single one, whose low halves stand in for a
// second unit. Of a pair the one further back in memory comes second.
template <class G>
struct RunWeights {
  u32 pairs[G::PAIRS + 1][2][4];
  u32 last[2][4];

  static __host__ __device__ constexpr bool swapped(int pair) {
    return G::offset_of(2 * pair) > G::offset_of(2 * pair + 1);
  }
  static __host__ __device__ constexpr int first_of(int pair) { return 2 * pair + (swapped(pair) ? 1 : 0); }
  static __host__ __device__ constexpr int second_of(int pair) { return 2 * pair + (swapped(pair) ? 0 : 1); }

  __device__ __forceinline__ explicit RunWeights(typename G::Shared& shared) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int pair = 0; pair < G::PAIRS; ++pair) {
          pairs[pair][part][row] = word(shared, part, first_of(pair), row);
          pairs[pair][part][2 + row] = word(shared, part, second_of(pair), row);
        }
      }
      if constexpr (G::UNITS % 2 == 1) {
        last[0][row] = last[1][2 + row] = word(shared, 0, G::UNITS - 1, row);
        last[0][2 + row] = 0;
        last[1][row] = word(shared, 1, G::UNITS - 1, row);
      }
    }
  }

 private:
  static __device__ __forceinline__ u32 word(typename G::Shared& shared, int part, int unit, int row) {
    return reinterpret_cast<const u32*>(&shared.weights()[part][unit][channel_of(row)])[threadIdx.x % 4];
  }
};

template <class G>
using RunSums = float[G::RUN / 2];

// Begins all products of the run of pixels from `from` on.
template <class G>
__device__ __forceinline__ void begin_run(RunSums<G>& high, RunSums<G>& cross, const void* operands,
                                          const RunWeights<G>& weights, int from) {
  warpgroup_begin();
#pragma unroll
  for (int pair = 0; pair < G::PAIRS; ++pair) {
    const int first = G::offset_of(weights.first_of(pair)),
              apart = G::offset_of(weights.second_of(pair)) - first;
    const u32 place = static_cast<u32>(from * 16 + first);
    multiply_warpgroup(high, weights.pairs[pair][0], operands, place, apart, pair > 0);
    multiply_warpgroup(cross, weights.pairs[pair][1], operands, place, apart, pair > 0);
    multiply_warpgroup(cross, weights.pairs[pair][0], operands, place + G::PART_BYTES, apart, true);
  }
  if constexpr (G::UNITS % 2 == 1) {
    const u32 place = static_cast<u32>(from * 16 + G::offset_of(G::UNITS - 1));
    multiply_warpgroup(high, weights.last[0], operands, place, G::PART_BYTES, G::PAIRS > 0);
    multiply_warpgroup(cross, weights.last[1], operands, place, G::PART_BYTES, G::PAIRS > 0);
  }
  warpgroup_commit();
}

// The input of plain arithmetic, from global memory; zero outside of the image.
template <class G>
struct PlainInput {
  const float* sample;
  const Conv2dSizes& sizes;
  int iy, ix;  // of the tile's first output

  __device__ __forceinline__ float operator()(int c, int tap, int y, int x) const {
    const int row = iy + y * G::Problem::stride_h + tap / G::S * G::Problem::dilation_h;
    const int column = ix + x * G::Problem::stride_w + tap % G::S * G::Problem::dilation_w;
    if (row < 0 || row >= sizes.H || column < 0 || column >= sizes.W) return 0.0f;
    return load_readonly<1>(sample + (static_cast<i64>(c) * sizes.H + row) * sizes.W + column).at[0];
  }
  __device__ __forceinline__ bool bears(const SplitScale& scale, int y, int x) const {
    bool good = true;
#pragma unroll 2
    for (int term = 0; term < G::C_IN * G::TAPS; ++term)
      good &= scale.bears((*this)(term / G::TAPS, term % G::TAPS, y, x));
    return good;
  }
};

}  // namespace coldforge
