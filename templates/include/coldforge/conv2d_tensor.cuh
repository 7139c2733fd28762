// SPDX-License-Identifier: Apache-2.0
// Convolution on tensor cores: a matrix product of pixels by output channels, in which the pixels' windows are
// read in place.
#pragma once

#include "coldforge/conv2d_tensor_compute.cuh"

namespace coldforge {

template <bool STREAMING, class T>
__device__ __forceinline__ void store_four(T* to, const Vector<T, 4>& four) {
  if constexpr (STREAMING) {
    using Word = typename WordOf<sizeof(T) * 4>::type;
    union {
      Word word;
      Vector<T, 4> vector;
    } both;
    both.vector = four;
    __stcs(reinterpret_cast<Word*>(to), both.word);
  } else {
    store_vector<4>(to, four);
  }
}

// Where a tile's outputs go. A thread's four neighbouring pixels go in one piece where the tile's rows follow
// each other in memory, or end at a multiple of four.
template <class G>
struct TileOutput {
  using T = typename G::Element;
  T* origin;  // of the tile's first pixel in the block's first channel
  i64 plane;
  int width, pixels, W_out, channels;
  bool in_fours, whole_rows;

  __device__ __forceinline__ TileOutput(T* y, const Conv2dTensorTile<G>& tile, const Conv2dSizes& sizes, int oc0)
      : plane(static_cast<i64>(sizes.H_out) * sizes.W_out),
        width(tile.width),
        pixels(tile.pixels),
        W_out(sizes.W_out),
        channels(G::C_OUT - oc0),
        whole_rows(tile.width == sizes.W_out) {
    const i64 offset = static_cast<i64>(tile.oy) * sizes.W_out + tile.ox;
    origin = y + (static_cast<i64>(tile.n) * G::C_OUT + oc0) * plane + offset;
    in_fours = plane % 4 == 0 && offset % 4 == 0 && (whole_rows || (W_out % 4 == 0 && width % 4 == 0));
  }

  // Where a pixel is, from the tile's first in its channel.
  __device__ __forceinline__ i64 place(u32 number, u32 reciprocal) const {
    if (whole_rows) return number;
    const Conv2dPixel pixel(number, static_cast<u32>(width), reciprocal);
    return static_cast<i64>(pixel.row) * W_out + pixel.column;
  }

  // Everything is computed first, without a branch, so that what the epilogue derives from its scalars is
  // computed once.
  template <class Epilogue>
  __device__ __forceinline__ void store(const PassValues<G>& values, const Epilogue& epilogue, int oc0, int oc,
                                        u32 first, u32 reciprocal) const {
    const int left = pixels - static_cast<int>(first);
    const int channel = oc + static_cast<int>(threadIdx.x) % 4 * 2;
    Vector<T, 4> result[G::CHANNEL_MATRICES][2];
#pragma unroll
    for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int legal = G::WHOLE_OC_TILES ? channel + j * 8 + k : min(channel + j * 8 + k, channels - 1);
#pragma unroll
        for (int i = 0; i < 4; ++i) result[j][k].at[i] = from_float<T>(epilogue(values[j][k][i], oc0 + legal));
      }
    }
    T* to = origin + channel * plane;
    if (in_fours && left >= 4) {
      to += place(first, reciprocal);
#pragma unroll
      for (int j = 0; j < G::CHANNEL_MATRICES; ++j, to += 8 * plane) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (G::WHOLE_OC_TILES || channel + j * 8 + k < channels)
            store_four<G::Config::STREAMING>(to + k * plane, result[j][k]);
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= left) break;
      T* one = to + place(first + i, reciprocal);
#pragma unroll
      for (int j = 0; j < G::CHANNEL_MATRICES; ++j, one += 8 * plane) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (G::WHOLE_OC_TILES || channel + j * 8 + k < channels) one[k * plane] = result[j][k].at[i];
        }
      }
    }
  }
};

// A block's whole work. Block b computes output channels b % OC_TILES of tile b / OC_TILES, so that neighbours
// share their input in L2; a persistent one goes on to every (grid / OC_TILES)-th tile after it. The grid is
// a multiple of OC_TILES, at least one, and without PERSISTENT exactly as many as there are tiles. Every
// thread reaches every barrier: which tiles are left is the same for the whole block.
template <class G, class Epilogue>
__device__ __forceinline__ void conv2d_tensor(const typename G::Element* x, const typename G::Element* weight,
                                              const typename G::Element* bias, typename G::Element* y,
                                              const Conv2dSizes& sizes, const Epilogue& epilogue,
                                              typename G::Shared& shared) {
  const int oc0 = static_cast<int>(blockIdx.x % G::OC_TILES) * G::OC_TILE;
  const u64 stride = gridDim.x / G::OC_TILES;
  u64 index = blockIdx.x / G::OC_TILES;
  const u64 end = G::PERSISTENT ? Conv2dTensorTile<G>::count(sizes) : index + 1;
  if (index >= end) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int oc = warp % G::CHANNEL_WARPS * G::OC_WARP;

  stage_tile<G>(shared, x, Conv2dTensorTile<G>(index, sizes), sizes);
  cp_async_commit();
  const bool mine = split_weights<G>(shared, weight, bias, oc0);
  const bool exact_weights = __syncthreads_and(mine) != 0;
  const WarpWeights<G, G::WEIGHTS_SHARED> weights(&shared.weights(), oc);

#pragma unroll 1
  while (true) {
    const Conv2dTensorTile<G> tile(index, sizes);
    cp_async_wait<0>();
    __syncthreads();
    const SplitScale scale(tile_range<G>(shared));
    split_tile<G>(shared, scale.scale);
    __syncthreads();
    const bool usable = exact_weights && scale.usable, all = exact_weights && scale.exact;
    const bool more = index + stride < end;
    // Only plain arithmetic still needs the tile as it was.
    if (G::PERSISTENT && more && all) stage_tile<G>(shared, x, Conv2dTensorTile<G>(index + stride, sizes), sizes);

    const TileOutput<G> output(y, tile, sizes, oc0);
    const u32 reciprocal = Conv2dPixel::reciprocal_of(tile.width);
    const u32 pixels = static_cast<u32>(tile.pixels);
#pragma unroll 1
    for (u32 first = warp / G::CHANNEL_WARPS * G::PASS; first < pixels; first += G::PIXEL_WARPS * G::PASS) {
      bool fast = all;
      if (!all && usable) {
        const Conv2dPixel pixel(min(first + lane, pixels - 1), static_cast<u32>(tile.width), reciprocal);
        fast = __all_sync(0xffffffffu, bears_scale<G>(shared, pixel, scale));
      }
      const u32 own = first + lane / 4 * 4;
      PassValues<G> values;
      if (fast) {
        const PassPlace<G> place(first, tile, reciprocal);
        multiply_pass<G>(values, shared, weights, place, scale.unscale, oc);
      } else {
        multiply_plainly<G>(values, shared, weight, oc0, oc, own, tile, reciprocal);
      }
      output.store(values, epilogue, oc0, oc, own, reciprocal);
    }
    if (!G::PERSISTENT || !more) break;
    index += stride;
    if (!all) {
      __syncthreads();
      stage_tile<G>(shared, x, Conv2dTensorTile<G>(index, sizes), sizes);
    }
    cp_async_commit();
  }
}

}  // namespace coldforge
