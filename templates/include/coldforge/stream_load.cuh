// SPDX-License-Identifier: Apache-2.0
// Loads with a cache hint, for memory that is read once, and loads of what another block has just written.
#pragma once

#include "coldforge/memory.cuh"

namespace coldforge {

// The bits of N neighbouring elements, moved as one word.
template <int N, class T>
union VectorBits {
  typename WordOf<sizeof(T) * N>::type word;
  Vector<T, N> vector;

  __device__ __forceinline__ VectorBits() {}
};

// As any other read-only data.
struct LoadPlain {
  template <int N, class T>
  __device__ __forceinline__ static Vector<T, N> load(const T* from) {
    return load_readonly<N>(from);
  }
};

// First to be evicted, from both levels of cache.
struct LoadStreaming {
  template <int N, class T>
  __device__ __forceinline__ static Vector<T, N> load(const T* from) {
    VectorBits<N, T> bits;
    bits.word = __ldcs(reinterpret_cast<decltype(bits.word)*>(const_cast<T*>(from)));
    return bits.vector;
  }
};

// Through the L2 cache alone: right after an arrival, where the L1 cache may hold what was there before.
template <class T>
__device__ __forceinline__ T load_written(const T* from) {
  return __ldcg(from);
}

#if defined(__CUDACC__)

__device__ __forceinline__ void load_no_allocate(uint4& word, const void* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from));
}
__device__ __forceinline__ void load_no_allocate(uint2& word, const void* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(word.x), "=r"(word.y)
               : "l"(from));
}
__device__ __forceinline__ void load_no_allocate(u32& word, const void* from) {
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(word) : "l"(from));
}
__device__ __forceinline__ void load_no_allocate(unsigned short& word, const void* from) {
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(word) : "l"(from));
}

// Asks for the line at `at` to be in the L2 cache before long.
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

#else

inline void prefetch_l2(const void*) {}

template <class Word>
inline void load_no_allocate(Word& word, const void* from) {
  word = *static_cast<const Word*>(from);
}

#endif  // __CUDACC__

// Leaves no line in the L1 cache.
struct LoadNoAllocate {
  template <int N, class T>
  __device__ __forceinline__ static Vector<T, N> load(const T* from) {
    VectorBits<N, T> bits;
    load_no_allocate(bits.word, from);
    return bits.vector;
  }
};

}  // namespace coldforge
