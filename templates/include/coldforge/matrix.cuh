// SPDX-License-Identifier: Apache-2.0
// Matrix products of a warp on tensor cores, and what feeds them: fragments of 16-bit floats from shared
// memory, pairs of floats rounded to such. All PTX is here, in names that the emulator has twins of.
#pragma once

#include "coldforge/memory.cuh"

namespace coldforge {

#if defined(__CUDACC__)

// Four 8x8 matrices of 16-bit elements from shared memory. Lane 8 * i + j gives the place of row j of matrix
// i, 16 bytes at a multiple of 16; `part[i]` becomes elements 2 * (lane % 4) and the next of row lane / 4 of
// matrix i.
__device__ __forceinline__ void load_matrices(u32 (&part)[4], const void* base, u32 offset) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3])
               : "r"(shared_address(base) + offset)
               : "memory");
}

// The inverse: lane 8 * i + j gives the place of row j of matrix i. For sm_90 and later.
__device__ __forceinline__ void store_matrices(void* base, u32 offset, const u32 (&part)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(base) + offset),
      "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3])
      : "memory");
}

// sum += a * b for a of 16x16, b of 16x8 halves, sum of 16x8 floats. With g = lane / 4, t = lane % 4, a lane
// holds of a: rows g and g + 8 in turn, columns 2t and the next in a0 and a1, those 8 further in a2 and a3;
// of b: rows 2t and the next in b0, those 8 further in b1, column g; of sum: columns 2t and the next of row
// g, then of row g + 8.
__device__ __forceinline__ void multiply_halves(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                                u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same for a of 16x8 and b of 8x8.
__device__ __forceinline__ void multiply_halves(float (&sum)[4], u32 a0, u32 a1, u32 b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// The same of bfloats.
__device__ __forceinline__ void multiply_bfloats(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                                 u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_bfloats(float (&sum)[4], u32 a0, u32 a1, u32 b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, "
      "%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// Two floats rounded to halves, the first in the low bits; and back.
__device__ __forceinline__ u32 pack_halves(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float low_half(u32 pair) {
  float value;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(value) : "r"(pair));
  return value;
}

__device__ __forceinline__ float high_half(u32 pair) {
  float value;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(pair));
  return value;
}

// The same word of a warp's lanes, of which no compiler knows how it came to be: it is kept in a register of
// its own instead of being computed again in every turn of a loop.
__device__ __forceinline__ u32 held(u32 word) { return __shfl_xor_sync(0xffffffffu, word, 1); }

// Each lane's word, in the same way.
__device__ __forceinline__ u32 apart(u32 word) { return __shfl_sync(0xffffffffu, word, threadIdx.x % 32); }

// A word that is the same in all lanes: the compiler learns that.
__device__ __forceinline__ u32 uniform(u32 word) { return __shfl_sync(0xffffffffu, word, 0); }

#endif  // __CUDACC__

// A structure of whole words that is kept in registers: an epilogue, say, whose reciprocals would otherwise
// be computed again in every turn of a loop.
template <class T, bool EMPTY = sizeof(T) < 4>
struct Held {
  alignas(T) u32 words[sizeof(T) / 4];

  __device__ __forceinline__ explicit Held(const T& value) {
#pragma unroll
    for (int i = 0; i < int(sizeof(T) / 4); ++i) words[i] = held(reinterpret_cast<const u32*>(&value)[i]);
  }
  __device__ __forceinline__ const T& get() const { return *reinterpret_cast<const T*>(words); }
};

// One without a member has no word to keep: NVRTC, unlike g++, refuses an array of none.
template <class T>
struct Held<T, true> {
  T value;

  __device__ __forceinline__ explicit Held(const T& value) : value(value) {}
  __device__ __forceinline__ const T& get() const { return value; }
};

}  // namespace coldforge
