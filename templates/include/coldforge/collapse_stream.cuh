// SPDX-License-Identifier: Apache-2.0
// What one warp does with its part of a plane: partial sums of the pixels that each kernel column meets.
#pragma once

#include "coldforge/collapse_geometry.cuh"
#include "coldforge/plane_sum.cuh"

namespace coldforge {

// The sums of some rows, one for each kernel column: lane l holds those of l, l + 32 and so on.
template <class G>
struct ColumnSums {
  static constexpr int EACH = (G::COLUMN_SUMS + WARP - 1) / WARP;
  typename G::Partial at[EACH];

  __device__ __forceinline__ explicit ColumnSums(typename G::Partial all) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) at[i] = all;
  }
  // Adds the sum of one column where it meets the kernel's column: everywhere if it is an inner one.
  __device__ __forceinline__ void add_column(typename G::Partial sum, i64 column, const CollapseSizes& sizes,
                                             int lane) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (G::column_meets(column, lane + i * WARP, sizes)) at[i] += sum;
    }
  }
  // `to` is where the segment of the first column lies.
  __device__ __forceinline__ void store(typename G::Partial* to, int lane) const {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int column = lane + i * WARP;
      if (column < G::COLUMN_SUMS) to[column * G::SEGMENTS] = at[i];
    }
  }
};

// The sum of a run of neighbouring elements, or of those of its rows that lie in inner columns.
template <class G, class Columns>
__device__ __forceinline__ typename G::Partial run_sum(const typename G::Element* run, i64 count,
                                                       const Columns& columns, int lane) {
  typename G::Adder adder;
  add_run<G::Config::VEC, G::Config::UNROLL, typename G::Load>(adder, run, count, columns, lane);
  return lanes_sum<WARP>(adder.result());
}

// The sums of `rows` whole rows: of all inner columns at once, then of each border column.
template <class G>
__device__ __forceinline__ ColumnSums<G> row_sums(const typename G::Element* first, i64 rows,
                                                  const CollapseSizes& sizes, int lane) {
  if constexpr (G::BORDER_COLUMNS == 0) {
    return ColumnSums<G>(run_sum<G>(first, rows * sizes.W, AllColumns(), lane));
  } else {
    const i64 inner = G::inner_columns(sizes);
    // A vector may not reach past the next row's inner columns: where they are fewer, they go one by one too.
    const bool narrow = inner < max(1, G::Config::VEC - 1);
    typename G::Partial all = 0;
    if (!narrow) {
      const InnerColumns columns = {static_cast<u32>(sizes.W), G::Problem::LEFT, static_cast<u32>(inner)};
      all = run_sum<G>(first, rows * sizes.W, columns, lane);
    }
    ColumnSums<G> sums(all);
    const int columns = G::BORDER_COLUMNS + (narrow ? static_cast<int>(inner) : 0);
#pragma unroll 1
    for (int index = 0; index < columns; ++index) {
      const i64 column = index < G::BORDER_COLUMNS ? G::border_column(index, sizes)
                                                   : G::Problem::LEFT + (index - G::BORDER_COLUMNS);
      if (column < 0) continue;
      typename G::Adder adder;
#pragma unroll 4
      for (i64 row = lane; row < rows; row += WARP) {
        adder.add(to_float(load_readonly<1>(first + row * sizes.W + column).at[0]));
      }
      sums.add_column(lanes_sum<WARP>(adder.result()), column, sizes, lane);
    }
    return sums;
  }
}

// Sums the taps of one input channel's weights, for each output channel.
template <class G>
__device__ __forceinline__ void fold_taps(const typename G::Element* weight, float* folded, int lane) {
#pragma unroll 1
  for (int k = lane; k < G::C_OUT; k += WARP) {
    const typename G::Element* taps = weight + static_cast<i64>(k) * G::TAPS;
    float sum = to_float(load_readonly<1>(taps).at[0]);
#pragma unroll(G::TAPS <= 32 ? G::TAPS : 8)
    for (int tap = 1; tap < G::TAPS; ++tap) sum += to_float(load_readonly<1>(taps + tap).at[0]);
    folded[k] = sum;
  }
}

// Brings one input channel's weights near, for whoever finishes the sample.
template <class G>
__device__ __forceinline__ void prefetch_taps(const typename G::Element* weight, int lane) {
  constexpr i64 LINE = 128 / sizeof(typename G::Element), COUNT = static_cast<i64>(G::C_OUT) * G::TAPS;
#pragma unroll 1
  for (i64 at = lane * LINE; at < COUNT; at += WARP * LINE) prefetch_l2(weight + at);
}

// Part `part` of plane `plane`: an equal share of its inner rows, and every SPLIT-th border row. Planes
// without borders are cut anywhere: into runs of whole steps.
template <class G>
__device__ __forceinline__ void stream_part(const typename G::Element* x,
                                            const CollapseWorkspace<G>& workspace, i64 plane, int part,
                                            const CollapseSizes& sizes, int lane) {
  const i64 pixels = sizes.H * sizes.W;
  const typename G::Element* at = x + plane * pixels;
  if constexpr (!G::BORDERED) {
    constexpr int STEP = WARP * G::Config::VEC;
    const i64 share = (pixels + G::SPLIT * STEP - 1) / (G::SPLIT * STEP) * STEP;
    const i64 begin = min(pixels, part * share), end = min(pixels, begin + share);
    const ColumnSums<G> sums(run_sum<G>(at + begin, end - begin, AllColumns(), lane));
    sums.store(workspace.segments(plane) + part, lane);
  } else {
    const i64 inner = G::inner_rows(sizes), share = (inner + G::SPLIT - 1) / G::SPLIT;
    const i64 begin = min(inner, part * share), end = min(inner, begin + share);
    i64 first = G::Problem::TOP + begin, rows = end - begin;
#pragma unroll 1
    for (int segment = part; segment < G::SEGMENTS; segment += G::SPLIT) {
      if (segment >= G::SPLIT) {
        first = G::border_row(segment - G::SPLIT, sizes);
        rows = 1;
        if (first < 0) continue;
      }
      const ColumnSums<G> sums = row_sums<G>(at + first * sizes.W, rows, sizes, lane);
      sums.store(workspace.segments(plane) + segment, lane);
    }
  }
}

}  // namespace coldforge
