// SPDX-License-Identifier: Apache-2.0
// Depthwise convolution: a group is one input channel. There is next to no arithmetic: memory decides.
#pragma once

#include "coldforge/conv2d_depthwise_march.cuh"

namespace coldforge {

// One call's tensors and a block's part in it.
template <class G, class Epilogue>
struct DepthwiseBlock {
  using Element = typename G::Element;
  const Element* x;
  const Element* weight;
  const Element* bias;
  Element* y;
  const DepthwiseSizes& sizes;
  const Epilogue& epilogue;
  const DepthwiseTile<G> tile;
  const DepthwisePlace<G> place;

  __device__ __forceinline__ bool has_plane() const { return place.plane < tile.planes; }

  // The channel of the output that is number `m` of those of the block's input plane `plane`.
  __device__ __forceinline__ int channel(int plane, int m) const {
    return static_cast<int>((tile.plane + plane) % G::PLANES_IN) * G::MULTIPLIER + m;
  }

  // The input row and column that the first tap of an output row and column meets.
  static __device__ __forceinline__ u32 input_row(int oy) {
    return static_cast<u32>(oy) * G::Problem::stride_h - G::Problem::padding_h;
  }
  static __device__ __forceinline__ u32 input_column(int ox) {
    return static_cast<u32>(ox) * G::Problem::stride_w - G::Problem::padding_w;
  }
  __device__ __forceinline__ const Element* input(int plane) const {
    return x + (tile.plane + plane) * (static_cast<i64>(sizes.H) * sizes.W);
  }

  __device__ __forceinline__ DepthwiseImage<G> image() const {
    return {input(place.plane), sizes.H, sizes.W, input_row(tile.oy + place.y),
            input_column(tile.ox + place.x) - G::LEAD};
  }

  // Copies the input of the tile to shared memory, in the background.
  __device__ __forceinline__ void fill(DepthwiseStage<G>& stage) const {
    const u32 iy = input_row(tile.oy), ix = input_column(tile.ox) - G::SHIFT;
    if (sizes.W % G::COPY == 0) {
      fill_stage<G, G::COPY>(stage, input(0), tile.planes, iy, ix, sizes);
    } else if (sizes.W % 2 == 0) {
      fill_stage<G, 2>(stage, input(0), tile.planes, iy, ix, sizes);
    } else {
      fill_stage<G, 1>(stage, input(0), tile.planes, iy, ix, sizes);
    }
    cp_async_commit();
  }

  // Puts the taps of number `m` of each of the block's planes side by side.
  __device__ __forceinline__ void fill_taps(float* taps, int m) const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < tile.planes * G::TAPS; i += G::THREADS) {
      const int plane = i / G::TAPS, tap = i - plane * G::TAPS;
      const i64 first = static_cast<i64>(channel(plane, m)) * G::TAPS;
      taps[i] = to_float(load_readonly<1>(weight + first + tap).at[0]);
    }
  }

  __device__ __forceinline__ DepthwiseOutput<G, Epilogue> output(int m) const {
    const int oy = tile.oy + place.y, ox = tile.ox + place.x;
    const i64 plane = (tile.plane + place.plane) * G::MULTIPLIER + m;
    Element* corner = y + (plane * sizes.H_out + oy) * sizes.W_out + ox;
    return {epilogue, corner, channel(place.plane, m), sizes.H_out - oy, sizes.W_out - ox, sizes.W_out};
  }

  // Computes the thread's pixels of number `m` of its plane.
  __device__ __forceinline__ void compute(const DepthwiseStage<G>& stage, const float* taps, int m) const {
    const int k = channel(place.plane, m);
    const float start = G::Problem::has_bias ? to_float(load_readonly<1>(bias + k).at[0]) : 0.0f;
    const Element* own = weight + static_cast<i64>(k) * G::TAPS;
    if constexpr (!G::SLIDING) {
      gather<G>(image(), own, start, output(m));
    } else {
      const DepthwiseWeights<G, G::HELD> weights(own, taps + place.plane * G::TAPS);
      if constexpr (G::STAGED) {
        const int row = place.y * G::Problem::stride_h, column = place.x * G::Problem::stride_w;
        march<G>(DepthwiseStaged<G>{stage, place.plane, row, column}, weights, start, output(m));
      } else {
        march<G>(image(), weights, start, output(m));
      }
    }
  }

  // Every thread reaches every barrier.
  __device__ __forceinline__ void run(unsigned char* pool) const {
    auto& stage = *reinterpret_cast<DepthwiseStage<G>*>(pool);
    auto* taps = reinterpret_cast<float*>(pool + (G::STAGED ? sizeof(stage) : 0));
    if constexpr (G::STAGED) fill(stage);
#pragma unroll 1
    for (int m = 0; m < G::MULTIPLIER; ++m) {
      if constexpr (G::TAPS_SHARED) {
        if (m > 0) __syncthreads();
        fill_taps(taps, m);
      }
      if constexpr (G::STAGED) cp_async_wait<0>();
      if constexpr (G::STAGED || G::TAPS_SHARED) {
        if (G::TAPS_SHARED || m == 0) __syncthreads();
      }
      if (has_plane()) compute(stage, taps, m);
    }
  }
};

// A block's whole work.
template <class G, class Epilogue>
__device__ __forceinline__ void conv2d_depthwise(const typename G::Element* x,
                                                 const typename G::Element* weight,
                                                 const typename G::Element* bias, typename G::Element* y,
                                                 const DepthwiseSizes& sizes, const Epilogue& epilogue,
                                                 unsigned char* pool) {
  const DepthwiseBlock<G, Epilogue> block = {
      x, weight, bias, y, sizes, epilogue, DepthwiseTile<G>(sizes), DepthwisePlace<G>()};
  block.run(pool);
}

}  // namespace coldforge
