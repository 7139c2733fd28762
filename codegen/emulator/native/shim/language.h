// SPDX-License-Identifier: Apache-2.0
// CUDA's words for g++. `__shared__` has no meaning here: declarations with it are rewritten before the
// compiler sees them.
#pragma once

#include "../runtime/interface.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __managed__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))

using size_t = decltype(sizeof(0));

namespace coldforge_emulator {

// The bits of a value as those of another type of its size.
template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits of another size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// Sums and differences that wrap around, as the hardware's do.
template <class T>
inline T wrapped_sum(T a, T b) {
  return a + b;
}
template <class T>
inline T wrapped_difference(T a, T b) {
  return a - b;
}
inline int wrapped_sum(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
}
inline int wrapped_difference(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) - static_cast<unsigned>(b));
}

// `T* name = dynamic_shared();` for `extern __shared__ T name[];`
struct AnyPointer {
  void* pointer;
  template <class T>
  operator T*() const {
    return static_cast<T*>(pointer);
  }
};
inline AnyPointer dynamic_shared() { return {emulator_dynamic_shared()}; }

// The object of one `__shared__` declaration; each type that a template function gives it is another one.
template <class T, int DECLARATION>
struct SharedKey {
  static char key;
};
template <class T, int DECLARATION>
char SharedKey<T, DECLARATION>::key;

template <class T, int DECLARATION>
inline T& static_shared(const char* name, unsigned long alignment) {
  const unsigned long own = alignof(T);
  const char* key = &SharedKey<T, DECLARATION>::key;
  return *static_cast<T*>(emulator_static_shared(key, name, sizeof(T), own > alignment ? own : alignment));
}

}  // namespace coldforge_emulator

#define COLDFORGE_EMULATOR_SITE \
  EmulatorSite { __FILE__, __LINE__, __COUNTER__ }
