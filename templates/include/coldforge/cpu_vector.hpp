// SPDX-License-Identifier: Apache-2.0
// Short vectors by the compiler's vector extension, and loops that are unrolled for certain.
//
// All of it has internal linkage: variants of several instruction-set levels are linked into one library, and
// a function that the linker could merge across them would run AVX-512 code on a machine without it.
#pragma once

#include <math.h>
#include <stdint.h>

#define COLDFORGE_INLINE inline __attribute__((always_inline))
#define COLDFORGE_INLINED __attribute__((always_inline))  // after the parameters of a lambda

namespace coldforge {
namespace {

#if defined(__AVX512F__)
constexpr int NATIVE_VECTOR_BYTES = 64;
#elif defined(__AVX__)
constexpr int NATIVE_VECTOR_BYTES = 32;
#else
constexpr int NATIVE_VECTOR_BYTES = 16;
#endif

template <class T>
constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
constexpr T larger(T a, T b) {
  return a > b ? a : b;
}
template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <bool CONDITION, class A, class B>
struct Select {
  using type = A;
};
template <class A, class B>
struct Select<false, A, B> {
  using type = B;
};

// LANES elements of T in one register.
template <class T, int LANES>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * LANES)));
};
template <class T, int LANES>
using Vector = typename VectorOf<T, LANES>::type;

// LANES neighbours at any address, converted from From to To.
template <class To, int LANES, class From>
COLDFORGE_INLINE Vector<To, LANES> load(const From* from) {
  Vector<From, LANES> value;
  __builtin_memcpy(&value, from, sizeof(value));
  return __builtin_convertvector(value, Vector<To, LANES>);
}

template <class To, int LANES, class From>
COLDFORGE_INLINE void store(To* to, Vector<From, LANES> value) {
  const Vector<To, LANES> converted = __builtin_convertvector(value, Vector<To, LANES>);
  __builtin_memcpy(to, &converted, sizeof(converted));
}

template <class T, int LANES>
COLDFORGE_INLINE Vector<T, LANES> broadcast(T value) {
  return value - Vector<T, LANES>{};  // minus +0 changes no value, not even -0
}

// A loop index that is a constant expression.
template <int VALUE>
struct Constant {
  constexpr operator int() const { return VALUE; }
};

// body(Constant<0>), ..., body(Constant<COUNT - 1>): an array indexed by it stays in registers.
template <int COUNT, int INDEX = 0, class Body>
COLDFORGE_INLINE void unroll(const Body& body) {
  if constexpr (INDEX < COUNT) {
    body(Constant<INDEX>{});
    unroll<COUNT, INDEX + 1>(body);
  }
}

// The same as a loop, which the compiler is told to leave rolled, or unrolled if UNROLLED.
template <int COUNT, bool UNROLLED, class Body>
COLDFORGE_INLINE void repeat(const Body& body) {
  if constexpr (UNROLLED) {
    unroll<COUNT>(body);
  } else {
#pragma GCC unroll 1
    for (int index = 0; index < COUNT; ++index) body(index);
  }
}

}  // namespace
}  // namespace coldforge
