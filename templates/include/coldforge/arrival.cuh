// SPDX-License-Identifier: Apache-2.0
// Blocks of one launch hand results to the last of them: all write and count up; who completes the count
// reads what the others wrote.
#pragma once

#include "coldforge/types.cuh"

namespace coldforge {

#if defined(__CUDACC__)

// Adds to a counter, after all that this thread wrote, or saw written before a barrier, is visible to the
// device. Returns what the counter was.
__device__ __forceinline__ u32 add_release(u32* counter, u32 count) {
  u32 before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(count)
               : "memory");
  return before;
}

// What was visible when a counter was read is visible to what follows, in this thread and behind a barrier.
__device__ __forceinline__ void fence_acquire() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

#else

inline u32 add_release(u32* counter, u32 count) {
  __threadfence();
  return atomicAdd(counter, count);
}

inline void fence_acquire() { __threadfence(); }

#endif  // __CUDACC__

// True for the one caller that brings the counter to `total`; it then sees what all others wrote. Only that
// one needs the second fence, which empties a cache that its neighbours use.
__device__ __forceinline__ bool arrive(u32* counter, u32 count, u32 total) {
  const bool last = add_release(counter, count) + count == total;
  if (last) fence_acquire();
  return last;
}

}  // namespace coldforge
