// SPDX-License-Identifier: Apache-2.0
// Convolution on tensor cores: a matrix product of pixels by output channels, in which the pixels' windows
// are read in place.
#pragma once

#include "coldforge/conv2d_tensor_compute.cuh"

namespace coldforge {

// Where a tile's outputs go. A thread's neighbouring pixels go in pieces of PIXELS, or else four, where the
// tile's rows follow each other in memory, or end at a multiple of that, and planes begin at one.
template <class G>
struct TileOutput {
  using T = typename G::Element;
  T* origin;  // of the tile's first pixel in the block's first channel
  i64 plane;
  int width, pixels, W_out, channels;
  bool in_wholes, in_fours, whole_rows;

  __device__ __forceinline__ TileOutput(T* y, const Conv2dTensorTile<G>& tile, const Conv2dSizes& sizes,
                                        int oc0)
      : plane(static_cast<i64>(sizes.H_out) * sizes.W_out),
        width(tile.width),
        pixels(tile.pixels),
        W_out(sizes.W_out),
        channels(G::C_OUT - oc0),
        whole_rows(tile.width == sizes.W_out) {
    const i64 offset = static_cast<i64>(tile.oy) * sizes.W_out + tile.ox;
    origin = y + (static_cast<i64>(tile.n) * G::C_OUT + oc0) * plane + offset;
    in_wholes = goes_in<G::PIXELS>(offset);
    in_fours = goes_in<4>(offset);
  }

  // Where a pixel is, from the tile's first in its channel.
  __device__ __forceinline__ i64 place(u32 number, u32 reciprocal) const {
    if (whole_rows) return number;
    const Conv2dPixel pixel(number, static_cast<u32>(width), reciprocal);
    return static_cast<i64>(pixel.row) * W_out + pixel.column;
  }

  // Stores a pass, of which `first` is the thread's first pixel. Everything is computed first, without a
  // branch, so that what the epilogue derives from its scalars is computed once.
  template <class Epilogue>
  __device__ __forceinline__ void store(const PassValues<G>& values, typename G::Shared& shared,
                                        const Epilogue& epilogue, int oc0, int oc, u32 first,
                                        u32 reciprocal) const {
    const int left = pixels - static_cast<int>(first);
    const int channel = oc + static_cast<int>(threadIdx.x) % 4 * 2;
    Results result;
#pragma unroll
    for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int legal = G::WHOLE_OC_TILES ? channel + j * 8 + k : min(channel + j * 8 + k, channels - 1);
#pragma unroll
        for (int i = 0; i < G::PIXELS; ++i)
          result[j][k].at[i] = from_float<T>(epilogue(values[j][k][i], oc0 + legal));
      }
    }
    if constexpr (G::STAGED) {
      if (in_wholes) return store_staged<G::PIXELS>(result, shared, oc, first, reciprocal);
      if (G::PIXELS > 4 && in_fours) return store_staged<4>(result, shared, oc, first, reciprocal);
    }
    T* to = origin + channel * plane;
    if (in_wholes && left >= G::PIXELS)
      return store_pieces<G::PIXELS>(result, to, channel, left, first, reciprocal);
    if (G::PIXELS > 4 && in_fours) store_pieces<4>(result, to, channel, left, first, reciprocal);
#pragma unroll
    for (int i = 0; i < G::PIXELS; ++i) {
      if (i >= left) break;
      if (G::PIXELS > 4 && in_fours && i / 4 < left / 4) continue;
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

 private:
  using Results = Vector<T, G::PIXELS>[G::CHANNEL_MATRICES][2];

  template <int N>
  __device__ __forceinline__ bool goes_in(i64 offset) const {
    return plane % N == 0 && offset % N == 0 && (whole_rows || (W_out % N == 0 && width % N == 0));
  }

  // From registers to the plane at `to`, N neighbours at a time; of fewer than N that are left, none.
  template <int N>
  __device__ __forceinline__ void store_pieces(const Results& result, T* to, int channel, int left, u32 first,
                                               u32 reciprocal) const {
#pragma unroll
    for (int i = 0; i < G::PIXELS; i += N) {
      if (i + N > left) break;
      T* piece = to + place(first + i, reciprocal);
#pragma unroll
      for (int j = 0; j < G::CHANNEL_MATRICES; ++j, piece += 8 * plane) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (G::WHOLE_OC_TILES || channel + j * 8 + k < channels)
            store_vector<N>(piece + k * plane, load_vector<N>(&result[j][k].at[i]));
        }
      }
    }
  }

  // Lanes that a matrix product leaves with neighbouring pixels are no neighbours; stored from where they
  // are, each line of memory would be written in four pieces. So a warp passes its results through shared
  // memory, and stores N pixels a lane.
  template <int N>
  __device__ __forceinline__ void store_staged(const Results& result, typename G::Shared& shared, int oc,
                                               u32 first, u32 reciprocal) const {
    constexpr int LANES = G::PASS / N, AT_ONCE = 32 / LANES;  // of a channel, and channels
    const int lane = static_cast<int>(threadIdx.x) % 32;
    auto& staged = shared.staged[threadIdx.x / 32];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) staged[j * 8 + lane % 4 * 2 + k][lane / 4] = result[j][k];
    }
    __syncwarp();
    const u32 mine = first - lane / 4 * G::PIXELS + lane % LANES * N;
    const int left = pixels - static_cast<int>(mine), channel = oc + lane / LANES;
    T* to = origin + channel * plane + place(left > 0 ? mine : 0, reciprocal);
#pragma unroll
    for (int i = 0; i < G::OC_WARP; i += AT_ONCE, to += AT_ONCE * plane) {
      if (!(G::WHOLE_OC_TILES || channel + i < channels)) break;
      const T* line = &staged[i + lane / LANES][0].at[0];
      const auto piece = load_vector<N>(line + lane % LANES * N);
      if (left >= N) {
        store_vector<N>(to, piece);
      } else {
#pragma unroll
        for (int one = 0; one < N - 1; ++one) {
          if (one < left) to[one] = piece.at[one];
        }
      }
    }
  }
};

// A block at work.
template <class G, class Epilogue>
struct TensorBlock {
  using T = typename G::Element;
  using Weights = WarpWeights<G, G::WEIGHTS_SHARED>;
  const T* x;
  const T* weight;
  T* y;
  const Conv2dSizes& sizes;
  const Epilogue& epilogue;
  typename G::Shared& shared;
  int oc0;             // the block's first channel
  int oc;              // the warp's, from there
  u32 first;           // the warp's first pixel in a tile
  bool exact_weights;  // whether they bear their scales

  __device__ __forceinline__ void fetch(u64 index, int step) const {
    stage_tile<G>(shared, x, Conv2dTensorTile<G>(index, sizes), step * G::C_STEP, sizes);
  }

  // Waits for what was fetched and makes operands of it. Begins and ends with a barrier.
  __device__ __forceinline__ SplitScale prepare() const {
    cp_async_wait<0>();
    __syncthreads();
    SplitScale scale;
    if constexpr (G::AS_THEY_ARE) {
      gather_tile<G>(shared);
    } else {
      scale = tile_scale<G>(shared);
      split_tile<G>(shared, scale.scale);
    }
    __syncthreads();
    return scale;
  }

  // Whether no pass of a step needs plain arithmetic, and with it the input as it was.
  __device__ __forceinline__ bool all_fast(const SplitScale& scale) const {
    return G::AS_THEY_ARE || (exact_weights && scale.exact);
  }

  // One step of one pass of pixels from `from` on.
  __device__ __forceinline__ void compute(PassValues<G>& values, const Weights& weights,
                                          const SplitScale& scale, const Conv2dTensorTile<G>& tile,
                                          u32 reciprocal, u32 from, int step) const {
    bool fast = all_fast(scale);
    if (!G::AS_THEY_ARE && !fast && exact_weights && scale.usable) {
      const u32 number = min(from + threadIdx.x % 32, static_cast<u32>(tile.pixels) - 1);
      const Conv2dPixel pixel(number, static_cast<u32>(tile.width), reciprocal);
      fast = __all_sync(0xffffffffu, bears_scale<G>(shared, pixel, scale));
    }
    if (fast) {
      const PassPlace<G> place(from, tile, reciprocal);
      multiply_pass<G>(values, shared, weights, place, scale.unscale, oc, step * G::STEP_GROUPS * G::TAPS);
    } else {
      multiply_plainly<G>(values, shared, weight, oc0, oc, step * G::C_STEP, from + own(), tile, reciprocal);
    }
  }
  static __device__ __forceinline__ u32 own() { return threadIdx.x % 32 / 4 * G::PIXELS; }

  // All input channels at once: pass by pass.
  __device__ __forceinline__ void whole_tile(u64 index, u64 next, u64 end, const Weights& weights) const {
    const Conv2dTensorTile<G> tile(index, sizes);
    const SplitScale scale = prepare();
    if (G::PERSISTENT && next < end && all_fast(scale)) fetch(next, 0);
    const TileOutput<G> output(y, tile, sizes, oc0);
    const u32 reciprocal = Conv2dPixel::reciprocal_of(tile.width);
#pragma unroll 1
    for (u32 from = first; from < static_cast<u32>(tile.pixels); from += G::PIXEL_WARPS * G::PASS) {
      PassValues<G> values;
      compute(values, weights, scale, tile, reciprocal, from, 0);
      output.store(values, shared, epilogue, oc0, oc, from + own(), reciprocal);
    }
    if (G::PERSISTENT && next < end && !all_fast(scale)) {
      __syncthreads();
      fetch(next, 0);
    }
    cp_async_commit();
  }

  // Some input channels after the others: all of the warp's passes in each step.
  __device__ __forceinline__ void tile_in_steps(u64 index, u64 next, u64 end, const Weights& weights) const {
    const Conv2dTensorTile<G> tile(index, sizes);
    const TileOutput<G> output(y, tile, sizes, oc0);
    const u32 reciprocal = Conv2dPixel::reciprocal_of(tile.width);
    PassValues<G> values[G::HELD];
#pragma unroll
    for (int i = 0; i < G::HELD; ++i) start_values<G>(values[i], shared, oc);
#pragma unroll 1
    for (int step = 0; step < G::STEPS; ++step) {
      const SplitScale scale = prepare();
      const bool last = step + 1 == G::STEPS, more = !last || (G::PERSISTENT && next < end);
      if (more && all_fast(scale)) fetch(last ? next : index, last ? 0 : step + 1);
#pragma unroll
      for (int i = 0; i < G::HELD; ++i) {
        const u32 from = first + i * (G::PIXEL_WARPS * G::PASS);
        if (from < static_cast<u32>(tile.pixels))
          compute(values[i], weights, scale, tile, reciprocal, from, step);
      }
      if (more && !all_fast(scale)) {
        __syncthreads();
        fetch(last ? next : index, last ? 0 : step + 1);
      }
      cp_async_commit();
    }
#pragma unroll
    for (int i = 0; i < G::HELD; ++i) {
      const u32 from = first + i * (G::PIXEL_WARPS * G::PASS);
      if (from < static_cast<u32>(tile.pixels))
        output.store(values[i], shared, epilogue, oc0, oc, from + own(), reciprocal);
    }
  }
};

// A block's whole work. Block b computes output channels b % OC_TILES of tile b / OC_TILES, so that
// neighbours share their input in L2; a persistent one goes on to every (grid / OC_TILES)-th tile after it.
// The grid is a multiple of OC_TILES, at least one, and without PERSISTENT exactly as many as there are
// tiles. Every thread reaches every barrier: which tiles are left is the same for the whole block.
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
  const int warp = static_cast<int>(threadIdx.x) / 32;
  TensorBlock<G, Epilogue> block = {x,
                                    weight,
                                    y,
                                    sizes,
                                    epilogue,
                                    shared,
                                    oc0,
                                    warp % G::CHANNEL_WARPS * G::OC_WARP,
                                    static_cast<u32>(warp / G::CHANNEL_WARPS * G::PASS),
                                    true};
  block.fetch(index, 0);
  cp_async_commit();
  const bool mine = split_weights<G>(shared, weight, bias, oc0);
  block.exact_weights = __syncthreads_and(mine) != 0;
  const WarpWeights<G, G::WEIGHTS_SHARED> weights(&shared.weights(), block.oc);
#pragma unroll 1
  for (; index < end; index += stride) {
    if constexpr (G::STEPS == 1) {
      block.whole_tile(index, index + stride, end, weights);
    } else {
      block.tile_in_steps(index, index + stride, end, weights);
    }
  }
}

}  // namespace coldforge
