// SPDX-License-Identifier: Apache-2.0
// The functions that printed expressions call: whole numbers, with Python's rounding.
#pragma once

#include <cstdint>

namespace coldforge {
namespace {

// Rounds towards minus infinity, as Python's // does.
[[maybe_unused]] constexpr int64_t floor_div(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? quotient - 1 : quotient;
}

[[maybe_unused]] constexpr int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }

[[maybe_unused]] constexpr int64_t ceil_div_int(int64_t a, int64_t b) { return -floor_div(-a, b); }

[[maybe_unused]] constexpr int64_t round_up_int(int64_t a, int64_t b) { return ceil_div_int(a, b) * b; }

[[maybe_unused]] constexpr int64_t min_int(int64_t a, int64_t b) { return b < a ? b : a; }

[[maybe_unused]] constexpr int64_t max_int(int64_t a, int64_t b) { return a < b ? b : a; }

[[maybe_unused]] constexpr int64_t abs_int(int64_t a) { return a < 0 ? -a : a; }

}  // namespace
}  // namespace coldforge
