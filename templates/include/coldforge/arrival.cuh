// SPDX-License-Identifier: Apache-2.0
// Blocks of one launch hand results to the last of them: all write, fence and count up; who completes the
// count reads what the others wrote.
#pragma once

#include "coldforge/types.cuh"

namespace coldforge {

// Makes what this thread wrote, or saw written before a barrier, visible to the device before what follows.
__device__ __forceinline__ void device_fence() { __threadfence(); }

// Adds `count` to the counter; true for the one caller that brings it to `total`.
__device__ __forceinline__ bool arrive(u32* counter, u32 count, u32 total) {
  return atomicAdd(counter, count) + count == total;
}

}  // namespace coldforge
