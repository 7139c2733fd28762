// SPDX-License-Identifier: Apache-2.0
// Depthwise convolution: results to global memory, with a cache hint.
#pragma once

#include "coldforge/memory.cuh"

namespace coldforge {

// As any other store.
struct StorePlain {
  template <int N, class T>
  __device__ __forceinline__ static void store(T* to, const Vector<T, N>& value) {
    store_vector<N>(to, value);
  }
};

// First to be evicted, from both levels of cache: nobody reads it soon.
struct StoreStreaming {
  template <int N, class T>
  __device__ __forceinline__ static void store(T* to, const Vector<T, N>& value) {
    union {
      typename WordOf<sizeof(T) * N>::type word;
      Vector<T, N> vector;
    } both;
    both.vector = value;
    __stcs(reinterpret_cast<decltype(both.word)*>(to), both.word);
  }
};

// Stores the first `left` of VEC neighbouring columns, N at a time; rows of the output begin at multiples of
// N where `row_length` is one, else parts half as long are tried. Whole parts are inside or outside.
template <class Hint, int N, int VEC, class T>
__device__ __forceinline__ void store_columns(T* to, const Vector<T, VEC>& values, int left, int row_length) {
  if constexpr (N > 1) {
    if (row_length % N != 0) {
      store_columns<Hint, N / 2>(to, values, left, row_length);
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < VEC; j += N) {
    Vector<T, N> part;
#pragma unroll
    for (int i = 0; i < N; ++i) part.at[i] = values.at[j + i];
    if (j < left) Hint::template store<N>(to + j, part);
  }
}

}  // namespace coldforge
