// SPDX-License-Identifier: Apache-2.0
// The mathematical functions that CUDA has without a header: those of the C library, with CUDA's overloads.
// They are declared here one by one because <cmath> takes half of a small kernel's compile time.
#pragma once

#define COLDFORGE_MATH_1(NAME)                    \
  extern "C" double NAME(double) noexcept(true);  \
  extern "C" float NAME##f(float) noexcept(true); \
  inline float NAME(float x) { return NAME##f(x); }

#define COLDFORGE_MATH_2(NAME)                           \
  extern "C" double NAME(double, double) noexcept(true); \
  extern "C" float NAME##f(float, float) noexcept(true); \
  inline float NAME(float x, float y) { return NAME##f(x, y); }

COLDFORGE_MATH_1(acos)
COLDFORGE_MATH_1(acosh)
COLDFORGE_MATH_1(asin)
COLDFORGE_MATH_1(asinh)
COLDFORGE_MATH_1(atan)
COLDFORGE_MATH_1(atanh)
COLDFORGE_MATH_1(cbrt)
COLDFORGE_MATH_1(ceil)
COLDFORGE_MATH_1(cos)
COLDFORGE_MATH_1(cosh)
COLDFORGE_MATH_1(erf)
COLDFORGE_MATH_1(erfc)
COLDFORGE_MATH_1(exp)
COLDFORGE_MATH_1(exp2)
COLDFORGE_MATH_1(expm1)
COLDFORGE_MATH_1(fabs)
COLDFORGE_MATH_1(floor)
COLDFORGE_MATH_1(lgamma)
COLDFORGE_MATH_1(log)
COLDFORGE_MATH_1(log10)
COLDFORGE_MATH_1(log1p)
COLDFORGE_MATH_1(log2)
COLDFORGE_MATH_1(logb)
COLDFORGE_MATH_1(nearbyint)
COLDFORGE_MATH_1(rint)
COLDFORGE_MATH_1(round)
COLDFORGE_MATH_1(sin)
COLDFORGE_MATH_1(sinh)
COLDFORGE_MATH_1(sqrt)
COLDFORGE_MATH_1(tan)
COLDFORGE_MATH_1(tanh)
COLDFORGE_MATH_1(tgamma)
COLDFORGE_MATH_1(trunc)
COLDFORGE_MATH_2(atan2)
COLDFORGE_MATH_2(copysign)
COLDFORGE_MATH_2(fdim)
COLDFORGE_MATH_2(fmod)
COLDFORGE_MATH_2(hypot)
COLDFORGE_MATH_2(nextafter)
COLDFORGE_MATH_2(pow)
COLDFORGE_MATH_2(remainder)
#undef COLDFORGE_MATH_1
#undef COLDFORGE_MATH_2

extern "C" double fma(double, double, double) noexcept(true);
extern "C" float fmaf(float, float, float) noexcept(true);
extern "C" double ldexp(double, int) noexcept(true);
extern "C" float ldexpf(float, int) noexcept(true);
extern "C" double frexp(double, int*) noexcept(true);
extern "C" float frexpf(float, int*) noexcept(true);
extern "C" int abs(int) noexcept(true);
extern "C" long long llabs(long long) noexcept(true);
extern "C" long int lrintf(float) noexcept(true);
extern "C" long long int llrintf(float) noexcept(true);

inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float ldexp(float x, int exponent) { return ldexpf(x, exponent); }
inline float frexp(float x, int* exponent) { return frexpf(x, exponent); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
inline long long abs(long long x) { return llabs(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }

// As in PTX: with a NaN on one side, the other side; -0 is less than 0. (The C library's leave the zeros
// open.)
#define COLDFORGE_LESSER_GREATER(T, LESSER, GREATER)                                                \
  inline T LESSER(T x, T y) { return x < y || y != y || (x == y && __builtin_signbit(x)) ? x : y; } \
  inline T GREATER(T x, T y) { return y < x || y != y || (x == y && __builtin_signbit(y)) ? x : y; }
COLDFORGE_LESSER_GREATER(float, fminf, fmaxf)
COLDFORGE_LESSER_GREATER(double, fmin, fmax)
COLDFORGE_LESSER_GREATER(float, fmin, fmax)
#undef COLDFORGE_LESSER_GREATER

inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isnan(double x) { return __builtin_isnan(x); }
inline bool signbit(float x) { return __builtin_signbit(x); }
inline bool signbit(double x) { return __builtin_signbit(x); }

// min and max of each pair of types that CUDA takes; a mixed pair is compared in the wider or unsigned one.
#define COLDFORGE_MIN_MAX(R, A, B)                                                        \
  inline constexpr R min(A a, B b) {                                                      \
    return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
  }                                                                                       \
  inline constexpr R max(A a, B b) {                                                      \
    return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(b) : static_cast<R>(a); \
  }
COLDFORGE_MIN_MAX(int, int, int)
COLDFORGE_MIN_MAX(unsigned, unsigned, unsigned)
COLDFORGE_MIN_MAX(unsigned, int, unsigned)
COLDFORGE_MIN_MAX(unsigned, unsigned, int)
COLDFORGE_MIN_MAX(long, long, long)
COLDFORGE_MIN_MAX(unsigned long, unsigned long, unsigned long)
COLDFORGE_MIN_MAX(long long, long long, long long)
COLDFORGE_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
COLDFORGE_MIN_MAX(unsigned long long, long long, unsigned long long)
COLDFORGE_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef COLDFORGE_MIN_MAX

inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
