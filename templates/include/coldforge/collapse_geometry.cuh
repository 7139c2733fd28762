// SPDX-License-Identifier: Apache-2.0
// A transposed convolution whose mean is wanted: which pixels of a plane meet which taps, and where partial
// sums lie in the workspace.
#pragma once

#include "coldforge/types.cuh"

namespace coldforge {

struct CollapseSizes {
  i64 N, H, W, H_out, W_out;
};

template <bool B, class T, class F>
struct Either {
  using type = T;
};
template <class T, class F>
struct Either<false, T, F> {
  using type = F;
};

// Problem: C_in, C_out, R, S, the attributes, and TOP, BOTTOM, LEFT, RIGHT: how many rows and columns at each
// border some tap misses; all others, the inner ones, meet every tap. Config: SPLIT, BLOCK, VEC, UNROLL,
// FOLD.
template <class P, class C, class Element_, class Adder_, class Load_>
struct CollapseGeometry {
  using Problem = P;
  using Config = C;
  using Element = Element_;
  using Adder = Adder_;
  using Load = Load_;
  using Partial = typename Adder::Result;

  static constexpr int C_IN = P::C_in, C_OUT = P::C_out, R = P::R, S = P::S, TAPS = R * S;
  static constexpr int SPLIT = C::SPLIT;
  static constexpr int BORDER_ROWS = P::TOP + P::BOTTOM, BORDER_COLUMNS = P::LEFT + P::RIGHT;
  static constexpr bool BORDERED = BORDER_ROWS + BORDER_COLUMNS > 0;
  // A plane has as many different sums as this: one where all taps meet the same pixels.
  static constexpr int ROW_SUMS = BORDER_ROWS > 0 ? R : 1, COLUMN_SUMS = BORDER_COLUMNS > 0 ? S : 1;
  static constexpr int SUMS = ROW_SUMS * COLUMN_SUMS;
  // Partial sums of a plane, COLUMN_SUMS each: SPLIT parts of its inner rows, then each border row.
  static constexpr int SEGMENTS = SPLIT + BORDER_ROWS;
  static constexpr bool FOLDED = C::FOLD != 0;
  static_assert(!(FOLDED && BORDERED), "taps are folded where all of them meet the same pixels");

  // What the products with the weights are summed in. So few terms bear no rounding but the last.
  static constexpr bool EXACT = sizeof(Partial) == 8 || static_cast<i64>(C_IN) * TAPS < 16;
  using Sum = typename Either<EXACT, double, float>::type;

  // Where the sum lies that belongs to kernel row `row` and entry `entry`, c * COLUMN_SUMS + kernel column.
  __device__ __forceinline__ static int sum_of(int entry, int row) {
    return (entry / COLUMN_SUMS * ROW_SUMS + row) * COLUMN_SUMS + entry % COLUMN_SUMS;
  }

  // True when pixels at `at` along one axis meet `tap`: their image lies inside the output.
  __device__ __forceinline__ static bool meets(i64 at, int tap, int stride, int padding, int dilation,
                                               i64 out) {
    const i64 image = at * stride - padding + static_cast<i64>(tap) * dilation;
    return 0 <= image && image < out;
  }
  __device__ __forceinline__ static bool row_meets(i64 h, int r, const CollapseSizes& sizes) {
    return meets(h, r, P::stride_h, P::padding_h, P::dilation_h, sizes.H_out);
  }
  __device__ __forceinline__ static bool column_meets(i64 w, int s, const CollapseSizes& sizes) {
    return meets(w, s, P::stride_w, P::padding_w, P::dilation_w, sizes.W_out);
  }

  // The line (row or column) that is number `index` of those at the borders, `first` before and the others
  // after the inner ones; -1 where there is none, because a short plane has them all in the first border.
  __device__ __forceinline__ static i64 border_line(int index, int first, int last, i64 lines) {
    const i64 at = index < first ? index : lines - last + (index - first);
    return at >= (index < first ? 0 : first) && at < lines ? at : -1;
  }
  __device__ __forceinline__ static i64 border_row(int index, const CollapseSizes& sizes) {
    return border_line(index, P::TOP, P::BOTTOM, sizes.H);
  }
  __device__ __forceinline__ static i64 border_column(int index, const CollapseSizes& sizes) {
    return border_line(index, P::LEFT, P::RIGHT, sizes.W);
  }
  __device__ __forceinline__ static i64 inner_rows(const CollapseSizes& sizes) {
    return sizes.H > BORDER_ROWS ? sizes.H - BORDER_ROWS : 0;
  }
  __device__ __forceinline__ static i64 inner_columns(const CollapseSizes& sizes) {
    return sizes.W > BORDER_COLUMNS ? sizes.W - BORDER_COLUMNS : 0;
  }
};

// The workspace: a counter for each sample, zero when the kernel starts; the partial sums; folded weights.
template <class G>
struct CollapseWorkspace {
  u32* counters;
  typename G::Partial* partials;
  float* folded;

  __device__ __forceinline__ CollapseWorkspace(void* workspace, i64 N) {
    char* at = static_cast<char*>(workspace);
    counters = reinterpret_cast<u32*>(at);
    at += (N * 4 + 255) / 256 * 256;
    partials = reinterpret_cast<typename G::Partial*>(at);
    at += (N * G::C_IN * G::SEGMENTS * G::COLUMN_SUMS * static_cast<i64>(sizeof(typename G::Partial)) + 255) /
          256 * 256;
    folded = reinterpret_cast<float*>(at);
  }
  // The partial sums of plane `plane` (n * C_IN + c): for each of COLUMN_SUMS, the SEGMENTS side by side.
  __device__ __forceinline__ typename G::Partial* segments(i64 plane) const {
    return partials + plane * (G::COLUMN_SUMS * G::SEGMENTS);
  }
  // The folded weights of a plane's input channel, for its sample: C_OUT of them.
  __device__ __forceinline__ float* weights(i64 plane) const { return folded + plane * G::C_OUT; }
};

}  // namespace coldforge
