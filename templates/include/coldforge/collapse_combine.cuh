// SPDX-License-Identifier: Apache-2.0
// From the partial sums of a sample to the sums of the pixels that each tap meets.
#pragma once

#include "coldforge/collapse_shared.cuh"
#include "coldforge/stream_load.cuh"
#include "coldforge/summation.cuh"

namespace coldforge {

// Combines the partial sums of a sample's inner rows. LANES neighbouring threads, a team, share the parts of
// one sum; a team has BATCH of them on their way at once. False if one of them is not finite.
template <class G, int THREADS>
__device__ __forceinline__ bool combine_inner_rows(FinishShared<G, THREADS>& shared,
                                                   const typename G::Partial* partials) {
  using Sum = typename G::Sum;
  constexpr int LANES = smaller_of(32, G::SPLIT), TEAMS = THREADS / LANES, ENTRIES = G::C_IN * G::COLUMN_SUMS;
  constexpr int BATCH =
      smaller_of(smaller_of(8, FINISH_LOADS / (G::SPLIT / LANES)), (ENTRIES + TEAMS - 1) / TEAMS);
  constexpr bool EVEN = ENTRIES % (TEAMS * BATCH) == 0;
  const int lane = static_cast<int>(threadIdx.x) % LANES, team = static_cast<int>(threadIdx.x) / LANES;
  bool finite = true;
#pragma unroll 1
  for (int first = team; first - team < ENTRIES; first += TEAMS * BATCH) {
    const auto* from = partials + static_cast<i64>(first) * G::SEGMENTS + lane;
    Sum totals[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      totals[b] = 0;
      if (!EVEN && first + b * TEAMS >= ENTRIES) continue;
#pragma unroll
      for (int part = 0; part < G::SPLIT; part += LANES) {
        totals[b] += static_cast<Sum>(load_written(from + (b * TEAMS * G::SEGMENTS + part)));
      }
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      const Sum sum = lanes_sum<LANES>(totals[b]);
      const int entry = first + b * TEAMS;
      finite = finite && isfinite(sum);
      if (lane == 0 && (EVEN || entry < ENTRIES)) shared.sums[G::sum_of(entry, 0)] = sum;
    }
  }
  return finite;
}

// Adds the sums of the border rows to those of the inner rows, for each kernel row that they meet.
template <class G, int THREADS>
__device__ __forceinline__ void add_border_rows(FinishShared<G, THREADS>& shared,
                                                const typename G::Partial* partials,
                                                const CollapseSizes& sizes) {
  using Sum = typename G::Sum;
  constexpr int AT_ONCE = smaller_of(4, G::BORDER_ROWS);
#pragma unroll 1
  for (int entry = static_cast<int>(threadIdx.x); entry < G::C_IN * G::COLUMN_SUMS; entry += THREADS) {
    const auto* from = partials + static_cast<i64>(entry) * G::SEGMENTS + G::SPLIT;
    const Sum inner = shared.sums[G::sum_of(entry, 0)];
#pragma unroll 1
    for (int r = 1; r < G::R; ++r) shared.sums[G::sum_of(entry, r)] = inner;
#pragma unroll 1
    for (int first = 0; first < G::BORDER_ROWS; first += AT_ONCE) {
      i64 rows[AT_ONCE];
      Sum loaded[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        rows[i] = first + i < G::BORDER_ROWS ? G::border_row(first + i, sizes) : -1;
        loaded[i] = rows[i] < 0 ? Sum(0) : static_cast<Sum>(load_written(from + first + i));
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        if (rows[i] < 0) continue;
#pragma unroll 1
        for (int r = 0; r < G::R; ++r) {
          if (G::row_meets(rows[i], r, sizes)) shared.sums[G::sum_of(entry, r)] += loaded[i];
        }
      }
    }
  }
}

}  // namespace coldforge
