// SPDX-License-Identifier: Apache-2.0
// Direct convolution with FMA units: every output pixel is summed by one thread, in registers.
#pragma once

#include "coldforge/conv2d_store.cuh"

namespace coldforge {

// Sums start at the bias.
template <class G>
__device__ __forceinline__ void start_sums(Conv2dSums<G>& sums, const typename G::Element* bias, int oc) {
#pragma unroll
  for (int k = 0; k < G::K; ++k) {
    float value = 0.0f;
    if constexpr (G::Problem::has_bias) {
      if (G::WHOLE_OC_TILES || oc + k < G::C_OUT) value = to_float(load_readonly<1>(bias + oc + k).at[0]);
    }
#pragma unroll
    for (int py = 0; py < G::PY; ++py) {
#pragma unroll
      for (int px = 0; px < G::PX; ++px) sums[k][py][px].start(value);
    }
  }
}

// A block's whole work. Block b computes output channels b % OC_TILES of pixel tile b / OC_TILES, so that neighbours
// share their input in L2; a persistent one goes on to every (grid / OC_TILES)-th tile after it, with the same output
// channels. The grid is a multiple of OC_TILES, at least one, and without PERSISTENT exactly as many as there are tiles.
// Every thread reaches every barrier: which tiles and steps are left is the same for the whole block.
template <class G, class Epilogue>
__device__ __forceinline__ void conv2d_direct(const typename G::Element* x, const typename G::Element* weight,
                                              const typename G::Element* bias, typename G::Element* y,
                                              const Conv2dSizes& sizes, const Epilogue& epilogue,
                                              typename G::Shared& shared) {
  using Config = typename G::Config;
  constexpr int TAPS = G::R * G::S;
  const Conv2dPlace<G> place;
  const int oc0 = static_cast<int>(blockIdx.x % G::OC_TILES) * G::OC_TILE;
  const u64 stride = gridDim.x / G::OC_TILES;
  u64 index = blockIdx.x / G::OC_TILES;
  const u64 end = G::PERSISTENT ? Conv2dTile<G>::count(sizes) : index + 1;
  int stage = 0;

  if (index >= end) return;
  Conv2dTile<G> tile(index, sizes);
  if constexpr (Config::WEIGHTS_SHARED && G::STEPS == 1) fill_weights<G>(shared, 0, weight, 0, G::C_IN, oc0);
  if constexpr (G::STAGES > 1) {
    fill_stage<G>(shared, 0, x, weight, 0, oc0, tile, sizes);
    cp_async_commit();
  }
#pragma unroll 1
  while (true) {
    const bool more = index + stride < end;
    const Conv2dTile<G> next = more ? Conv2dTile<G>(index + stride, sizes) : tile;
    Conv2dSums<G> sums;
    start_sums<G>(sums, bias, oc0 + place.oc);
#pragma unroll 1
    for (int step = 0; step < G::STEPS; ++step) {
      if constexpr (G::STAGES > 1) {
        cp_async_wait<0>();
        // After this barrier the stage is whole, and nobody uses the other one any more: it is filled for the next
        // step, of this tile or the next, while this one is used.
        __syncthreads();
        if (step + 1 < G::STEPS) {
          fill_stage<G>(shared, stage ^ 1, x, weight, step + 1, oc0, tile, sizes);
        } else if (more) {
          fill_stage<G>(shared, stage ^ 1, x, weight, 0, oc0, next, sizes);
        }
        cp_async_commit();
      } else {
        fill_stage<G>(shared, 0, x, weight, step, oc0, tile, sizes);
        if constexpr (Config::CP_ASYNC) {
          cp_async_commit();
          cp_async_wait<0>();
        }
        __syncthreads();
      }
      const int channels = G::C_IN % G::C_STEP == 0 ? G::C_STEP : min(G::C_STEP, G::C_IN - step * G::C_STEP);
      const typename G::Element* here = weight + static_cast<i64>(oc0) * (G::C_IN * TAPS) + step * (G::C_STEP * TAPS);
      accumulate<G>(sums, Conv2dStage<G>{shared, here, stage, oc0}, channels, place);
      if constexpr (G::STAGES > 1) {
        stage ^= 1;
      } else if constexpr (G::PERSISTENT || G::STEPS > 1) {
        __syncthreads();
      }
    }
    store_sums<G>(sums, y, epilogue, oc0, tile, place, sizes);
    if (!G::PERSISTENT || !more) break;
    tile = next;
    index += stride;
  }
}

}  // namespace coldforge
