// SPDX-License-Identifier: Apache-2.0
// Convolution on tensor cores: from global memory to operands of the tensor cores.
//
// A float x is split: with s the power of two that puts the tile's largest magnitude at 2^14 and h the half
// nearest to x * s, l is the half nearest to (x * s - h) * 2^11. Then h + l * 2^-11 is x * s but for 2^-22 of
// it, for every x down to 2^-28 of the largest. Weights alike, output channel by output channel. A pixel that
// meets a smaller value than that (but zero), an infinity or a NaN is left to plain arithmetic.
//
// 16-bit floats need none of this: tensor cores multiply them as they are, infinities and NaN too.
#pragma once

#include "coldforge/conv2d_tensor_geometry.cuh"

namespace coldforge {

// Magnitudes from which a half and what is left of it are both exact enough.
constexpr float SMALLEST_SCALED = 0x1p-14f;
// Scales beyond 2^60 could not be undone in one multiplication.
constexpr u32 FIRST_SCALE = 127 - 60, LAST_SCALE = 127 + 60;

__device__ __forceinline__ u32 magnitude_bits(float value) { return __float_as_uint(value) & 0x7fffffffu; }

// The largest magnitude and the least but zero of what it saw, as bits; `least` is one less, so that zero is
// the largest of all. Infinities and NaN are larger than any number.
struct MagnitudeRange {
  u32 largest = 0, least = 0xffffffffu;

  __device__ __forceinline__ void see(float value) {
    const u32 bits = magnitude_bits(value);
    largest = max(largest, bits);
    least = min(least, bits - 1u);
  }
  __device__ __forceinline__ void see_finite(float value) {
    if (magnitude_bits(value) < 0x7f800000u) see(value);
  }
  __device__ __forceinline__ bool finite() const { return largest < 0x7f800000u; }
  __device__ __forceinline__ void of_warp() {
    largest = __reduce_max_sync(0xffffffffu, largest);
    least = __reduce_min_sync(0xffffffffu, least);
  }
};

// The power of two for a range, and whether all of the range bears it.
struct SplitScale {
  float scale, unscale;
  bool usable;  // any value can be split at all
  bool exact;   // all of them can

  // Of operands that are as they are.
  __device__ __forceinline__ SplitScale() : scale(1.0f), unscale(1.0f), usable(true), exact(true) {}
  // `range` is of the finite values; `finite`: there are no others.
  __device__ __forceinline__ SplitScale(const MagnitudeRange& range, bool finite) {
    const u32 wanted = 127 + 14 + 127 - (range.largest >> 23);
    usable = (wanted >= FIRST_SCALE && wanted <= LAST_SCALE) || range.largest == 0;
    const u32 field = usable && range.largest != 0 ? wanted : 127u;
    scale = __uint_as_float(field << 23);
    unscale = __uint_as_float((254u - field) << 23);
    const float least = __uint_as_float(range.least + 1u) * scale;
    exact = finite && usable && (range.least == 0xffffffffu || least >= SMALLEST_SCALED);
  }
  __device__ __forceinline__ bool bears(float value) const {
    const u32 bits = magnitude_bits(value);
    return bits == 0 || (bits < 0x7f800000u && __uint_as_float(bits) * scale >= SMALLEST_SCALED);
  }
};

// Splits two scaled values into PARTS pairs of halves.
template <int PARTS>
__device__ __forceinline__ void split(u32 (&pair)[PARTS], float low, float high) {
  pair[0] = pack_halves(low, high);
  if constexpr (PARTS == 2) {
    pair[1] = pack_halves((low - low_half(pair[0])) * 2048.0f, (high - high_half(pair[0])) * 2048.0f);
  }
}

// Copies N neighbouring elements in the background (or at once, where they are fewer than 4 bytes), or writes
// zeros where `inside` is false; `from` may then be anything readable.
template <int N, class T>
__device__ __forceinline__ void stage_elements(T* to, const T* from, bool inside) {
  if constexpr (sizeof(T) * N >= 4) {
    cp_async<sizeof(T) * N>(to, from, inside);
  } else {
    *to = inside ? load_readonly<1>(from).at[0] : T(0.0f);
  }
}

// Begins to fill `raw` with the tile's input channels from c0; outside the image and behind the last channel
// it is zero. Every row of the image begins at a multiple of N elements.
template <class G, int N>
__device__ __forceinline__ void stage_tile(typename G::Shared& shared, const typename G::Element* x,
                                           const Conv2dTensorTile<G>& tile, int c0,
                                           const Conv2dSizes& sizes) {
  constexpr int PER_ROW = G::COLUMNS / N;
  const u64 plane = static_cast<u64>(sizes.H) * static_cast<u32>(sizes.W);
  const typename G::Element* sample = x + (static_cast<u64>(tile.n) * G::C_IN + c0) * plane;
#pragma unroll 2
  for (u32 i = threadIdx.x; i < G::C_STEP * G::ROWS * PER_ROW; i += G::STAGERS) {
    const u32 column = i % PER_ROW * N, line = i / PER_ROW, row = line % G::ROWS, c = line / G::ROWS;
    const u32 iy = tile.iy + row, ix = tile.ix + column;
    const bool inside = iy < static_cast<u32>(sizes.H) && ix < static_cast<u32>(sizes.W) &&
                        (G::C_IN % G::C_STEP == 0 || c0 + c < G::C_IN);
    const u64 offset = c * plane + static_cast<u64>(iy) * static_cast<u32>(sizes.W) + ix;
    stage_elements<N>(&shared.raw[c][row][column], sample + (inside ? offset : 0), inside);
  }
}

template <class G>
__device__ __forceinline__ void stage_tile(typename G::Shared& shared, const typename G::Element* x,
                                           const Conv2dTensorTile<G>& tile, int c0,
                                           const Conv2dSizes& sizes) {
  if (sizes.W % G::COPY == 0) {
    stage_tile<G, G::COPY>(shared, x, tile, c0, sizes);
  } else if (sizes.W % 2 == 0) {
    stage_tile<G, 2>(shared, x, tile, c0, sizes);
  } else {
    stage_tile<G, 1>(shared, x, tile, c0, sizes);
  }
}

// The range of the tile's values, the same in every thread; only of the finite ones where FINITE.
template <class G, bool FINITE>
__device__ __forceinline__ MagnitudeRange range_of_tile(typename G::Shared& shared) {
  const typename G::Element* raw = &shared.raw[0][0][0];
  MagnitudeRange range;
#pragma unroll(FINITE ? 1 : 4)
  for (u32 i = threadIdx.x * 4; i < G::C_STEP * G::ROWS * G::COLUMNS; i += G::THREADS * 4) {
    const auto four = load_vector<4>(raw + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (FINITE) {
        range.see_finite(to_float(four.at[j]));
      } else {
        range.see(to_float(four.at[j]));
      }
    }
  }
  range.of_warp();
  if (threadIdx.x % 32 == 0) {
    shared.largest[threadIdx.x / 32] = range.largest;
    shared.least[threadIdx.x / 32] = range.least;
  }
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < G::WARPS; ++warp) {
    range.largest = max(range.largest, shared.largest[warp]);
    range.least = min(range.least, shared.least[warp]);
  }
  return range;
}

// The scale of a tile, the same in every thread. Has a barrier in it.
template <class G>
__device__ __forceinline__ SplitScale tile_scale(typename G::Shared& shared) {
  const MagnitudeRange range = range_of_tile<G, false>(shared);
  if (range.finite()) return SplitScale(range, true);
  __syncthreads();
  return SplitScale(range_of_tile<G, true>(shared), false);
}

// Puts the tile's 16-bit pixels together, eight channels of two neighbours at a time.
template <class G>
__device__ __forceinline__ void gather_tile(typename G::Shared& shared) {
  constexpr u32 PAIRS = G::COLUMNS / 2;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < G::STEP_GROUPS * G::ROWS * PAIRS; i += G::THREADS) {
    const u32 column = i % PAIRS * 2, row = i / PAIRS % G::ROWS, group = i / (PAIRS * G::ROWS);
    u32 two[8];
#pragma unroll
    for (u32 c = 0; c < 8; ++c) {
      const bool inside = G::C_STEP % 8 == 0 || group * 8 + c < G::C_STEP;
      const auto* from = &shared.raw[inside ? group * 8 + c : 0][row][column];
      two[c] = inside ? *reinterpret_cast<const u32*>(from) : 0u;
    }
    u32 first[4], second[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      first[j] = (two[2 * j] & 0xffffu) | two[2 * j + 1] << 16;
      second[j] = two[2 * j] >> 16 | (two[2 * j + 1] & 0xffff0000u);
    }
    auto& line = shared.pixels()[0][group][row];
    line[G::mixed(column)] = uint4{first[0], first[1], first[2], first[3]};
    line[G::mixed(column + 1)] = uint4{second[0], second[1], second[2], second[3]};
  }
}

// Splits the tile's pixels, eight channels at a time.
template <class G>
__device__ __forceinline__ void split_tile(typename G::Shared& shared, float scale) {
#pragma unroll 1
  for (u32 i = threadIdx.x; i < G::STEP_GROUPS * G::ROWS * G::COLUMNS; i += G::THREADS) {
    const u32 column = i % G::COLUMNS, row = i / G::COLUMNS % G::ROWS, group = i / (G::COLUMNS * G::ROWS);
    float value[8];
#pragma unroll
    for (u32 c = 0; c < 8; ++c) {
      const bool inside = G::C_STEP % 8 == 0 || group * 8 + c < G::C_STEP;
      value[c] = inside ? to_float(shared.raw[inside ? group * 8 + c : 0][row][column]) * scale : 0.0f;
    }
    u32 words[4][G::PARTS];
#pragma unroll
    for (int j = 0; j < 4; ++j) split<G::PARTS>(words[j], value[2 * j], value[2 * j + 1]);
#pragma unroll
    for (int part = 0; part < G::PARTS; ++part) {
      shared.pixels()[part][group][row][G::mixed(column)] =
          uint4{words[0][part], words[1][part], words[2][part], words[3][part]};
    }
  }
}

}  // namespace coldforge
