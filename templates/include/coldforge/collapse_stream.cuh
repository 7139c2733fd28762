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

// The sum of all inner columns of `rows` whole rows.
template <class G>
__device__ __forceinline__ typename G::Partial inner_sum(const typename G::Element* first, i64 rows,
                                                         const CollapseSizes& sizes, int lane) {
  typename G::Adder adder;
  if constexpr (G::BORDER_COLUMNS == 0) {
    add_run<G::Config::VEC, G::Config::UNROLL, typename G::Load>(adder, first, rows * sizes.W, AllColumns(),
                                                                 lane);
  } else {
    const i64 inner = G::inner_columns(sizes);
    const InnerColumns columns = {static_cast<u32>(sizes.W), G::Problem::LEFT, static_cast<u32>(inner)};
    if (inner >= G::Config::VEC - 1 && inner > 0) {
      add_run<G::Config::VEC, G::Config::UNROLL, typename G::Load>(adder, first, rows * sizes.W, columns,
                                                                   lane);
    } else if (inner > 0) {
      add_run<1, G::Config::UNROLL, typename G::Load>(adder, first, rows * sizes.W, columns, lane);
    }
  }
  return lanes_sum<WARP>(adder.result());
}

// The sums of `rows` whole rows: the inner columns', then each border column's where a kernel column meets
// it.
template <class G>
__device__ __forceinline__ ColumnSums<G> row_sums(const typename G::Element* first, i64 rows,
                                                  const CollapseSizes& sizes, int lane) {
  ColumnSums<G> sums(inner_sum<G>(first, rows, sizes, lane));
#pragma unroll(G::BORDER_COLUMNS <= 4 ? 4 : 1)
  for (int index = 0; index < G::BORDER_COLUMNS; ++index) {
    const i64 column = G::border_column(index, sizes);
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
    typename G::Adder adder;
    add_run<G::Config::VEC, G::Config::UNROLL, typename G::Load>(adder, at + begin, end - begin, AllColumns(),
                                                                 lane);
    const auto sum = lanes_sum<WARP>(adder.result());
    ColumnSums<G>(sum).store(workspace.segments(plane) + part, lane);
  } else {
    const i64 rows = G::inner_rows(sizes), share = (rows + G::SPLIT - 1) / G::SPLIT;
    const i64 begin = min(rows, part * share), end = min(rows, begin + share);
    row_sums<G>(at + (G::Problem::TOP + begin) * sizes.W, end - begin, sizes, lane)
        .store(workspace.segments(plane) + part, lane);
#pragma unroll 1
    for (int index = part; index < G::BORDER_ROWS; index += G::SPLIT) {
      const i64 row = G::border_row(index, sizes);
      if (row < 0) continue;
      row_sums<G>(at + row * sizes.W, 1, sizes, lane)
          .store(workspace.segments(plane) + G::SPLIT + index, lane);
    }
  }
}

}  // namespace coldforge
