// SPDX-License-Identifier: Apache-2.0
// Convolution on tensor cores: weights as operands.
#pragma once

#include "coldforge/conv2d_tensor_stage.cuh"

namespace coldforge {

// A lane's share of a channel's weights: CHUNK of those 32 apart.
template <class G>
struct ChannelWeights {
  static constexpr int COUNT = G::C_IN * G::TAPS, CHUNK = (COUNT + 31) / 32 < 8 ? (COUNT + 31) / 32 : 8;
  static constexpr int CHUNKS = (COUNT + 32 * CHUNK - 1) / (32 * CHUNK);
  float value[CHUNK];

  // Those behind the last one are zero, and `none` has none.
  __device__ __forceinline__ void load(const typename G::Element* channel, int chunk, bool none) {
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
      const int index = index_of(chunk, i);
      value[i] = none || index >= COUNT ? 0.0f : to_float(load_readonly<1>(channel + index).at[0]);
    }
  }
  __device__ __forceinline__ void see(MagnitudeRange& range) const {
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) range.see(value[i]);
  }
  // Each goes to its unit: input channels are 16-bit numbers next to each other.
  __device__ __forceinline__ void split_into(typename G::Shared& shared, int oc, int chunk,
                                             float scale) const {
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
      const int index = index_of(chunk, i), c = index / G::TAPS;
      if (index >= COUNT) break;
      u32 words[G::PARTS];
      if constexpr (G::AS_THEY_ARE) {
        const auto element = from_float<typename G::Element>(value[i]);
        words[0] = reinterpret_cast<const unsigned short&>(element);
      } else {
        split<G::PARTS>(words, value[i] * scale, 0.0f);
      }
#pragma unroll
      for (int part = 0; part < G::PARTS; ++part) {
        uint4* unit = &shared.weights()[part][c / 8 * G::TAPS + G::unit_of(index % G::TAPS)][oc];
        reinterpret_cast<unsigned short*>(unit)[c % 8] = static_cast<unsigned short>(words[part]);
      }
    }
  }

 private:
  static __device__ __forceinline__ int index_of(int chunk, int i) {
    return (chunk * CHUNK + i) * 32 + static_cast<int>(threadIdx.x) % 32;
  }
};

// Input channels that only fill up the last unit weigh nothing. Needs a barrier behind it.
template <class G>
__device__ __forceinline__ void clear_padding(typename G::Shared& shared) {
  constexpr int PADDED = G::C_GROUPS * 8 - G::C_IN;
  for (int i = static_cast<int>(threadIdx.x); i < PADDED * G::TAPS * G::OC_TILE; i += G::THREADS) {
    const int oc = i % G::OC_TILE, tap = i / G::OC_TILE % G::TAPS, c = G::C_IN + i / (G::OC_TILE * G::TAPS);
#pragma unroll
    for (int part = 0; part < G::PARTS; ++part)
      reinterpret_cast<unsigned short*>(&shared.weights()[part][c / 8 * G::TAPS + tap][oc])[c % 8] = 0;
  }
}

// Splits the weights of the block's output channels, a warp a few channels after others, all of whose weights
// it asks for at once, and sets `unscale` and `bias`. Returns whether every weight that this warp met bears
// its channel's scale. Needs a barrier behind it.
template <class G>
__device__ __forceinline__ bool split_weights(typename G::Shared& shared, const typename G::Element* weight,
                                              const typename G::Element* bias, int oc0) {
  using Channel = ChannelWeights<G>;
  constexpr int BATCH = Channel::CHUNKS > 1 || Channel::CHUNK > 4 ? 1 : 4;
  bool exact = true;
  clear_padding<G>(shared);
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) / 32; first < G::OC_TILE; first += BATCH * G::WARPS) {
    Channel channels[BATCH];
    const typename G::Element* from[BATCH];
    bool none[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      const int oc = first + k * G::WARPS;
      none[k] = oc >= G::OC_TILE || oc0 + oc >= G::C_OUT;
      from[k] = weight + static_cast<i64>(none[k] ? 0 : oc0 + oc) * Channel::COUNT;
      channels[k].load(from[k], 0, none[k]);
    }
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      const int oc = first + k * G::WARPS;
      MagnitudeRange range;
      channels[k].see(range);
#pragma unroll 1
      for (int chunk = 1; chunk < Channel::CHUNKS; ++chunk) {
        Channel more;
        more.load(from[k], chunk, none[k]);
        more.see(range);
      }
      range.of_warp();
      const SplitScale scale = G::AS_THEY_ARE ? SplitScale() : SplitScale(range, range.finite());
      exact = exact && scale.exact;
      if (oc >= G::OC_TILE) continue;
      channels[k].split_into(shared, oc, 0, scale.scale);
#pragma unroll 1
      for (int chunk = 1; chunk < Channel::CHUNKS; ++chunk) {
        Channel more;
        more.load(from[k], chunk, none[k]);
        more.split_into(shared, oc, chunk, scale.scale);
      }
      if (threadIdx.x % 32 == 0) {
        shared.unscale[oc] = scale.unscale;
        shared.bias[oc] = 0.0f;
        if constexpr (G::Problem::has_bias) {
          if (!none[k]) shared.bias[oc] = to_float(load_readonly<1>(bias + oc0 + oc).at[0]);
        }
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
