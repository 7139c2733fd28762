// SPDX-License-Identifier: Apache-2.0
// One warp adds up a run of neighbouring elements that may begin and end anywhere: all of them, or those of
// the inner columns of the rows that the run consists of.
#pragma once

#include "coldforge/stream_load.cuh"
#include "coldforge/summation.cuh"

namespace coldforge {

constexpr int WARP = 32;

// Which elements of a run count: all.
struct AllColumns {
  struct Cursor {
    __device__ __forceinline__ bool counts(int) const { return true; }
    __device__ __forceinline__ void next() {}
  };
  __device__ __forceinline__ Cursor cursor(i64, int) const { return {}; }
};

// Which elements of a run count: those in columns [left, left + inner) of rows of `width`; the run begins
// with a row. A cursor stands on a vector and knows its first element's place in a row that is turned around
// so that it begins at `left`: the places from `inner` to `width` do not count. A vector may reach into the
// next row, but not past that row's inner columns.
struct InnerColumns {
  u32 width, left, inner;

  struct Cursor {
    u32 place, step, width, inner;

    __device__ __forceinline__ bool counts(int i) const { return place + i - inner >= width - inner; }
    __device__ __forceinline__ void next() {
      place += step;
      if (place >= width) place -= width;
    }
  };
  // On element `at` of the run; each step goes on by `step` elements.
  __device__ __forceinline__ Cursor cursor(i64 at, int step) const {
    return {static_cast<u32>((static_cast<u64>(at) + width - left) % width), step % width, width, inner};
  }
};

// The sum of UNROLL vectors, as a tree.
template <int VEC, int UNROLL, class T, class Cursor>
__device__ __forceinline__ float chunk_sum(const Vector<T, VEC> (&chunk)[UNROLL], Cursor& cursor) {
  float sums[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    float values[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) values[i] = cursor.counts(i) ? to_float(chunk[u].at[i]) : 0.0f;
    cursor.next();
    sums[u] = pairwise_sum(values);
  }
  return pairwise_sum(sums);
}

// Adds `count` elements to the lanes' sums, spread over the warp: single ones up to the first aligned vector,
// vectors, single ones again. UNROLL vectors of each lane are on their way at once.
template <int VEC, int UNROLL, class Load, class Adder, class T, class Columns>
__device__ __forceinline__ void add_run(Adder& adder, const T* run, i64 count, const Columns& columns,
                                        int lane) {
  constexpr int STEP = WARP * VEC;
  const int past = static_cast<int>(reinterpret_cast<u64>(run) / sizeof(T) % VEC);
  const i64 head = min(count, static_cast<i64>((VEC - past) % VEC));
  const i64 vectors = (count - head) / VEC;
  const i64 tail = head + vectors * VEC;
  const T* at = run + head + lane * VEC;
  auto cursor = columns.cursor(head + lane * VEC, STEP);
  Vector<T, VEC> chunk[UNROLL];
#pragma unroll 1
  for (i64 left = vectors / (WARP * UNROLL); left > 0; --left, at += STEP * UNROLL) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) chunk[u] = Load::template load<VEC>(at + u * STEP);
    adder.add(chunk_sum(chunk, cursor));
  }
  const int left = static_cast<int>(vectors % (WARP * UNROLL)) - lane;
  if (left > 0) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      if (u * WARP < left) {
        chunk[u] = Load::template load<VEC>(at + u * STEP);
      } else {
        chunk[u] = {};
      }
    }
    adder.add(chunk_sum(chunk, cursor));
  }
  if (lane < head && columns.cursor(lane, 0).counts(0))
    adder.add(to_float(Load::template load<1>(run + lane).at[0]));
  if (lane < count - tail && columns.cursor(tail + lane, 0).counts(0)) {
    adder.add(to_float(Load::template load<1>(run + tail + lane).at[0]));
  }
}

}  // namespace coldforge
