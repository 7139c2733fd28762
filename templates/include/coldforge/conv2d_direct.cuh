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

// Makes the stage of step `step` ready for all threads. With two stages it was begun one step ago, and the
// other one, which nobody uses after the barrier, is begun for the step that follows: of this tile, or of
// `next` if there is one.
template <class G>
__device__ __forceinline__ void await_stage(const Conv2dSource<G>& source, int stage, int step,
                                            const Conv2dTile<G>& tile, const Conv2dTile<G>& next, bool more) {
  if constexpr (G::STAGES == 1) {
    source.fill(0, step, tile);
    if constexpr (G::Config::CP_ASYNC) {
      cp_async_commit();
      cp_async_wait<0>();
    }
    __syncthreads();
  } else {
    cp_async_wait<0>();
    __syncthreads();
    if (step + 1 < G::STEPS) {
      source.fill(stage ^ 1, step + 1, tile);
    } else if (more) {
      source.fill(stage ^ 1, 0, next);
    }
    cp_async_commit();
  }
}

// A block's whole work. Block b computes output channels b % OC_TILES of pixel tile b / OC_TILES, so that
// neighbours share their input in L2; a persistent one goes on to every (grid / OC_TILES)-th tile after it,
// with the same output channels. The grid is a multiple of OC_TILES, at least one, and without PERSISTENT
// exactly as many as there are tiles. Every thread reaches every barrier: which tiles and steps are left is
// the same for the whole block.
template <class G, class Epilogue>
__device__ __forceinline__ void conv2d_direct(const typename G::Element* x, const typename G::Element* weight,
                                              const typename G::Element* bias, typename G::Element* y,
                                              const Conv2dSizes& sizes, const Epilogue& epilogue,
                                              typename G::Shared& shared) {
  const Conv2dPlace<G> place;
  const int oc0 = static_cast<int>(blockIdx.x % G::OC_TILES) * G::OC_TILE;
  const u64 stride = gridDim.x / G::OC_TILES;
  u64 index = blockIdx.x / G::OC_TILES;
  const u64 end = G::PERSISTENT ? Conv2dTile<G>::count(sizes) : index + 1;
  if (index >= end) return;

  const Conv2dSource<G> source = {shared, x, weight, sizes, oc0};
  Conv2dTile<G> tile(index, sizes);
  int stage = 0;
  if constexpr (G::Config::WEIGHTS_SHARED && G::STEPS == 1)
    fill_weights<G>(shared, 0, weight, 0, G::C_IN, oc0);
  if constexpr (G::STAGES > 1) {
    source.fill(0, 0, tile);
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
      await_stage<G>(source, stage, step, tile, next, more);
      const i64 first_weight = (static_cast<i64>(oc0) * G::C_IN + step * G::C_STEP) * (G::R * G::S);
      accumulate<G>(sums, Conv2dStage<G>{shared, weight + first_weight, stage, oc0}, source.channels(step),
                    place);
      if constexpr (G::STAGES > 1) stage ^= 1;
      if constexpr (G::STAGES == 1 && (G::PERSISTENT || G::STEPS > 1)) __syncthreads();
    }
    store_sums<G>(sums, y, epilogue, oc0, tile, place, sizes);
    if (!G::PERSISTENT || !more) break;
    tile = next;
    index += stride;
  }
}

}  // namespace coldforge
