// SPDX-License-Identifier: Apache-2.0
// Every access that is more than a plain C++ load or store, by name: vector accesses, read-only loads,
// cp.async. All PTX is here, under __CUDACC__, so that other back ends can give the same names a twin.
#pragma once

#include "coldforge/types.cuh"

namespace coldforge {

// True when `pointer` may be accessed as vectors of N elements.
template <int N, class T>
__device__ __forceinline__ bool is_aligned(const T* pointer) {
  return (reinterpret_cast<u64>(pointer) & (sizeof(T) * N - 1)) == 0;
}

// N neighbouring elements in one access; `from` is aligned to all of them.
template <int N, class T>
__device__ __forceinline__ Vector<T, N> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}

template <int N, class T>
__device__ __forceinline__ void store_vector(T* to, const Vector<T, N>& value) {
  *reinterpret_cast<Vector<T, N>*>(to) = value;
}

// The same through the read-only path: nobody writes that memory while the kernel runs.
template <int N, class T>
__device__ __forceinline__ Vector<T, N> load_readonly(const T* from) {
  using Word = typename WordOf<sizeof(T) * N>::type;
  union {
    Word word;
    Vector<T, N> vector;
  } both;
  both.word = __ldg(reinterpret_cast<const Word*>(from));
  return both.vector;
}

#if defined(__CUDACC__)

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Copies BYTES (4, 8 or 16) from global to shared memory in the background; writes zeros, and reads nothing,
// where `valid` is false. Both addresses are multiples of BYTES.
template <int BYTES>
__device__ __forceinline__ void cp_async(void* to, const void* from, bool valid) {
  const int wanted = valid ? BYTES : 0;
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(wanted)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from),
                 "n"(BYTES), "r"(wanted)
                 : "memory");
  }
}

// Closes the group of all copies begun since the last call.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's newest groups are still on their way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Moves 16 bytes from shared to global memory where a >= b, without a branch; with STREAMING the caches give
// them up first.
template <bool STREAMING>
__device__ __forceinline__ void move_result(void* to, const void* from, int a, int b) {
  if constexpr (STREAMING) {
    asm volatile(
        "{.reg .pred moves; .reg .b32 x, y, z, w; setp.ge.s32 moves, %2, %3; "
        "@moves ld.shared.v4.b32 {x, y, z, w}, [%1]; @moves st.global.cs.v4.b32 [%0], {x, y, z, w};}" ::"l"(
            to),
        "r"(shared_address(from)), "r"(a), "r"(b)
        : "memory");
  } else {
    asm volatile(
        "{.reg .pred moves; .reg .b32 x, y, z, w; setp.ge.s32 moves, %2, %3; "
        "@moves ld.shared.v4.b32 {x, y, z, w}, [%1]; @moves st.global.v4.b32 [%0], {x, y, z, w};}" ::"l"(to),
        "r"(shared_address(from)), "r"(a), "r"(b)
        : "memory");
  }
}

// A barrier of `threads` of the block's threads, whole warps: 1 <= id <= 15, as __syncthreads() is number 0.
// Those that sync wait for all of them; those that arrive wait for nobody.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#endif  // __CUDACC__

}  // namespace coldforge
