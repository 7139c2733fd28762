// SPDX-License-Identifier: Apache-2.0
// The products of a sample's sums with the weights, added up for each output channel.
#pragma once

#include "coldforge/collapse_shared.cuh"
#include "coldforge/stream_load.cuh"

namespace coldforge {

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

}  // namespace coldforge
