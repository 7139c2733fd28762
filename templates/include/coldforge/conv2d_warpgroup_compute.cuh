// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: a run of pixels of 64 channels.
#pragma once

#include "coldforge/conv2d_warpgroup_gather.cuh"

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
  u32 pairs[G::PAIRS + 1][G::PARTS][4];
  u32 last[G::PARTS][4];

  static __host__ __device__ constexpr bool swapped(int pair) {
    return G::offset_of(2 * pair) > G::offset_of(2 * pair + 1);
  }
  static __host__ __device__ constexpr int first_of(int pair) { return 2 * pair + (swapped(pair) ? 1 : 0); }
  static __host__ __device__ constexpr int second_of(int pair) { return 2 * pair + (swapped(pair) ? 0 : 1); }

  __device__ __forceinline__ explicit RunWeights(typename G::Shared& shared) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int part = 0; part < G::PARTS; ++part) {
#pragma unroll
        for (int pair = 0; pair < G::PAIRS; ++pair) {
          pairs[pair][part][row] = word(shared, part, first_of(pair), row);
          pairs[pair][part][2 + row] = word(shared, part, second_of(pair), row);
        }
      }
      if constexpr (G::UNITS % 2 == 1) {
        last[0][row] = word(shared, 0, G::UNITS - 1, row);
        last[0][2 + row] = 0;
        if constexpr (G::PARTS == 2) {
          last[1][row] = word(shared, 1, G::UNITS - 1, row);
          last[1][2 + row] = last[0][row];
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ u32 word(typename G::Shared& shared, int part, int unit, int row) {
    return reinterpret_cast<const u32*>(&shared.weights()[part][unit][channel_of(row)])[threadIdx.x % 4];
  }
};

// Sums of a run as the matrix instructions hold them: of each eight pixels, two of either channel.
template <class G>
struct RunSums {
  float high[G::RUN / 2];
  float cross[G::PARTS == 2 ? G::RUN / 2 : 1];
};

// Begins a product; `add` is known when the loop around it is unrolled.
template <class G>
__device__ __forceinline__ void multiply(float (&sums)[G::RUN / 2], const u32 (&weights)[4],
                                         MatrixDescriptor pixels, bool add) {
  if (add) {
    multiply_warpgroup<true>(sums, weights, pixels);
  } else {
    multiply_warpgroup<false>(sums, weights, pixels);
  }
}

// Begins all products of the run of pixels from `from` on. The cross products are summed apart: the tensor
// cores cut each sum instead of rounding it.
template <class G>
__device__ __forceinline__ void begin_run(RunSums<G>& sums, const void* operands,
                                          const RunWeights<G>& weights, int from) {
  constexpr u32 APART = (G::PARTS - 1) * G::PART_BYTES;
  const MatrixPlace pixels(static_cast<const uint4*>(operands) + from);
  warpgroup_begin();
#pragma unroll
  for (int pair = 0; pair < G::PAIRS; ++pair) {
    const u32 first = G::offset_of(weights.first_of(pair)),
              apart = G::offset_of(weights.second_of(pair)) - first;
    multiply<G>(sums.high, weights.pairs[pair][0], pixels.at(first, apart), pair > 0);
    if constexpr (G::PARTS == 2) {
      multiply<G>(sums.cross, weights.pairs[pair][1], pixels.at(first, apart), pair > 0);
      multiply<G>(sums.cross, weights.pairs[pair][0], pixels.at(first + APART, apart), true);
    }
  }
  if constexpr (G::UNITS % 2 == 1) {
    const u32 first = G::offset_of(G::UNITS - 1);
    multiply<G>(sums.high, weights.last[0], pixels.at(first, APART), G::PAIRS > 0);
    if constexpr (G::PARTS == 2)
      multiply<G>(sums.cross, weights.last[1], pixels.at(first, APART), G::PAIRS > 0);
  }
  warpgroup_commit();
}

}  // namespace coldforge
