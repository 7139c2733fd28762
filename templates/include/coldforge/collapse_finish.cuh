// SPDX-License-Identifier: Apache-2.0
// What a block does once all partial sums of a sample are there: the sums that each tap meets, their products
// with the weights, the outputs.
#pragma once

#include "coldforge/collapse_geometry.cuh"
#include "coldforge/reduce.cuh"
#include "coldforge/stream_load.cuh"
#include "coldforge/summation.cuh"

namespace coldforge {

__host__ __device__ constexpr int smaller_of(int a, int b) { return a < b ? a : b; }

// How many weights a thread of the finish has on their way at once, in groups of at most PLACES for different
// places of a channel.
constexpr int FINISH_LOADS = 32;

template <class G, int THREADS>
struct FinishShared {
  static constexpr int PLACES = smaller_of(4, 2048 / THREADS);
  using Sum = typename G::Sum;

  Sum sums[G::C_IN * G::SUMS];     // of the pixels that a tap meets
  Sum products[THREADS * PLACES];  // of some places of a channel, by group of threads
  Sum channels[G::C_OUT];          // results
  float scratch[32];               // of reductions
  u32 completed[4];                // which samples this block has to finish
};

// Combines a sample's partial sums. LANES neighbouring threads share the parts of one; a thread has BATCH of
// them on their way at once. False if one of them is not finite.
template <class G, int THREADS>
__device__ __forceinline__ bool combine_sums(FinishShared<G, THREADS>& shared,
                                             const CollapseWorkspace<G>& workspace, i64 n,
                                             const CollapseSizes& sizes) {
  using Sum = typename G::Sum;
  constexpr int LANES = smaller_of(32, G::SPLIT), TEAMS = THREADS / LANES;
  constexpr int ENTRIES = G::C_IN * G::COLUMN_SUMS, ROUND = (ENTRIES + TEAMS - 1) / TEAMS;
  constexpr int BATCH = smaller_of(8, ROUND);
  const int lane = static_cast<int>(threadIdx.x) % LANES, team = static_cast<int>(threadIdx.x) / LANES;
  bool finite = true;
#pragma unroll 1
  for (int first = 0; first < ENTRIES; first += TEAMS * BATCH) {
    Sum totals[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      const int entry = min(first + b * TEAMS + team, ENTRIES - 1);
      const auto* from = workspace.segment(n * G::C_IN + entry / G::COLUMN_SUMS, 0) + entry % G::COLUMN_SUMS;
      totals[b] = static_cast<Sum>(load_written(from + lane * G::COLUMN_SUMS));
#pragma unroll
      for (int part = LANES; part < G::SPLIT; part += LANES) {
        totals[b] += static_cast<Sum>(load_written(from + (part + lane) * G::COLUMN_SUMS));
      }
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      const Sum inner = lanes_sum<LANES>(totals[b]);
      const int entry = first + b * TEAMS + team;
      if (entry >= ENTRIES) continue;
      const int c = entry / G::COLUMN_SUMS, s = entry % G::COLUMN_SUMS;
      for (int r = lane; r < G::ROW_SUMS; r += LANES) {
        Sum sum = inner;
        for (int index = 0; index < G::BORDER_ROWS; ++index) {
          const i64 row = G::border_row(index, sizes);
          if (row < 0 || !G::row_meets(row, r, sizes)) continue;
          sum += static_cast<Sum>(load_written(workspace.segment(n * G::C_IN + c, G::SPLIT + index) + s));
        }
        shared.sums[(c * G::ROW_SUMS + r) * G::COLUMN_SUMS + s] = sum;
        finite = finite && isfinite(sum);
      }
    }
  }
  return finite;
}

struct PlainWeights {
  template <class T>
  __device__ __forceinline__ static float load(const T* from) {
    return to_float(load_readonly<1>(from).at[0]);
  }
};

struct WrittenWeights {
  __device__ __forceinline__ static float load(const float* from) { return load_written(from); }
};

// channels[k] = sum over c and taps of sums[c, tap] * weights[c, k, tap]. A channel c has C_OUT * TAPS
// places; a thread keeps PLACES of them, whose loads are coalesced and whose taps stay the same from one c to
// the next. Groups of threads share the c. All sums are in shared memory when it is called.
template <class G, int THREADS, int TAPS, class Load, class T>
__device__ __forceinline__ void multiply(FinishShared<G, THREADS>& shared, const T* weights) {
  using Sum = typename G::Sum;
  constexpr i64 PER_C = static_cast<i64>(G::C_OUT) * TAPS;
  constexpr int ACROSS = PER_C < THREADS ? round_up(static_cast<int>(PER_C), 32) : THREADS;
  constexpr int GROUPS = THREADS / ACROSS;
  constexpr int PLACES =
      PER_C <= ACROSS ? 1 : smaller_of(FinishShared<G, THREADS>::PLACES, (PER_C - 1) / ACROSS + 1);
  constexpr int STEPS = (G::C_IN + GROUPS - 1) / GROUPS, DEPTH = smaller_of(FINISH_LOADS / PLACES, STEPS);
  const int thread = static_cast<int>(threadIdx.x), group = thread / ACROSS;
#pragma unroll 1
  for (i64 first = 0; first < PER_C; first += ACROSS * PLACES) {
    const T* from[PLACES];
    int sum_of[PLACES];
    Sum products[PLACES];
#pragma unroll
    for (int p = 0; p < PLACES; ++p) {
      const i64 place = min(first + p * ACROSS + thread % ACROSS, PER_C - 1);
      const int tap = static_cast<int>(place % TAPS);
      from[p] = weights + place;
      sum_of[p] = (G::ROW_SUMS > 1 ? tap / G::S : 0) * G::COLUMN_SUMS + (G::COLUMN_SUMS > 1 ? tap % G::S : 0);
      products[p] = 0;
    }
#pragma unroll 1
    for (int step = 0; step < STEPS; step += DEPTH) {
      float loaded[DEPTH][PLACES];
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        const int c = min((step + d) * GROUPS + group, G::C_IN - 1);
#pragma unroll
        for (int p = 0; p < PLACES; ++p) loaded[d][p] = Load::load(from[p] + c * PER_C);
      }
#pragma unroll
      for (int d = 0; d < DEPTH; ++d) {
        const int c = (step + d) * GROUPS + group;
        if (c >= G::C_IN || group >= GROUPS) continue;
#pragma unroll
        for (int p = 0; p < PLACES; ++p) {
          products[p] += shared.sums[c * G::SUMS + sum_of[p]] * static_cast<Sum>(loaded[d][p]);
        }
      }
    }
    if (group < GROUPS) {
#pragma unroll
      for (int p = 0; p < PLACES; ++p) {
        shared.products[(group * PLACES + p) * ACROSS + thread % ACROSS] = products[p];
      }
    }
    __syncthreads();
    const i64 end = min(PER_C, first + ACROSS * PLACES);
    for (int k = static_cast<int>(first / TAPS) + thread; k < G::C_OUT && static_cast<i64>(k) * TAPS < end;
         k += THREADS) {
      const i64 k_first = static_cast<i64>(k) * TAPS;
      Sum sum = k_first < first ? shared.channels[k] : Sum(0);
      for (i64 place = max(first, k_first); place < min(end, k_first + TAPS); ++place) {
        const int at = static_cast<int>(place - first);
        for (int g = 0; g < GROUPS; ++g) sum += shared.products[g * PLACES * ACROSS + at];
      }
      shared.channels[k] = sum;
    }
    __syncthreads();
  }
}

// channels = the sums over all output pixels of sample n, before the convolution's bias. All threads call it.
template <class G, int THREADS>
__device__ __forceinline__ void sum_sample(FinishShared<G, THREADS>& shared,
                                           const CollapseWorkspace<G>& workspace,
                                           const typename G::Element* weight, i64 n,
                                           const CollapseSizes& sizes) {
  const bool finite = __syncthreads_and(combine_sums<G, THREADS>(shared, workspace, n, sizes)) != 0;
  if constexpr (G::FOLDED) {
    // Infinities and NaN must meet the taps one by one: taps of both signs make a NaN of an infinity.
    if (finite) {
      multiply<G, THREADS, 1, WrittenWeights>(shared, workspace.weights(n * G::C_IN));
      return;
    }
  }
  multiply<G, THREADS, G::TAPS, PlainWeights>(shared, weight);
}

}  // namespace coldforge
