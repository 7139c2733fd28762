// SPDX-License-Identifier: Apache-2.0
// Convolution on tensor cores: the products of one pass, 32 pixels of a warp's channels.
//
// The high halves' products are summed apart from the two cross products: tensor cores cut each sum instead of
// rounding it, so the fewer additions the long sum takes the better, and the cross products carry 2^11. For the
// same reason sums of many terms are moved to ordinary registers before they grow long.
#pragma once

#include "coldforge/conv2d_tensor_weights.cuh"

namespace coldforge {

// Sums as the matrix instructions hold them.
template <class G>
using MatrixSums = float[G::PIXEL_MATRICES][G::CHANNEL_MATRICES][4];

// A thread's results, bias included: of channels 8 * j + 2 * (lane % 4) + k, the pixels 4 * (lane / 4) and three
// more.
template <class G>
using PassValues = float[G::CHANNEL_MATRICES][2][4];

constexpr int UNITS_IN_A_SUM = 20;

template <class G>
struct PassSums {
  static constexpr bool LONG = G::UNITS > UNITS_IN_A_SUM;
  MatrixSums<G> high, cross, total;

  __device__ __forceinline__ PassSums() {
#pragma unroll
    for (int m = 0; m < G::PIXEL_MATRICES; ++m) {
#pragma unroll
      for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) high[m][j][i] = cross[m][j][i] = total[m][j][i] = 0.0f;
      }
    }
  }
  __device__ __forceinline__ void move() {
    if constexpr (LONG) {
#pragma unroll
      for (int m = 0; m < G::PIXEL_MATRICES; ++m) {
#pragma unroll
        for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            total[m][j][i] += high[m][j][i];
            high[m][j][i] = 0.0f;
          }
        }
      }
    }
  }
  // Scaled products still.
  __device__ __forceinline__ float result(int m, int j, int i) const {
    const float sum = LONG ? total[m][j][i] : high[m][j][i];
    return G::PARTS == 2 ? fmaf(cross[m][j][i], 1.0f / G::LOW_SCALE, sum) : sum;
  }
};

// A lane's row of the matrices of a pass, for each kernel column: its offset in a part's plane of pixels.
template <class G>
struct PassPlace {
  u32 offset[G::S];

  __device__ __forceinline__ explicit PassPlace(const Conv2dPixel& pixel) {
    const u32 line = pixel.row * (G::Problem::stride_h * G::COLUMNS);
#pragma unroll
    for (int s = 0; s < G::S; ++s) {
      const u32 column = pixel.column * G::Problem::stride_w + G::SHIFT + s * G::Problem::dilation_w;
      offset[s] = (line + G::mixed(column)) * 16;
    }
  }
};

// The pixels of one unit: of each part, the upper and lower eight rows of each matrix.
template <class G>
using UnitPixels = u32[G::PARTS][2 * G::PIXEL_MATRICES];

template <class G>
__device__ __forceinline__ void load_pixels(UnitPixels<G>& pixels, const void* base, const PassPlace<G>& place,
                                            int group, int tap) {
  const int r = tap / G::S, s = tap % G::S;
#pragma unroll
  for (int part = 0; part < G::PARTS; ++part) {
    const int line = (part * G::C_GROUPS + group) * G::ROWS + r * G::Problem::dilation_h;
    load_matrices(pixels[part], base, place.offset[s] + static_cast<u32>(line * G::COLUMNS * 16));
  }
}

// Adds the products of one part of the pixels and one of the weights; two units, or one.
template <class G, int COUNT>
__device__ __forceinline__ void multiply_units(MatrixSums<G>& sums, const UnitPixels<G> (&pixels)[2], int of_pixels,
                                               const UnitWeights<G> (&weights)[2], int of_weights) {
#pragma unroll
  for (int m = 0; m < G::PIXEL_MATRICES; ++m) {
    const auto& first = pixels[0][of_pixels];
    const auto& second = pixels[COUNT - 1][of_pixels];
#pragma unroll
    for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
      if constexpr (COUNT == 2) {
        multiply_halves(sums[m][j], first[2 * m], first[2 * m + 1], second[2 * m], second[2 * m + 1],
                        weights[0][of_weights][j], weights[1][of_weights][j]);
      } else {
        multiply_halves(sums[m][j], first[2 * m], first[2 * m + 1], weights[0][of_weights][j]);
      }
    }
  }
}

template <class G, int COUNT, class Weights>
__device__ __forceinline__ void add_units(PassSums<G>& sums, const void* base, const PassPlace<G>& place,
                                          const Weights& weights, int group, int tap) {
  UnitPixels<G> pixels[2];
  UnitWeights<G> unit_weights[2];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    load_pixels<G>(pixels[i], base, place, group + (tap + i) / G::TAPS, (tap + i) % G::TAPS);
    weights.get(unit_weights[i], group * G::TAPS + tap + i);
  }
  multiply_units<G, COUNT>(sums.high, pixels, 0, unit_weights, 0);
  if constexpr (G::PARTS == 2) {
    multiply_units<G, COUNT>(sums.cross, pixels, 0, unit_weights, G::PARTS - 1);
    multiply_units<G, COUNT>(sums.cross, pixels, G::PARTS - 1, unit_weights, 0);
  }
}

// Groups of eight channels whose units are taken in one turn: an even number of units where it can be.
template <class G>
constexpr int GROUPS_A_TURN = G::WEIGHTS_SHARED ? (G::TAPS % 2 == 1 && G::TAPS < 8 && G::C_GROUPS % 2 == 0 ? 2 : 1)
                                                : G::C_GROUPS;

// All products of a pass on tensor cores. `inverse` undoes the pixels' scale.
template <class G, class Weights>
__device__ __forceinline__ void multiply_pass(PassValues<G>& values, typename G::Shared& shared,
                                              const Weights& weights, const Conv2dPixel& pixel, float inverse,
                                              int oc) {
  constexpr int TURN = GROUPS_A_TURN<G>, UNITS = TURN * G::TAPS;
  const PassPlace<G> place(pixel);
  PassSums<G> sums;
#pragma unroll 1
  for (int group = 0; group < G::C_GROUPS; group += TURN) {
#pragma unroll
    for (int unit = 0; unit + 1 < UNITS; unit += 2) {
      add_units<G, 2>(sums, shared.operands, place, weights, group, unit);
      if (unit % UNITS_IN_A_SUM == UNITS_IN_A_SUM - 2) sums.move();
    }
    if constexpr (UNITS % 2 == 1) add_units<G, 1>(sums, shared.operands, place, weights, group, UNITS - 1);
    sums.move();
  }
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
    const auto unscale = load_vector<2>(&shared.unscale[oc + j * 8 + 2 * t]);
    const auto bias = load_vector<2>(&shared.bias[oc + j * 8 + 2 * t]);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        values[j][k][i] = fmaf(sums.result(i / 2, j, i % 2 * 2 + k), unscale.at[k] * inverse, bias.at[k]);
    }
  }
}

// Whether all input of a pixel bears the tile's scale.
template <class G>
__device__ __forceinline__ bool bears_scale(const typename G::Shared& shared, const Conv2dPixel& pixel,
                                            const SplitScale& scale) {
  bool good = true;
#pragma unroll 1
  for (int c = 0; c < G::C_IN; ++c) {
#pragma unroll 1
    for (int tap = 0; tap < G::TAPS; ++tap) {
      const u32 row = pixel.row * G::Problem::stride_h + tap / G::S * G::Problem::dilation_h;
      const u32 column = pixel.column * G::Problem::stride_w + G::SHIFT + tap % G::S * G::Problem::dilation_w;
      good = good && scale.bears(to_float(shared.raw[c][row][column]));
    }
  }
  return good;
}

// The same in plain arithmetic. `first` is the number of the thread's first pixel.
template <class G>
__device__ __forceinline__ void multiply_plainly(PassValues<G>& values, const typename G::Shared& shared,
                                                 const typename G::Element* weight, int oc0, int oc, u32 first,
                                                 const Conv2dTensorTile<G>& tile, u32 reciprocal) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  u32 row[4], column[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32 number = min(first + i, static_cast<u32>(tile.pixels) - 1);
    const Conv2dPixel pixel(number, static_cast<u32>(tile.width), reciprocal);
    row[i] = pixel.row * G::Problem::stride_h;
    column[i] = pixel.column * G::Problem::stride_w + G::SHIFT;
  }
#pragma unroll
  for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[j][k][i] = 0.0f;
    }
  }
#pragma unroll 1
  for (int term = 0; term < G::C_IN * G::TAPS; ++term) {
    const int c = term / G::TAPS, tap = term % G::TAPS;
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = to_float(shared.raw[c][row[i] + tap / G::S * G::Problem::dilation_h]
                                [column[i] + tap % G::S * G::Problem::dilation_w]);
    }
#pragma unroll
    for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int channel = oc0 + oc + j * 8 + 2 * t + k, legal = G::WHOLE_OC_TILES ? channel : min(channel, G::C_OUT - 1);
        const float w =
            to_float(load_readonly<1>(weight + static_cast<i64>(legal) * (G::C_IN * G::TAPS) + term).at[0]);
#pragma unroll
        for (int i = 0; i < 4; ++i) values[j][k][i] = fmaf(x[i], w, values[j][k][i]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[j][k][i] += shared.bias[oc + j * 8 + 2 * t + k];
    }
  }
}

}  // namespace coldforge
