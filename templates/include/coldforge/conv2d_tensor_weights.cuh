// SPDX-License-Identifier: Apache-2.0
// Convolution on tensor cores: weights as operands.
#pragma once

#include "coldforge/conv2d_tensor_stage.cuh"

namespace coldforge {

// Splits the weights of the block's output channels, a warp one channel after another, and sets `unscale` and
// `bias`. Returns whether every weight that this warp met bears its channel's scale. Needs a barrier behind
// it.
template <class G>
__device__ __forceinline__ bool split_weights(typename G::Shared& shared, const typename G::Element* weight,
                                              const typename G::Element* bias, int oc0) {
  constexpr int COUNT = G::C_IN * G::TAPS;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool exact = true;
#pragma unroll 1
  for (int oc = static_cast<int>(threadIdx.x) / 32; oc < G::OC_TILE; oc += G::WARPS) {
    const bool inside = G::WHOLE_OC_TILES || oc0 + oc < G::C_OUT;
    const typename G::Element* from = weight + static_cast<i64>(inside ? oc0 + oc : 0) * COUNT;
    MagnitudeRange range;
#pragma unroll 1
    for (int i = lane; i < COUNT; i += 32) range.see(to_float(load_readonly<1>(from + i).at[0]));
    range.of_warp();
    const SplitScale scale(range);
    exact = exact && scale.exact;
#pragma unroll 1
    for (int i = lane; i < G::C_GROUPS * G::TAPS * 4; i += 32) {
      const int pair = i / G::TAPS, tap = i % G::TAPS, c = 2 * pair,
                unit = pair / 4 * G::TAPS + G::unit_of(tap);
      const float low =
          inside && c < G::C_IN ? to_float(load_readonly<1>(from + c * G::TAPS + tap).at[0]) : 0.0f;
      const float high =
          inside && c + 1 < G::C_IN ? to_float(load_readonly<1>(from + (c + 1) * G::TAPS + tap).at[0]) : 0.0f;
      u32 words[G::PARTS];
      split<G::PARTS>(words, low * scale.scale, high * scale.scale);
#pragma unroll
      for (int part = 0; part < G::PARTS; ++part) {
        reinterpret_cast<u32*>(&shared.weights()[part][unit][oc])[pair % 4] = words[part];
      }
    }
    if (lane == 0) {
      shared.unscale[oc] = scale.unscale;
      shared.bias[oc] = 0.0f;
      if constexpr (G::Problem::has_bias) {
        if (inside) shared.bias[oc] = to_float(load_readonly<1>(bias + oc0 + oc).at[0]);
      }
    }
  }
  return exact;
}

// The weights of one or two units for a warp's channels, as the matrix instructions take them.
template <class G, int COUNT>
using StepWeights = u32[G::PARTS][G::CHANNEL_MATRICES][COUNT];

template <class G, int COUNT>
__device__ __forceinline__ void load_step(StepWeights<G, COUNT>& to, const void* weights, int unit, int oc) {
  constexpr int MATRICES = G::PARTS * G::CHANNEL_MATRICES * COUNT;
  const int own = static_cast<int>(threadIdx.x) % 32 / 8, row = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
  for (int first = 0; first < MATRICES; first += 4) {
    // This lane's matrix of the four, and where the four go.
    const int matrix = first + own, which = matrix % COUNT, j = matrix / COUNT % G::CHANNEL_MATRICES,
              part = matrix / COUNT / G::CHANNEL_MATRICES;
    const int place = (part * G::UNITS + unit + which) * G::OC_TILE + oc + j * 8 + row;
    u32 four[4];
    load_matrices(four, weights, static_cast<u32>(place * 16));
#pragma unroll
    for (int i = first; i < first + 4; ++i)
      to[i / COUNT / G::CHANNEL_MATRICES][i / COUNT % G::CHANNEL_MATRICES][i % COUNT] = four[i - first];
  }
}

// Where a warp has its weights: in registers, all of them.
template <class G, bool SHARED>
struct WarpWeights {
  StepWeights<G, 2> pairs[G::UNITS / 2 + 1];
  StepWeights<G, 1> last;

  __device__ __forceinline__ WarpWeights(const void* weights, int oc) {
#pragma unroll
    for (int unit = 0; unit + 1 < G::UNITS; unit += 2) load_step<G, 2>(pairs[unit / 2], weights, unit, oc);
    if constexpr (G::UNITS % 2 == 1) load_step<G, 1>(last, weights, G::UNITS - 1, oc);
  }
  template <int COUNT>
  __device__ __forceinline__ void get(StepWeights<G, COUNT>& to, int unit) const {
#pragma unroll
    for (int part = 0; part < G::PARTS; ++part) {
#pragma unroll
      for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
        if constexpr (COUNT == 2) {
          to[part][j][0] = pairs[unit / 2][part][j][0];
          to[part][j][1] = pairs[unit / 2][part][j][1];
        } else {
          to[part][j][0] = last[part][j][0];
        }
      }
    }
  }
};

// Or in shared memory.
template <class G>
struct WarpWeights<G, true> {
  const void* weights;
  int oc;

  __device__ __forceinline__ WarpWeights(const void* weights, int oc) : weights(weights), oc(oc) {}
  template <int COUNT>
  __device__ __forceinline__ void get(StepWeights<G, COUNT>& to, int unit) const {
    load_step<G, COUNT>(to, weights, unit, oc);
  }
};

}  // namespace coldforge
