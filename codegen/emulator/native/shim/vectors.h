// SPDX-License-Identifier: Apache-2.0
// CUDA's short vectors, aligned as CUDA aligns them, and the launch variables.
#pragma once

#define COLDFORGE_VECTORS(T, NAME, ALIGN2, ALIGN4)                             \
  struct NAME##1 { T x; };                                                     \
  struct alignas(ALIGN2) NAME##2 { T x, y; };                                  \
  struct NAME##3 { T x, y, z; };                                               \
  struct alignas(ALIGN4) NAME##4 { T x, y, z, w; };                            \
  inline constexpr NAME##1 make_##NAME##1(T x) { return {x}; }                 \
  inline constexpr NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }         \
  inline constexpr NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; } \
  inline constexpr NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

COLDFORGE_VECTORS(signed char, char, 2, 4)
COLDFORGE_VECTORS(unsigned char, uchar, 2, 4)
COLDFORGE_VECTORS(short, short, 4, 8)
COLDFORGE_VECTORS(unsigned short, ushort, 4, 8)
COLDFORGE_VECTORS(int, int, 8, 16)
COLDFORGE_VECTORS(unsigned int, uint, 8, 16)
COLDFORGE_VECTORS(long long, longlong, 16, 16)
COLDFORGE_VECTORS(unsigned long long, ulonglong, 16, 16)
COLDFORGE_VECTORS(float, float, 8, 16)
COLDFORGE_VECTORS(double, double, 16, 16)
#undef COLDFORGE_VECTORS

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
};

// The scheduler sets these each time it lets a thread run.
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

extern "C" __attribute__((visibility("default"))) inline __attribute__((used)) EmulatorVariables
emulator_variables() {
  return {&threadIdx.x, &blockIdx.x, &blockDim.x, &gridDim.x};
}
