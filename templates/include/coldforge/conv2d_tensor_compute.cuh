// SPDX-License-Identifier: Apache-2.0
// Convolution on tensor cores: the products of one pass, some pixels of a warp's channels.
//
// The high halves' products are summed apart from the two cross products: tensor cores cut each sum instead
// of rounding it, so the fewer additions the long sum takes the better, and the cross products carry 2^11.
// For the same reason sums of many terms are moved to ordinary registers before they grow long.
#pragma once

#include "coldforge/conv2d_tensor_weights.cuh"

namespace coldforge {

// Sums as the matrix instructions hold them.
template <class G>
using MatrixSums = float[G::PIXEL_MATRICES][G::CHANNEL_MATRICES][4];

// A thread's results, bias included: of channels 8 * j + 2 * (lane % 4) + k, the pixels from
// PIXELS * (lane / 4) on.
template <class G>
using PassValues = float[G::CHANNEL_MATRICES][2][G::PIXELS];

constexpr int UNITS_IN_A_SUM = 20;

// The products of operands as they are in shared memory.
template <class G, class... Words>
__device__ __forceinline__ void multiply_matrices(float (&sum)[4], Words... words) {
  if constexpr (G::BFLOAT) {
    multiply_bfloats(sum, words...);
  } else {
    multiply_halves(sum, words...);
  }
}

template <class G>
struct PassSums {
  static constexpr bool LONG = G::STEP_GROUPS * G::TAPS > UNITS_IN_A_SUM;
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

// A lane's row of each matrix of pixels: for each kernel column its place in a part's plane, in bytes. Lanes
// 0 to 15 give the rows of the first unit of two, the others those of the second.
template <class G>
struct PassPlace {
  u32 offset[G::PIXEL_MATRICES][G::S];
  bool second;

  __device__ __forceinline__ PassPlace(u32 first, const Conv2dTensorTile<G>& tile, u32 reciprocal) {
    const u32 lane = threadIdx.x % 32, pixels = static_cast<u32>(tile.pixels);
    second = lane >= 16;
#pragma unroll
    for (u32 m = 0; m < G::PIXEL_MATRICES; ++m) {
      const u32 number = min(first + lane % 8 * G::PIXELS + m * 2 + lane / 8 % 2, pixels - 1);
      const Conv2dPixel pixel(number, static_cast<u32>(tile.width), reciprocal);
      const u32 line = pixel.row * (G::Problem::stride_h * G::COLUMNS);
#pragma unroll
      for (int s = 0; s < G::S; ++s) {
        const u32 column = pixel.column * G::Problem::stride_w + G::SHIFT + s * G::Problem::dilation_w;
        offset[m][s] = (line + G::mixed(column)) * 16;
      }
    }
  }
  // Of `unit` and the next, counted from channel group `group` of those in shared memory.
  __device__ __forceinline__ u32 of_two(int m, int group, int unit) const {
    const u32 here = static_cast<u32>(line_of(group, unit)),
              there = static_cast<u32>(line_of(group, unit + 1));
    const int s = G::column_of(unit), next = G::column_of(unit + 1);
    if (s == next) return offset[m][s] + (second ? there : here);
    return second ? offset[m][next] + there : offset[m][s] + here;
  }
  // Of one unit the high halves, and the low ones in the others' stead.
  __device__ __forceinline__ u32 of_one(int m, int group, int unit) const {
    const u32 here = static_cast<u32>(line_of(group, unit));
    return offset[m][G::column_of(unit)] + (second ? here + (G::PARTS - 1) * PART : here);
  }

  static constexpr u32 PART = G::STEP_GROUPS * G::ROWS * G::COLUMNS * 16;

 private:
  static __device__ __forceinline__ int line_of(int group, int unit) {
    return ((group + unit / G::TAPS) * G::ROWS + G::row_of(unit) * G::Problem::dilation_h) *
           (G::COLUMNS * 16);
  }
};

// Adds the products of two units, of each of whose parts four registers hold the pixels.
template <class G, class Weights>
__device__ __forceinline__ void add_two_units(PassSums<G>& sums, const void* base, const PassPlace<G>& place,
                                              const Weights& weights, int first_unit, int group, int unit) {
  u32 pixels[G::PIXEL_MATRICES][G::PARTS][4];
  StepWeights<G, 2> w;
#pragma unroll
  for (int m = 0; m < G::PIXEL_MATRICES; ++m) {
#pragma unroll
    for (int part = 0; part < G::PARTS; ++part)
      load_matrices(pixels[m][part], base, place.of_two(m, group, unit) + part * PassPlace<G>::PART);
  }
  weights.template get<2>(w, first_unit + group * G::TAPS + unit);
  const auto multiply = [&](MatrixSums<G>& to, int of_pixels, int of_weights) {
#pragma unroll
    for (int m = 0; m < G::PIXEL_MATRICES; ++m) {
      const auto& x = pixels[m][of_pixels];
#pragma unroll
      for (int j = 0; j < G::CHANNEL_MATRICES; ++j)
        multiply_matrices<G>(to[m][j], x[0], x[1], x[2], x[3], w[of_weights][j][0], w[of_weights][j][1]);
    }
  };
  multiply(sums.high, 0, 0);
  if constexpr (G::PARTS == 2) {
    multiply(sums.cross, 0, 1);
    multiply(sums.cross, 1, 0);
  }
}

// Of one unit; two registers hold its high halves, two the low ones.
template <class G, class Weights>
__device__ __forceinline__ void add_one_unit(PassSums<G>& sums, const void* base, const PassPlace<G>& place,
                                             const Weights& weights, int first_unit, int group, int unit) {
  u32 pixels[G::PIXEL_MATRICES][4];
  StepWeights<G, 1> w;
#pragma unroll
  for (int m = 0; m < G::PIXEL_MATRICES; ++m) load_matrices(pixels[m], base, place.of_one(m, group, unit));
  weights.template get<1>(w, first_unit + group * G::TAPS + unit);
  const auto multiply = [&](MatrixSums<G>& to, int of_pixels, int of_weights) {
#pragma unroll
    for (int m = 0; m < G::PIXEL_MATRICES; ++m) {
#pragma unroll
      for (int j = 0; j < G::CHANNEL_MATRICES; ++j)
        multiply_matrices<G>(to[m][j], pixels[m][2 * of_pixels], pixels[m][2 * of_pixels + 1],
                             w[of_weights][j][0]);
    }
  };
  multiply(sums.high, 0, 0);
  if constexpr (G::PARTS == 2) {
    multiply(sums.cross, 0, 1);
    multiply(sums.cross, 1, 0);
  }
}

// Groups of eight channels whose units are taken in one turn: an even number of units where it can be.
template <class G>
constexpr int GROUPS_A_TURN =
    G::WEIGHTS_SHARED ? (G::TAPS % 2 == 1 && G::TAPS < 8 && G::STEP_GROUPS % 2 == 0 ? 2 : 1) : G::STEP_GROUPS;

// Adds a step's products of a pass, on tensor cores, to `values`, or in the only step to the bias. `inverse`
// undoes the pixels' scale; `first_unit` is the first of the step's weights.
template <class G, class Weights>
__device__ __forceinline__ void multiply_pass(PassValues<G>& values, typename G::Shared& shared,
                                              const Weights& weights, const PassPlace<G>& place,
                                              float inverse, int oc, int first_unit) {
  constexpr int TURN = GROUPS_A_TURN<G>, UNITS = TURN * G::TAPS;
  PassSums<G> sums;
#pragma unroll 1
  for (int group = 0; group < G::STEP_GROUPS; group += TURN) {
#pragma unroll
    for (int unit = 0; unit + 1 < UNITS; unit += 2) {
      add_two_units<G>(sums, shared.operands, place, weights, first_unit, group, unit);
      if (unit % UNITS_IN_A_SUM == UNITS_IN_A_SUM - 2) sums.move();
    }
    if constexpr (UNITS % 2 == 1)
      add_one_unit<G>(sums, shared.operands, place, weights, first_unit, group, UNITS - 1);
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
      for (int i = 0; i < G::PIXELS; ++i) {
        const float before = G::STEPS == 1 ? bias.at[k] : values[j][k][i];
        const float sum = sums.result(i / 2, j, i % 2 * 2 + k);
        values[j][k][i] = G::AS_THEY_ARE ? sum + before : fmaf(sum, unscale.at[k] * inverse, before);
      }
    }
  }
}

// Results before the first of several steps.
template <class G>
__device__ __forceinline__ void start_values(PassValues<G>& values, const typename G::Shared& shared,
                                             int oc) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int i = 0; i < G::PIXELS; ++i) values[j][k][i] = shared.bias[oc + j * 8 + 2 * t + k];
    }
  }
}

// Whether all input of a pixel, of this step, bears the tile's scale.
template <class G>
__device__ __forceinline__ bool bears_scale(const typename G::Shared& shared, const Conv2dPixel& pixel,
                                            const SplitScale& scale) {
  bool good = true;
#pragma unroll 1
  for (int c = 0; c < G::C_STEP; ++c) {
#pragma unroll 1
    for (int tap = 0; tap < G::TAPS; ++tap) {
      const u32 row = pixel.row * G::Problem::stride_h + tap / G::S * G::Problem::dilation_h;
      const u32 column = pixel.column * G::Problem::stride_w + G::SHIFT + tap % G::S * G::Problem::dilation_w;
      good = good && scale.bears(to_float(shared.raw[c][row][column]));
    }
  }
  return good;
}

// The same in plain arithmetic, from input channel c0. `first` is the number of the thread's first pixel.
template <class G>
__device__ __forceinline__ void multiply_plainly(PassValues<G>& values, const typename G::Shared& shared,
                                                 const typename G::Element* weight, int oc0, int oc, int c0,
                                                 u32 first, const Conv2dTensorTile<G>& tile, u32 reciprocal) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  u32 row[G::PIXELS], column[G::PIXELS];
#pragma unroll
  for (int i = 0; i < G::PIXELS; ++i) {
    const u32 number = min(first + i, static_cast<u32>(tile.pixels) - 1);
    const Conv2dPixel pixel(number, static_cast<u32>(tile.width), reciprocal);
    row[i] = pixel.row * G::Problem::stride_h;
    column[i] = pixel.column * G::Problem::stride_w + G::SHIFT;
  }
  PassValues<G> sums = {};
#pragma unroll 1
  for (int term = 0; term < min(G::C_STEP, G::C_IN - c0) * G::TAPS; ++term) {
    const int c = term / G::TAPS, tap = term % G::TAPS;
    float x[G::PIXELS];
#pragma unroll
    for (int i = 0; i < G::PIXELS; ++i) {
      x[i] = to_float(shared.raw[c][row[i] + tap / G::S * G::Problem::dilation_h]
                                [column[i] + tap % G::S * G::Problem::dilation_w]);
    }
#pragma unroll
    for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int channel = oc0 + oc + j * 8 + 2 * t + k,
                  legal = G::WHOLE_OC_TILES ? channel : min(channel, G::C_OUT - 1);
        const float w = to_float(
            load_readonly<1>(weight + static_cast<i64>(legal) * (G::C_IN * G::TAPS) + c0 * G::TAPS + term)
                .at[0]);
#pragma unroll
        for (int i = 0; i < G::PIXELS; ++i) sums[j][k][i] = fmaf(x[i], w, sums[j][k][i]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < G::CHANNEL_MATRICES; ++j) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int i = 0; i < G::PIXELS; ++i) {
        const float before = G::STEPS == 1 ? shared.bias[oc + j * 8 + 2 * t + k] : values[j][k][i];
        values[j][k][i] = before + sums[j][k][i];
      }
    }
  }
}

}  // namespace coldforge
