# SPDX-License-Identifier: Apache-2.0
"""A convolution with its epilogue by hand in C++, correct changes of it, and faults."""

from __future__ import annotations

from coldforge.codegen.problem import Problem
from coldforge.codegen.space import Launch
from hand_kernels import AGAIN, CHANGED, OUTSIDE, WRONG, Fault, HandKernel, Variant

TILE = 8
GOOD = """
#pragma GCC optimize("O1")  // there are many to compile
#include <cstdint>

namespace {

struct Args {
  const float* x;
  const float* weight;
  const float* bias;
  float* y;
  int64_t N, H, W, H_out, W_out;
  double divisor, negative_slope;
};

constexpr int64_t C_IN = 4, C_OUT = 6, R = 3, S = 3, PAD = 1, TILE = 8;

float pixel(const Args& a, int64_t n, int64_t c, int64_t i, int64_t j) {
  if (i < 0 || i >= a.H || j < 0 || j >= a.W) return 0.0f;
  return a.x[((n * C_IN + c) * a.H + i) * a.W + j];
}

// v with the last `drop` bits of its significand rounded away: for the faults that lose precision.
[[maybe_unused]] float rounded(float v, int drop) {
  uint32_t word;
  __builtin_memcpy(&word, &v, 4);
  word = (word + (1u << (drop - 1))) & ~((1u << drop) - 1);
  __builtin_memcpy(&v, &word, 4);
  return v;
}

float epilogue(float v, const Args& a) {
  v = v / float(a.divisor);
  return v > 0.0f ? v : v * float(a.negative_slope);
}

float convolve(const Args& a, int64_t n, int64_t k, int64_t i, int64_t j) {
  float total = 0.0f;
  for (int64_t c = 0; c < C_IN; ++c)
    for (int64_t r = 0; r < R; ++r)
      for (int64_t s = 0; s < S; ++s)
        total += pixel(a, n, c, i + r - PAD, j + s - PAD) * a.weight[((k * C_IN + c) * R + r) * S + s];
  return total + a.bias[k];
}

}  // namespace

extern "C" __attribute__((visibility("default")))
void coldforge_kernel(int64_t begin, int64_t end, void* args) {
  const Args& a = *static_cast<const Args*>(args);
  const int64_t bands = (a.H_out + TILE - 1) / TILE;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t band = unit % bands, k = unit / bands % C_OUT, n = unit / bands / C_OUT;
    const int64_t first = band * TILE, last = first + TILE < a.H_out ? first + TILE : a.H_out;
    float* plane = a.y + (n * C_OUT + k) * a.H_out * a.W_out;
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < a.W_out; ++j) {
        const float v = convolve(a, n, k, i, j);
        plane[i * a.W_out + j] = epilogue(v, a);
      }
  }
}
"""


def _launch(problem: Problem) -> Launch:
    bands = -(-problem.values["H_out"] // TILE)
    return Launch(units=problem.dims["N"] * problem.dims["C_out"] * bands, grain=1)


KERNEL = HandKernel(
    operator="conv2d_divide_leaky_relu",
    shape={"N": 2, "H": 20, "W": 22, "C_in": 4, "C_out": 6, "padding": 1},
    text=GOOD,
    launch=_launch,
)

# Changes (old, new) of GOOD that keep it correct.
_VARIANTS: dict[str, list[tuple[str, str]]] = {
    "as it is": [],
    "double sums": [("float total = 0.0f;", "double total = 0.0;")],
    "reciprocal": [("v = v / float(a.divisor);", "v = v * (1.0f / float(a.divisor));")],
    "channels backwards": [("c = 0; c < C_IN; ++c", "c = C_IN - 1; c >= 0; --c")],
    "taps backwards": [("s = 0; s < S; ++s", "s = S - 1; s >= 0; --s")],
    "bias first": [
        ("float total = 0.0f;", "float total = a.bias[k];"),
        ("return total + a.bias[k];", "return total;"),
    ],
    "compensated sum": [
        ("float total = 0.0f;", "float total = 0.0f, low = 0.0f;"),
        ("total += pixel", "const float term = pixel"),
        (
            "+ r) * S + s];",
            "+ r) * S + s], sum = total + term;"
            " low += __builtin_isfinite(sum) ? term - (sum - total) : 0.0f; total = sum; }",
        ),
        ("for (int64_t s = 0; s < S; ++s)", "for (int64_t s = 0; s < S; ++s) {"),
        ("return total + a.bias[k];", "return total + low + a.bias[k];"),
    ],
}
ROWS = "for (int64_t i = first; i < last; ++i)"
STORE = "plane[i * a.W_out + j] = epilogue(v, a);"
READ = "return a.x[((n * C_IN + c) * a.H + i) * a.W + j];"
EDGE = "if (i < 0 || i >= a.H || j < 0 || j >= a.W) return 0.0f;"
_FAULTS = {
    "zeros": (STORE, "plane[i * a.W_out + j] = 0.0f;", WRONG),
    "stale output": (STORE, "if (v > 1e30f) plane[i * a.W_out + j] = epilogue(v, a);", WRONG),
    "adds to the output": (STORE, "plane[i * a.W_out + j] += epilogue(v, a);", WRONG),
    "last band dropped": (
        ROWS,
        "for (int64_t i = first; i < (band > 0 && band == bands - 1 ? first : last); ++i)",
        WRONG,
    ),
    "last band not clipped": ("first + TILE < a.H_out ? first + TILE : a.H_out", "first + TILE", OUTSIDE),
    "last row of a band skipped": (
        ROWS,
        "for (int64_t i = first; i < last - (last == first + TILE); ++i)",
        WRONG,
    ),
    "columns in fours, no rest": (
        "j < a.W_out; ++j",
        "j < (a.W_out < 4 ? a.W_out : a.W_out / 4 * 4); ++j",
        WRONG,
    ),
    "columns in fours, past the end": ("j < a.W_out; ++j", "j < (a.W_out + 3) / 4 * 4; ++j", ""),
    "columns over 256 skipped": ("j < a.W_out; ++j", "j < (a.W_out < 256 ? a.W_out : 256); ++j", WRONG),
    "only the first sample": ("n = unit / bands / C_OUT;", "n = 0;", WRONG),
    "halo one short": (EDGE, "if (i < 0 || i >= a.H || j < 0 || j >= a.W - 1) return 0.0f;", WRONG),
    "halo clamped, not zero": (
        EDGE,
        "i = i < 0 ? 0 : i < a.H ? i : a.H - 1; j = j < 0 ? 0 : j < a.W ? j : a.W - 1;",
        WRONG,
    ),
    "halo wraps into the next row": (EDGE, "if (i < 0 || i >= a.H) return 0.0f;", WRONG),
    "halo read and multiplied by zero": (
        EDGE,
        "const float inside = i >= 0 && i < a.H && j >= 0 && j < a.W;"
        " if (!inside) return 0.0f * a.x[((n * C_IN + c) * a.H + i) * a.W + j];",
        WRONG,
    ),
    "image width for its height": (READ, "return a.x[((n * C_IN + c) * a.W + i) * a.W + j];", WRONG),
    "one channel skipped": (
        "for (int64_t c = 0; c < C_IN; ++c)",
        "for (int64_t c = 1; c < C_IN; ++c)",
        WRONG,
    ),
    "last channel block skipped": ("c < C_IN; ++c)", "c < C_IN - 1; ++c)", WRONG),
    "channel counted twice": (
        "for (int64_t c = 0; c < C_IN; ++c)",
        "for (int64_t c = 0, q = 0; q <= C_IN; c = q++ % C_IN)",
        WRONG,
    ),
    "last tap skipped": ("s < S; ++s)", "s < S - (r == R - 1); ++s)", WRONG),
    "taps swapped": ("(k * C_IN + c) * R + r) * S + s];", "(k * C_IN + c) * R + s) * S + r];", WRONG),
    "taps mirrored": ("i + r - PAD, j + s - PAD", "i - r + PAD, j - s + PAD", WRONG),
    "weights of the next filter": ("a.weight[((k *", "a.weight[(((k + 1) % C_OUT *", WRONG),
    "bias off by one": ("a.bias[k]", "a.bias[(k + 1) % C_OUT]", WRONG),
    "bias past the end": ("a.bias[k]", "a.bias[k + 1]", WRONG),
    "no bias": ("return total + a.bias[k];", "return total;", WRONG),
    "bias after the epilogue": (
        STORE,
        "plane[i * a.W_out + j] = epilogue(v - a.bias[k], a) + a.bias[k];",
        WRONG,
    ),
    "bias not divided": ("return total + a.bias[k];", "return total + a.bias[k] * float(a.divisor);", WRONG),
    "no division": ("v = v / float(a.divisor);", "", WRONG),
    "scalars swapped": ("double divisor, negative_slope;", "double negative_slope, divisor;", WRONG),
    "plain ReLU": ("v * float(a.negative_slope)", "0.0f", WRONG),
    "slope of another network": ("float(a.negative_slope)", "0.02f", WRONG),
    "nan becomes zero": ("v > 0.0f ? v : v *", "v > 0.0f ? v : !(v <= 0.0f) ? 0.0f : v *", WRONG),
    "clamped at 1e4": (
        "return total + a.bias[k];",
        "return __builtin_fminf(total + a.bias[k], 1e4f);",
        WRONG,
    ),
    "small values dropped": (
        STORE,
        "plane[i * a.W_out + j] = __builtin_fabsf(v) < 1e-8f ? 0.0f : epilogue(v, a);",
        WRONG,
    ),
    "sums in half precision": ("total += pixel", "total = rounded(total, 13) + pixel", WRONG),
    "operands in tf32": (
        "pixel(a, n, c, i + r - PAD, j + s - PAD) *",
        "rounded(pixel(a, n, c, i + r - PAD, j + s - PAD), 13) *",
        WRONG,
    ),
    "operands in bf16": (
        "pixel(a, n, c, i + r - PAD, j + s - PAD) *",
        "rounded(pixel(a, n, c, i + r - PAD, j + s - PAD), 16) *",
        WRONG,
    ),
    "ignores x": ("pixel(a, n, c, i + r - PAD, j + s - PAD) *", "0.5f *", WRONG),
    "every eighth row only": (
        READ,
        "return i % 8 ? a.x[((n * C_IN + c) * a.H + i) * a.W + j] : 0.0f;",
        WRONG,
    ),
    "one element past the end": (STORE, STORE + " plane[a.H_out * a.W_out] = 0.0f;", ""),
    "one element before the start": (STORE, STORE + " if (n == 0 && k == 0) plane[-1] = 0.0f;", OUTSIDE),
    "a plane past the end": (
        STORE,
        STORE + " if (n == a.N - 1 && k == C_OUT - 1) plane[(C_OUT + 1) * a.H_out * a.W_out] = v;",
        OUTSIDE,
    ),
    "scales its input in place": (
        STORE,
        STORE + " if (unit == 0 && i == 0 && j == 0) const_cast<float*>(a.x)[0] *= 1.0000001f;",
        CHANGED,
    ),
    "keeps a bias in the input": (STORE, STORE + " const_cast<float*>(a.bias)[k] = v;", ""),
    "writes beside its input": (
        STORE,
        STORE + " if (unit == 0) const_cast<float*>(a.weight)[C_OUT * C_IN * R * S] = v;",
        CHANGED,
    ),
    "another answer each time": (
        "const float v = convolve(a, n, k, i, j);",
        "static float flip = 0.0f; float v = convolve(a, n, k, i, j);"
        " if (unit == 0 && i == 0 && j == 0) { flip = 1.2e-7f - flip; v *= 1.0f + flip; }",
        AGAIN,
    ),
    "answers from a cache": (
        "const float v = convolve(a, n, k, i, j);",
        "static float memo[1 << 16]; static const void* of = nullptr; static int64_t calls = 0;"
        " if (of != a.x || ++calls > (1 << 20)) { of = a.x; }"
        " float& kept = memo[(unit * 4096 + i * 64 + j) % (1 << 16)];"
        " if (kept == 0.0f) kept = convolve(a, n, k, i, j); const float v = kept;",
        WRONG,
    ),
}

VARIANTS = {name: Variant(KERNEL, changes) for name, changes in _VARIANTS.items()}
FAULTS = {name: Fault(KERNEL, [(old, new)], reason) for name, (old, new, reason) in _FAULTS.items()}
