// SPDX-License-Identifier: Apache-2.0
// Direct convolution: from global to shared memory.
#pragma once

#include "coldforge/conv2d_geometry.cuh"
#include "coldforge/memory.cuh"

namespace coldforge {

// Where a block works. The input row and column are those of the tile's first element; above and left of the
// image they are negative and wrap around, so that one unsigned comparison tests both edges.
template <class G>
struct Conv2dTile {
  int n, oy, ox;
  u32 iy, ix;

  // Tiles are numbered along x, then y, then n.
  __device__ __forceinline__ Conv2dTile(u64 index, const Conv2dSizes& sizes) {
    const u32 tiles_x = (static_cast<u32>(sizes.W_out) + G::TILE_X - 1) / G::TILE_X;
    const u32 tiles_y = (static_cast<u32>(sizes.H_out) + G::TILE_Y - 1) / G::TILE_Y;
    const u64 row = index / tiles_x;
    ox = static_cast<int>(index - row * tiles_x) * G::TILE_X;
    n = static_cast<int>(row / tiles_y);
    oy = static_cast<int>(row - static_cast<u64>(n) * tiles_y) * G::TILE_Y;
    iy = static_cast<u32>(oy) * G::Problem::stride_h - G::Problem::padding_h;
    ix = static_cast<u32>(ox) * G::Problem::stride_w - G::Problem::padding_w - G::SHIFT;
  }

  static __device__ __forceinline__ u64 count(const Conv2dSizes& sizes) {
    const u64 tiles_x = (static_cast<u64>(sizes.W_out) + G::TILE_X - 1) / G::TILE_X;
    const u64 tiles_y = (static_cast<u64>(sizes.H_out) + G::TILE_Y - 1) / G::TILE_Y;
    return tiles_x * tiles_y * static_cast<u64>(sizes.N);
  }
};

// Copies N neighbouring elements, or writes zeros where `inside` is false; `from` may then be anything
// readable.
template <class G, int N, class T>
__device__ __forceinline__ void copy_elements(T* to, const T* from, bool inside) {
  if constexpr (G::Config::CP_ASYNC && sizeof(T) * N >= 4) {
    cp_async<sizeof(T) * N>(to, from, inside);
  } else {
    Vector<T, N> value = {};
    if (inside) value = load_readonly<N>(from);
    store_vector<N>(to, value);
  }
}

// Fills a stage with `channels` planes of the input tile, N elements at a time. Outside the image it is zero.
// `plane0` is the first of those planes; every row of the image begins at a multiple of N. Each thread keeps
// to its columns, so little is left to compute from row to row.
template <class G, int N>
__device__ __forceinline__ void fill_input(typename G::Shared& shared, int stage,
                                           const typename G::Element* plane0, int channels,
                                           const Conv2dTile<G>& tile, const Conv2dSizes& sizes) {
  constexpr int PER_ROW = G::COLUMNS / N;
  constexpr int LANES = PER_ROW < G::THREADS ? PER_ROW : G::THREADS;
  constexpr int LINES = G::THREADS / LANES;
  const u64 plane = static_cast<u64>(sizes.H) * static_cast<u32>(sizes.W);
  const int lane = static_cast<int>(threadIdx.x) % LANES;
  const int first = static_cast<int>(threadIdx.x) / LANES;
  const int lines = first < LINES ? channels * G::ROWS : 0;
  // Background copies need no unrolling to be many at once, plain loads do.
#pragma unroll(G::Config::CP_ASYNC ? 1 : 4)
  for (int line = first; line < lines; line += LINES) {
    const u32 c = static_cast<u32>(line) / G::ROWS, row = static_cast<u32>(line) % G::ROWS;
    const u32 iy = tile.iy + row;
#pragma unroll 1
    for (int column = lane * N; column < G::COLUMNS; column += LANES * N) {
      const u32 ix = tile.ix + static_cast<u32>(column);
      const bool inside = iy < static_cast<u32>(sizes.H) && ix < static_cast<u32>(sizes.W);
      const u64 offset = c * plane + static_cast<u64>(iy) * static_cast<u32>(sizes.W) + ix;
      copy_elements<G, N>(&shared.input[stage][c][row][column], plane0 + (inside ? offset : 0), inside);
      if constexpr (LANES == PER_ROW) break;
    }
  }
}

// Fills a stage with the weights of `channels` input channels from c0 and the tile's output channels from
// oc0, transposed. Lanes are 8 taps by 4 output channels: global reads of 8 neighbours, shared writes without
// conflicts.
template <class G>
__device__ __forceinline__ void fill_weights(typename G::Shared& shared, int stage,
                                             const typename G::Element* weight, int c0, int channels,
                                             int oc0) {
  constexpr int BLOCKS = (G::C_STEP * G::R * G::S + 7) / 8;
  const int taps = channels * (G::R * G::S);
#pragma unroll(G::Config::CP_ASYNC ? 1 : 4)
  for (int i = static_cast<int>(threadIdx.x); i < BLOCKS * 8 * G::OC_TILE; i += G::THREADS) {
    const int tap = i / 32 % BLOCKS * 8 + i % 8;
    const int oc = i / (32 * BLOCKS) * 4 + i / 8 % 4;
    if (tap >= taps) continue;
    const bool inside = G::WHOLE_OC_TILES || oc0 + oc < G::C_OUT;
    const i64 offset = (static_cast<i64>(oc0 + oc) * G::C_IN + c0) * (G::R * G::S) + tap;
    const typename G::Element* from = weight + (inside ? offset : 0);
    float* to = &shared.weight[stage][tap][oc];
    if constexpr (sizeof(typename G::Element) == 4) {
      copy_elements<G, 1>(to, from, inside);
    } else {
      *to = inside ? to_float(load_readonly<1>(from).at[0]) : 0.0f;
    }
  }
}

// Where a block's stages are filled from.
template <class G>
struct Conv2dSource {
  using Element = typename G::Element;
  typename G::Shared& shared;
  const Element* x;
  const Element* weight;
  const Conv2dSizes& sizes;
  int oc0;

  static __device__ __forceinline__ int channels(int step) {
    return G::C_IN % G::C_STEP == 0 ? G::C_STEP : min(G::C_STEP, G::C_IN - step * G::C_STEP);
  }

  // Fills a stage for step `step` of a tile: the pixels of its input channels and, where they change from
  // step to step, the weights.
  __device__ __forceinline__ void fill(int stage, int step, const Conv2dTile<G>& tile) const {
    const int c0 = step * G::C_STEP;
    const i64 plane = static_cast<i64>(sizes.H) * sizes.W;
    const Element* plane0 = x + (static_cast<i64>(tile.n) * G::C_IN + c0) * plane;
    if (sizes.W % G::COPY == 0) {
      fill_input<G, G::COPY>(shared, stage, plane0, channels(step), tile, sizes);
    } else if (sizes.W % 2 == 0) {
      fill_input<G, 2>(shared, stage, plane0, channels(step), tile, sizes);
    } else {
      fill_input<G, 1>(shared, stage, plane0, channels(step), tile, sizes);
    }
    if constexpr (G::Config::WEIGHTS_SHARED && G::STEPS > 1) {
      fill_weights<G>(shared, stage, weight, c0, channels(step), oc0);
    }
  }
};

}  // namespace coldforge
