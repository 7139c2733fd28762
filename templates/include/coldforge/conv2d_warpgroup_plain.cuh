// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: pixels whose input does not bear the tile's scale, in plain
// arithmetic.
#pragma once

#include "coldforge/conv2d_warpgroup_stream.cuh"

namespace coldforge {

// Computes pixels of a tile from global memory.
template <class G>
struct PlainPixels {
  using T = typename G::Element;
  static constexpr int TERMS = G::C_IN * G::TAPS;
  // As many weights are loaded at once as are aligned in every channel.
  static constexpr int TOGETHER = TERMS % 4 == 0 ? 4 : TERMS % 2 == 0 ? 2 : 1;

  const T* sample;
  const T* weight;  // of the block's first channel
  const Conv2dSizes& sizes;
  int iy, ix;  // of the tile's first output
  int channels;

  __device__ __forceinline__ PlainPixels(const T* x, const T* weight, const Conv2dTensorTile<G>& tile,
                                         int oc0, const Conv2dSizes& sizes)
      : sample(x + static_cast<i64>(tile.n) * G::C_IN * sizes.H * sizes.W),
        weight(weight + static_cast<i64>(oc0) * TERMS),
        sizes(sizes),
        iy(tile.oy * G::Problem::stride_h - G::Problem::padding_h),
        ix(tile.ox * G::Problem::stride_w - G::Problem::padding_w),
        channels(min(G::OC_TILE, G::C_OUT - oc0)) {}

  // Sums of eight channels from `channel` on.
  __device__ __forceinline__ void sum(float (&sums)[8], int channel, int y, int x) const {
    const T* from[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      from[k] = weight + min(channel + k, channels - 1) * TERMS;
      sums[k] = 0.0f;
    }
#pragma unroll 1
    for (int term = 0; term < TERMS; term += TOGETHER) {
      float value[TOGETHER];
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) value[i] = input((term + i) / G::TAPS, (term + i) % G::TAPS, y, x);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const auto some = load_readonly<TOGETHER>(from[k] + term);
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) sums[k] = fmaf(value[i], to_float(some.at[i]), sums[k]);
      }
    }
  }

 private:
  // Zero outside of the image.
  __device__ __forceinline__ float input(int c, int tap, int y, int x) const {
    const int row = iy + y * G::Problem::stride_h + tap / G::S * G::Problem::dilation_h;
    const int column = ix + x * G::Problem::stride_w + tap % G::S * G::Problem::dilation_w;
    if (row < 0 || row >= sizes.H || column < 0 || column >= sizes.W) return 0.0f;
    return to_float(
        load_readonly<1>(sample + (static_cast<i64>(c) * sizes.H + row) * sizes.W + column).at[0]);
  }
};

// Whether the tile's pixel meets a value that does not bear the scale.
template <class G>
__device__ __forceinline__ bool meets_unfit(const OperandStage<G>& stage, int y, int x) {
  u32 found = 0;
#pragma unroll 1
  for (int group = 0; group < G::C_GROUPS; ++group) {
#pragma unroll
    for (int tap = 0; tap < G::TAPS; ++tap) {
      const int row = y * G::Problem::stride_h + tap / G::S * G::Problem::dilation_h;
      const int column = x * G::Problem::stride_w + G::SHIFT + tap % G::S * G::Problem::dilation_w;
      found |= stage.unfit[group][row][column / 32] >> (column % 32);
    }
  }
  return found % 2 != 0;
}

}  // namespace coldforge
