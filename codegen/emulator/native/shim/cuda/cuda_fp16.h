// SPDX-License-Identifier: Apache-2.0
// In the place of CUDA's header of this name.
#pragma once

#include "../half.h"

struct __half
    : coldforge_emulator::Short<__half, coldforge_emulator::half_bits, coldforge_emulator::half_value> {
  using Short::Short;
  __half() = default;
};
struct alignas(4) __half2 {
  __half x, y;
};
using half = __half;
using half2 = __half2;

inline float __half2float(__half value) { return value; }
inline __half __float2half(float value) { return __half(value); }
inline __half __float2half_rn(float value) { return __half(value); }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 value) { return __floats2half2_rn(value.x, value.y); }
inline float2 __half22float2(__half2 value) { return {value.x, value.y}; }
inline float __low2float(__half2 value) { return value.x; }
inline float __high2float(__half2 value) { return value.y; }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline __half __ushort_as_half(unsigned short bits) { return coldforge_emulator::bits_as<__half>(bits); }
