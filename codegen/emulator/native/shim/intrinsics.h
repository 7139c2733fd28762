// SPDX-License-Identifier: Apache-2.0
// CUDA's intrinsics that touch one thread only: rounding, bits, loads and stores with a cache hint.
#pragma once

// The compiler is told not to contract, so plain operators round as these promise.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / sqrt(static_cast<double>(a))); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// The fast ones are as exact here as the others.
inline float __expf(float a) { return expf(a); }
inline float __exp10f(float a) { return powf(10.0f, a); }
inline float __logf(float a) { return logf(a); }
inline float __log2f(float a) { return log2f(a); }
inline float __log10f(float a) { return log10f(a); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float a) { return sinf(a); }
inline float __cosf(float a) { return cosf(a); }
inline float __tanf(float a) { return tanf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }

inline int __float_as_int(float a) { return coldforge_emulator::bits_as<int>(a); }
inline unsigned __float_as_uint(float a) { return coldforge_emulator::bits_as<unsigned>(a); }
inline float __int_as_float(int a) { return coldforge_emulator::bits_as<float>(a); }
inline float __uint_as_float(unsigned a) { return coldforge_emulator::bits_as<float>(a); }
inline long long __double_as_longlong(double a) { return coldforge_emulator::bits_as<long long>(a); }
inline double __longlong_as_double(long long a) { return coldforge_emulator::bits_as<double>(a); }

// What an int cannot hold becomes the nearest int, and NaN 0.
inline int __float2int_rz(float a) {
  if (a != a) return 0;
  return a >= 0x1p31f ? 0x7fffffff : a < -0x1p31f ? -0x7fffffff - 1 : static_cast<int>(a);
}
inline int __float2int_rn(float a) { return __float2int_rz(rintf(a)); }
inline int __float2int_rd(float a) { return __float2int_rz(floorf(a)); }
inline int __float2int_ru(float a) { return __float2int_rz(ceilf(a)); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }

inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz(static_cast<unsigned>(a)); }
inline int __clzll(long long a) { return a == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(a)); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline unsigned __brev(unsigned a) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (a >> bit & 1u) << (31 - bit);
  return reversed;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

// A load or store with a cache hint is a plain one: the compiler's checks see it.
#define COLDFORGE_LOAD(NAME)              \
  template <class T>                      \
  __forceinline__ T NAME(const T* from) { \
    return *from;                         \
  }
#define COLDFORGE_STORE(NAME)                 \
  template <class T>                          \
  __forceinline__ void NAME(T* to, T value) { \
    *to = value;                              \
  }
COLDFORGE_LOAD(__ldg)
COLDFORGE_LOAD(__ldca)
COLDFORGE_LOAD(__ldcg)
COLDFORGE_LOAD(__ldcs)
COLDFORGE_LOAD(__ldcv)
COLDFORGE_LOAD(__ldlu)
COLDFORGE_STORE(__stcg)
COLDFORGE_STORE(__stcs)
COLDFORGE_STORE(__stwb)
COLDFORGE_STORE(__stwt)
#undef COLDFORGE_LOAD
#undef COLDFORGE_STORE

inline size_t __cvta_generic_to_shared(const void* pointer) { return emulator_shared_address(pointer); }
inline long long clock64() { return static_cast<long long>(emulator_clock()); }
inline void __nanosleep(unsigned) { emulator_yield(); }
inline void __trap() { __builtin_trap(); }
