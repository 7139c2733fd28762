// SPDX-License-Identifier: Apache-2.0
// Depthwise convolution: where a thread reads the windows of its input rows from.
#pragma once

#include "coldforge/conv2d_depthwise_geometry.cuh"
#include "coldforge/memory.cuh"

namespace coldforge {

// The window of one input row, as it was read. Columns that no tap meets are left as they are.
template <class G>
struct DepthwiseRow {
  typename G::Element at[G::WINDOW];
};

// What is needed of the N columns from `FIRST` on: columns FIRST + BEGIN to FIRST + END, none if these are
// equal, in accesses of WIDTH: one that holds them all.
template <class G, int N, int FIRST>
struct DepthwisePart {
  static __host__ __device__ constexpr int begin() {
    for (int i = 0; i < N; ++i)
      if (G::has_column(FIRST + i)) return i;
    return 0;
  }
  static __host__ __device__ constexpr int end() {
    for (int i = N; i > 0; --i)
      if (G::has_column(FIRST + i - 1)) return i;
    return 0;
  }
  static __host__ __device__ constexpr int width() {
    int width = 1;
    while (begin() / width != (end() - 1) / width) width *= 2;
    return width;
  }
  static constexpr int BEGIN = begin(), END = end(), WIDTH = BEGIN < END ? width() : 1;
  static constexpr int OFFSET = FIRST + BEGIN / WIDTH * WIDTH;
};

// Reads a window part by part of N columns: `load(Part, row)` gives a part's vector.
template <class G, int N, int FIRST = 0, class Load>
__device__ __forceinline__ void read_parts(DepthwiseRow<G>& row, const Load& load) {
  if constexpr (FIRST < G::WINDOW) {
    using Part = DepthwisePart<G, N, FIRST>;
    if constexpr (Part::BEGIN < Part::END) {
      const Vector<typename G::Element, Part::WIDTH> part = load.template operator()<Part>();
#pragma unroll
      for (int i = 0; i < Part::WIDTH; ++i) row.at[Part::OFFSET + i] = part.at[i];
    }
    read_parts<G, N, FIRST + N>(row, load);
  }
}

// From global memory. Outside of the image there are zeros. Neighbours read most of a window too, and find it
// in the L1 cache.
template <class G>
struct DepthwiseImage {
  using Element = typename G::Element;
  const Element* plane;
  int H, W;
  // The thread's first input row, and the first column of its window: above and left of the image they are
  // negative and wrap around, so that one unsigned comparison tests both edges.
  u32 iy, ix;

  struct Load {
    const DepthwiseImage& image;
    const Element* row;
    bool inside;

    template <class Part>
    __device__ __forceinline__ Vector<Element, Part::WIDTH> operator()() const {
      Vector<Element, Part::WIDTH> part = {};
      const u32 column = image.ix + Part::OFFSET;
      if (inside && column < static_cast<u32>(image.W)) part = load_readonly<Part::WIDTH>(row + column);
      return part;
    }
  };

  // Whether all rows of the image begin at a multiple of N elements.
  template <int N>
  __device__ __forceinline__ bool whole() const {
    return W % N == 0;
  }

  // The window of input row `row` of the thread's, N columns at a time; one that is not wanted is zero.
  template <int N>
  __device__ __forceinline__ void read(DepthwiseRow<G>& to, int row, bool wanted) const {
    const u32 y = iy + static_cast<u32>(row);
    const bool inside = wanted && y < static_cast<u32>(H);
    read_parts<G, N>(to, Load{*this, plane + static_cast<i64>(inside ? y : 0) * W, inside});
  }
};

// The input of a block's tile in shared memory.
template <class G>
struct DepthwiseStage {
  alignas(16) typename G::Element at[G::PLANES][G::ROWS][G::COLUMNS];
};

// From there, where zeros stand for what is outside of the image.
template <class G>
struct DepthwiseStaged {
  const DepthwiseStage<G>& stage;
  int plane, y, x;

  struct Load {
    const typename G::Element (&row)[G::COLUMNS];
    int x;

    template <class Part>
    __device__ __forceinline__ Vector<typename G::Element, Part::WIDTH> operator()() const {
      return load_vector<Part::WIDTH>(&row[G::SHIFT - G::LEAD + x + Part::OFFSET]);
    }
  };

  template <int N>
  __device__ __forceinline__ bool whole() const {
    return true;
  }

  // One that is not wanted is another.
  template <int N>
  __device__ __forceinline__ void read(DepthwiseRow<G>& to, int row, bool wanted) const {
    read_parts<G, N>(to, Load{stage.at[plane][y + (wanted ? row : 0)], x});
  }
};

// Copies N neighbouring elements to shared memory, or writes zeros where `inside` is false.
template <int N, class T>
__device__ __forceinline__ void stage_elements(T* to, const T* from, bool inside) {
  if constexpr (sizeof(T) * N >= 4) {
    cp_async<sizeof(T) * N>(to, from, inside);
  } else {
    *to = inside ? *from : from_float<T>(0.0f);
  }
}

// Fills the stage, N elements at a time, with the tile of `planes` planes from `first` on, of which input
// rows begin at iy and columns at ix.
template <class G, int N>
__device__ __forceinline__ void fill_stage(DepthwiseStage<G>& stage, const typename G::Element* first,
                                           int planes, u32 iy, u32 ix, const DepthwiseSizes& sizes) {
  constexpr int PER_ROW = G::COLUMNS / N;
  const u32 H = static_cast<u32>(sizes.H), W = static_cast<u32>(sizes.W);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < planes * G::ROWS * PER_ROW; i += G::THREADS) {
    const int line = i / PER_ROW, column = (i - line * PER_ROW) * N;
    const int plane = line / G::ROWS, row = line - plane * G::ROWS;
    const u32 y = iy + static_cast<u32>(row), x = ix + static_cast<u32>(column);
    const bool inside = y < H && x < W;
    const i64 offset = (plane * static_cast<i64>(H) + y) * W + x;
    stage_elements<N>(&stage.at[plane][row][column], first + (inside ? offset : 0), inside);
  }
}

}  // namespace coldforge
