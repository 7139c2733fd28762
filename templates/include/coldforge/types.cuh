// SPDX-License-Identifier: Apache-2.0
// Integers, short vectors and element conversion. Needs no header of the C++ library: NVRTC has none.
#pragma once

namespace coldforge {

using i64 = long long;
using u64 = unsigned long long;
using u32 = unsigned int;

__host__ __device__ constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

__host__ __device__ constexpr int greatest_divisor(int a, int b) {
  return b == 0 ? a : greatest_divisor(b, a % b);
}

// An unsigned word of a vector's size: what one load or store instruction moves.
template <int BYTES>
struct WordOf;
template <>
struct WordOf<2> {
  using type = unsigned short;
};
template <>
struct WordOf<4> {
  using type = unsigned int;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<16> {
  using type = uint4;
};

// N neighbouring elements, aligned so that they move in one instruction.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};

// float and the 16-bit types (where their header is included) to the type that arithmetic is done in, and
// back.
template <class T>
__device__ __forceinline__ float to_float(T value) {
  return static_cast<float>(value);
}

template <class T>
__device__ __forceinline__ T from_float(float value) {
  return static_cast<T>(value);
}

}  // namespace coldforge
