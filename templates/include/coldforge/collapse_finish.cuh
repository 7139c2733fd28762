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

// How many values a thread of the finish has on their way at once.
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

struct PlainWeights {
  template <class T>
  __device__ __forceinline__ static float load(const T* from) {
    return to_float(load_readonly<1>(from).at[0]);
  }
};

struct WrittenWeights {
  __device__ __forceinline__ static float load(const float* from) { return load_written(from); }
};

// How a block divides the products of one sample. An input channel c has C_OUT * TAPS places; a thread keeps
// PLACES of them, whose loads are coalesced and whose taps stay the same from one c to the next. GROUPS of
// ACROSS threads share the c, of which a thread loads DEPTH at once.
template <class G, int THREADS, int TAPS>
struct ProductLayout {
  static constexpr i64 PER_C = static_cast<i64>(G::C_OUT) * TAPS;
  static constexpr int ACROSS = PER_C < THREADS ? round_up(static_cast<int>(PER_C), 32) : THREADS;
  static constexpr int GROUPS = THREADS / ACROSS;
  static constexpr int PLACES =
      smaller_of(FinishShared<G, THREADS>::PLACES, static_cast<int>((PER_C + ACROSS - 1) / ACROSS));
  static constexpr int ROUND = ACROSS * PLACES;
  static constexpr int DEPTH = smaller_of(FINISH_LOADS / PLACES, (G::C_IN + GROUPS - 1) / GROUPS);
  static constexpr bool EVEN = G::C_IN % (GROUPS * DEPTH) == 0;

  // Where the sum lies that belongs to a place, among those of its channel.
  __device__ __forceinline__ static int sum_at(i64 place) {
    const int tap = static_cast<int>(place % TAPS);
    return G::sum_of(G::COLUMN_SUMS > 1 ? tap % G::S : 0, G::ROW_SUMS > 1 ? tap / G::S : 0);
  }
};

// products = for the places from `first` on, the group's share of sum over c of sums[c, tap] * weights[c,
// place].
template <class G, int THREADS, int TAPS, class Load, class T>
__device__ __forceinline__ void multiply_round(FinishShared<G, THREADS>& shared, const T* weights,
                                               i64 first) {
  using Sum = typename G::Sum;
  using L = ProductLayout<G, THREADS, TAPS>;
  const int across = static_cast<int>(threadIdx.x) % L::ACROSS,
            group = static_cast<int>(threadIdx.x) / L::ACROSS;
  if (group >= L::GROUPS) return;
  const T* from[L::PLACES];
  const Sum* sums[L::PLACES];
  Sum products[L::PLACES];
#pragma unroll
  for (int p = 0; p < L::PLACES; ++p) {
    const i64 place = min(first + p * L::ACROSS + across, L::PER_C - 1);
    from[p] = weights + group * L::PER_C + place;
    sums[p] = shared.sums + group * G::SUMS + L::sum_at(place);
    products[p] = 0;
  }
#pragma unroll 1
  for (int c = group; c < G::C_IN; c += L::GROUPS * L::DEPTH) {
    float loaded[L::DEPTH][L::PLACES];
#pragma unroll
    for (int d = 0; d < L::DEPTH; ++d) {
#pragma unroll
      for (int p = 0; p < L::PLACES; ++p) {
        loaded[d][p] = 0.0f;
        if (L::EVEN || c + d * L::GROUPS < G::C_IN)
          loaded[d][p] = Load::load(from[p] + d * L::GROUPS * L::PER_C);
      }
    }
#pragma unroll
    for (int d = 0; d < L::DEPTH; ++d) {
#pragma unroll
      for (int p = 0; p < L::PLACES; ++p) {
        if (!L::EVEN && c + d * L::GROUPS >= G::C_IN) continue;
        products[p] += sums[p][d * L::GROUPS * G::SUMS] * static_cast<Sum>(loaded[d][p]);
      }
    }
#pragma unroll
    for (int p = 0; p < L::PLACES; ++p) {
      from[p] += L::DEPTH * L::GROUPS * L::PER_C;
      sums[p] += L::DEPTH * L::GROUPS * G::SUMS;
    }
  }
#pragma unroll
  for (int p = 0; p < L::PLACES; ++p)
    shared.products[group * L::ROUND + p * L::ACROSS + across] = products[p];
}

// channels[k] += the products of its taps that are among the places from `first` on. A channel's taps may lie
// in two rounds or more; the first one sets it.
template <class G, int THREADS, int TAPS>
__device__ __forceinline__ void add_round(FinishShared<G, THREADS>& shared, i64 first) {
  using Sum = typename G::Sum;
  using L = ProductLayout<G, THREADS, TAPS>;
  const int count = static_cast<int>(min(static_cast<i64>(L::ROUND), L::PER_C - first));
  const int k_first = static_cast<int>(first / TAPS), before = static_cast<int>(first % TAPS);
#pragma unroll 1
  for (int k = static_cast<int>(threadIdx.x); k * TAPS - before < count; k += THREADS) {
    const int begin = k * TAPS - before, end = min(count, begin + TAPS);
    Sum sum = begin < 0 ? shared.channels[k_first + k] : Sum(0);
#pragma unroll 4
    for (int at = max(0, begin); at < end; ++at) {
#pragma unroll(L::GROUPS <= 8 ? 8 : 4)
      for (int g = 0; g < L::GROUPS; ++g) sum += shared.products[g * L::ROUND + at];
    }
    shared.channels[k_first + k] = sum;
  }
}

// channels[k] = sum over c and taps of sums[c, tap] * weights[c, k, tap]. All sums are in shared memory when
// it is called, all results when it returns.
template <class G, int THREADS, int TAPS, class Load, class T>
__device__ __forceinline__ void multiply(FinishShared<G, THREADS>& shared, const T* weights) {
  using L = ProductLayout<G, THREADS, TAPS>;
#pragma unroll 1
  for (i64 first = 0; first < L::PER_C; first += L::ROUND) {
    multiply_round<G, THREADS, TAPS, Load>(shared, weights, first);
    __syncthreads();
    add_round<G, THREADS, TAPS>(shared, first);
    __syncthreads();
  }
}

// channels = the sums over all output pixels of sample n, before the convolution's bias. All threads call it.
template <class G, int THREADS>
__device__ __forceinline__ void sum_sample(FinishShared<G, THREADS>& shared,
                                           const CollapseWorkspace<G>& workspace,
                                           const typename G::Element* weight, i64 n,
                                           const CollapseSizes& sizes) {
  const auto* partials = workspace.segments(n * G::C_IN);
  const bool finite = __syncthreads_and(combine_inner_rows<G, THREADS>(shared, partials)) != 0;
  if constexpr (G::BORDER_ROWS > 0) {
    add_border_rows<G, THREADS>(shared, partials, sizes);
    __syncthreads();
  }
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
