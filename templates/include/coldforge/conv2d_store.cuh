// SPDX-License-Identifier: Apache-2.0
// Direct convolution: from sums in registers through the epilogue to global memory.
#pragma once

#include "coldforge/conv2d_compute.cuh"
#include "coldforge/conv2d_fill.cuh"

namespace coldforge {

// A thread's results, run by run.
template <class G>
using Conv2dValues = Vector<typename G::Element, G::VEC>[G::K][G::PY][G::RUNS];

// Stores one run N elements at a time; `left` columns of the row are at or after `to`. Whole parts of N are
// inside or outside the row. Where N is half a run, a run that lies well in this row is still stored at once.
template <int N, int VEC, class T>
__device__ __forceinline__ void store_run(T* to, const Vector<T, VEC>& run, int left) {
  if constexpr (N > 1 && 2 * N == VEC) {
    if (left >= VEC && is_aligned<VEC>(to)) {
      store_vector<VEC>(to, run);
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < VEC; j += N) {
    Vector<T, N> part;
#pragma unroll
    for (int i = 0; i < N; ++i) part.at[i] = run.at[j + i];
    if (j < left) store_vector<N>(to + j, part);
  }
}

// Stores all of a thread's runs in parts of N elements; every row of the output begins at a multiple of N.
// `corner` is the thread's first pixel, `rows`, `columns` and `channels` how many of them there are from it
// on.
template <class G, int N>
__device__ __forceinline__ void store_values(const Conv2dValues<G>& values, typename G::Element* corner,
                                             i64 plane, int W_out, int rows, int columns, int channels) {
#pragma unroll
  for (int k = 0; k < G::K; ++k, corner += plane) {
    typename G::Element* row = corner;
#pragma unroll
    for (int py = 0; py < G::PY; ++py, row += W_out) {
      if (py >= rows || !(G::WHOLE_OC_TILES || k < channels)) continue;
#pragma unroll
      for (int run = 0; run < G::RUNS; ++run) {
        constexpr int APART = G::LANES_X * G::VEC;
        store_run<N>(row + run * APART, values[k][py][run], columns - run * APART);
      }
    }
  }
}

// The epilogue is computed for all of a thread's sums first, without a branch, so that what it derives from
// its scalars is computed once. Pixels past the edges are computed and dropped here. The rows' alignment, the
// same for the whole call, chooses between complete copies of the store: tests at each store were slower.
template <class G, class Epilogue>
__device__ __forceinline__ void store_sums(const Conv2dSums<G>& sums, typename G::Element* y,
                                           const Epilogue& epilogue, int oc0, const Conv2dTile<G>& tile,
                                           const Conv2dPlace<G>& place, const Conv2dSizes& sizes) {
  using T = typename G::Element;
  const int oy = tile.oy + place.y, ox = tile.ox + place.x, oc = oc0 + place.oc;
  Conv2dValues<G> values;
#pragma unroll
  for (int k = 0; k < G::K; ++k) {
    const int channel = G::WHOLE_OC_TILES ? oc + k : min(oc + k, G::C_OUT - 1);
#pragma unroll
    for (int py = 0; py < G::PY; ++py) {
#pragma unroll
      for (int px = 0; px < G::PX; ++px) {
        values[k][py][px / G::VEC].at[px % G::VEC] =
            from_float<T>(epilogue(sums[k][py][px].result(), channel));
      }
    }
  }
  const int W_out = sizes.W_out, rows = sizes.H_out - oy, columns = W_out - ox, channels = G::C_OUT - oc;
  const i64 plane = static_cast<i64>(sizes.H_out) * W_out;
  T* corner = y + (static_cast<i64>(tile.n) * G::C_OUT + oc) * plane + static_cast<i64>(oy) * W_out + ox;
  if (G::VEC == 4 && W_out % 4 == 0) {
    store_values<G, G::VEC>(values, corner, plane, W_out, rows, columns, channels);
  } else if (G::VEC >= 2 && W_out % 2 == 0) {
    store_values<G, (G::VEC >= 2 ? 2 : 1)>(values, corner, plane, W_out, rows, columns, channels);
  } else {
    store_values<G, 1>(values, corner, plane, W_out, rows, columns, channels);
  }
}

}  // namespace coldforge
