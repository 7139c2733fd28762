// SPDX-License-Identifier: Apache-2.0
// Convolution on tensor cores: weights as operands.
#pragma once

#include "coldforge/conv2d_tensor_stage.cuh"

namespace coldforge {

// Splits the weights of the block's output channels, a warp one channel after another, and sets `unscale` and
// `bias`. Returns whether every weight that this warp met bears its channel's scale. Needs a barrier behind it.
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
      const int pair = i / G::TAPS, tap = i % G::TAPS, c = 2 * pair;
      const float low = inside && c < G::C_IN ? to_float(load_readonly<1>(from + c * G::TAPS + tap).at[0]) : 0.0f;
      const float high =
          inside && c + 1 < G::C_IN ? to_float(load_readonly<1>(from + (c + 1) * G::TAPS + tap).at[0]) : 0.0f;
      u32 words[G::PARTS];
      split<G::PARTS>(words, low * scale.scale, high * scale.scale);
#pragma unroll
      for (int part = 0; part < G::PARTS; ++part) {
        u32* unit = reinterpret_cast<u32*>(&shared.weights()[part][pair / 4 * G::TAPS + tap][oc]);
        unit[pair % 4] = words[part];
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

// The weights of one unit for a warp's channels: of each part and eight channels, one register.
template <class G>
using UnitWeights = u32[G::PARTS][G::CHANNEL_MATRICES];

template <class G>
__device__ __forceinline__ void load_unit(UnitWeights<G>& unit_weights, const void* weights, int unit, int oc) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int MATRICES = G::PARTS * G::CHANNEL_MATRICES;
#pragma unroll
  for (int first = 0; first < MATRICES; first += 4) {
    // Four matrices are of one part, or, of two each.
    constexpr int PER_PART = G::CHANNEL_MATRICES < 4 ? G::CHANNEL_MATRICES : 4;
    const int own = lane / 8, part = first / G::CHANNEL_MATRICES + own / PER_PART;
    const int channel = oc + (first % G::CHANNEL_MATRICES + own % PER_PART) * 8 + lane % 8;
    u32 four[4];
    load_matrices(four, weights, static_cast<u32>(((part * G::UNITS + unit) * G::OC_TILE + channel) * 16));
#pragma unroll
    for (int j = 0; j < 4; ++j)
      unit_weights[(first + j) / G::CHANNEL_MATRICES][(first + j) % G::CHANNEL_MATRICES] = four[j];
  }
}

// Where a warp has its weights: in registers, all of them.
template <class G, bool SHARED>
struct WarpWeights {
  UnitWeights<G> held[G::UNITS];

  __device__ __forceinline__ WarpWeights(const void* weights, int oc) {
#pragma unroll
    for (int unit = 0; unit < G::UNITS; ++unit) load_unit<G>(held[unit], weights, unit, oc);
  }
  __device__ __forceinline__ void get(UnitWeights<G>& unit_weights, int unit) const {
#pragma unroll
    for (int part = 0; part < G::PARTS; ++part) {
#pragma unroll
      for (int j = 0; j < G::CHANNEL_MATRICES; ++j) unit_weights[part][j] = held[unit][part][j];
    }
  }
};

// Or in shared memory.
template <class G>
struct WarpWeights<G, true> {
  const void* weights;
  int oc;

  __device__ __forceinline__ WarpWeights(const void* weights, int oc) : weights(weights), oc(oc) {}
  __device__ __forceinline__ void get(UnitWeights<G>& unit_weights, int unit) const {
    load_unit<G>(unit_weights, weights, unit, oc);
  }
};

}  // namespace coldforge
