// SPDX-License-Identifier: Apache-2.0
// Copies of long pieces by Hopper's copy engine, and the barriers in shared memory that tell when pieces have
// come. All PTX is here, in names that the emulator has twins of.
#pragma once

#include "coldforge/memory.cuh"

namespace coldforge {

#if defined(__CUDACC__)

// Ordinary writes to shared memory before it are seen by matrix products and bulk copies that another thread
// begins after a barrier.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A barrier in shared memory, 8 bytes at a multiple of 8. A phase of it ends once `count` threads have
// arrived and all bytes that they have announced are there; then the next begins, of the same count.
__device__ __forceinline__ void mbarrier_init(u64* barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}

// Stands between this thread's mbarrier_init and the __syncthreads() behind which the barrier is used.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and announces `bytes` bytes of bulk_load to this phase.
__device__ __forceinline__ void mbarrier_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Arrives: what this thread has done is seen by who waits for the phase.
__device__ __forceinline__ void mbarrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits for the end of the phase of that parity: 0 for the first, 1 for the second, 0 again for the third.
// The phase before it must have been waited for: of the phase before the first, whose parity is 1, the end is
// past.
__device__ __forceinline__ void mbarrier_wait(u64* barrier, u32 parity) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra "
      "again;}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Begins a copy from global to shared memory of `bytes` bytes, a multiple of 16, as both places are; the
// barrier's phase counts them when they are there.
__device__ __forceinline__ void bulk_load(void* to, const void* from, u32 bytes, u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Begins a copy from shared to global memory of `bytes` bytes, a multiple of 16, as both places are.
__device__ __forceinline__ void bulk_store(void* to, const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}

// Closes the group of all of this thread's bulk_store since the last call.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but PENDING of this thread's newest groups have read what they copy.
template <int PENDING = 0>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

#endif  // __CUDACC__

}  // namespace coldforge
