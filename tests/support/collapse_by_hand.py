# SPDX-License-Identifier: Apache-2.0
"""A transposed convolution, collapsed to its mean, with its epilogue by hand in C++: correct changes of it,
and faults.

Planes are cut into parts of rows. Each part's sums, one for each tap, go to the workspace; the last part of a
sample to arrive multiplies by the weights and reduces the channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coldforge.codegen.problem import Problem
from coldforge.codegen.space import Launch
from hand_kernels import CHANGED, WRONG, Fault, HandKernel, Variant

C_IN, C_OUT, SPLIT = 4, 6, 3
GOOD = """
#pragma GCC optimize("O1")  // there are many to compile
#include <cstdint>

namespace {

struct Args {
  const float* x;
  const float* weight;
  const float* conv_bias;
  const float* bias;
  float* y;
  void* workspace;
  int64_t N, H, W, H_out, W_out;
  double scale;
};

constexpr int64_t C_IN = 4, C_OUT = 6, SPLIT = 3, R = 3, S = 3;
constexpr int64_t STRIDE = 1, PAD = 0;

// v with the last 13 bits of its significand rounded away: for the faults that lose precision.
[[maybe_unused]] float rounded(float v) {
  uint32_t word;
  __builtin_memcpy(&word, &v, 4);
  word = (word + 0x1000) & ~0x1fffu;
  __builtin_memcpy(&v, &word, 4);
  return v;
}

// Columns [left, right) of a row, added in pairs.
float row_sum(const float* row, int64_t left, int64_t right) {
  if (right - left > 4) {
    const int64_t middle = (left + right) / 2;
    return row_sum(row, left, middle) + row_sum(row, middle, right);
  }
  float total = 0.0f;
  for (int64_t w = left; w < right; ++w) total += row[w];
  return total;
}

float rectangle(const float* plane, int64_t W, int64_t top, int64_t bottom, int64_t left, int64_t right) {
  if (top >= bottom) return 0.0f;
  if (bottom - top == 1) return row_sum(plane + top * W, left, right);
  const int64_t middle = (top + bottom) / 2;
  return rectangle(plane, W, top, middle, left, right) + rectangle(plane, W, middle, bottom, left, right);
}

// The pixels i with 0 <= i * STRIDE - PAD + tap < outputs.
int64_t first_met(int64_t tap) { return PAD - tap > 0 ? (PAD - tap + STRIDE - 1) / STRIDE : 0; }
int64_t end_met(int64_t tap, int64_t pixels, int64_t outputs) {
  const int64_t last = outputs - 1 + PAD - tap;
  const int64_t end = last < 0 ? 0 : last / STRIDE + 1;
  return end < pixels ? end : pixels;
}

void sum_part(const Args& a, const float* plane, int64_t part, float* sums) {
  const int64_t begin = a.H * part / SPLIT, end = a.H * (part + 1) / SPLIT;
  for (int64_t r = 0; r < R; ++r)
    for (int64_t s = 0; s < S; ++s) {
      int64_t top = first_met(r), bottom = end_met(r, a.H, a.H_out);
      const int64_t left = first_met(s), right = end_met(s, a.W, a.W_out);
      top = top > begin ? top : begin;
      bottom = bottom < end ? bottom : end;
      sums[r * S + s] = rectangle(plane, a.W, top, bottom, left, right);
    }
}

float logsumexp(const float* v) {
  float most = v[0];
  for (int64_t k = 1; k < C_OUT; ++k) most = v[k] > most || v[k] != v[k] ? v[k] : most;
  const float shift = __builtin_isfinite(most) ? most : 0.0f;
  float total = 0.0f;
  for (int64_t k = 0; k < C_OUT; ++k) total += __builtin_expf(v[k] - shift);
  return shift + __builtin_logf(total);
}

void finish(const Args& a, const float* partials, int64_t n) {
  const float* sums = partials + n * C_IN * SPLIT * R * S;
  float v[C_OUT];
  for (int64_t k = 0; k < C_OUT; ++k) {
    float total = 0.0f;
    for (int64_t c = 0; c < C_IN; ++c)
      for (int64_t t = 0; t < R * S; ++t) {
        float T = 0.0f;
        for (int64_t part = 0; part < SPLIT; ++part) T += sums[(c * SPLIT + part) * R * S + t];
        total += T * a.weight[(c * C_OUT + k) * R * S + t];
      }
    v[k] = total / (float(a.H_out) * float(a.W_out));
    v[k] += a.conv_bias[k];
    v[k] += a.bias[k];
  }
  a.y[n] = logsumexp(v) * float(a.scale);
}

}  // namespace

extern "C" __attribute__((visibility("default")))
void coldforge_kernel(int64_t begin, int64_t end, void* args) {
  const Args& a = *static_cast<const Args*>(args);
  unsigned* arrived = static_cast<unsigned*>(a.workspace);
  float* partials = reinterpret_cast<float*>(arrived + a.N);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t n = unit / (C_IN * SPLIT);
    sum_part(a, a.x + unit / SPLIT * a.H * a.W, unit % SPLIT, partials + unit * R * S);
    if (__atomic_add_fetch(arrived + n, 1u, __ATOMIC_ACQ_REL) == C_IN * SPLIT) finish(a, partials, n);
  }
}
"""


def _launch_of(taps: int) -> Callable[[Problem], Launch]:
    def launch(problem: Problem) -> Launch:
        samples = problem.dims["N"]
        units = samples * C_IN * SPLIT
        return Launch(
            units=units, grain=1, workspace_bytes=4 * (samples + units * taps), zeroed_bytes=4 * samples
        )

    return launch


def _kernel(text: str, kernel_size: int, **shape: int) -> HandKernel:
    fields = {"N": 2, "H": 40, "W": 36, "C_in": C_IN, "C_out": C_OUT, "kernel_size": kernel_size, **shape}
    operator = "conv_transpose2d_mean_logsumexp"
    return HandKernel(operator, fields, text, _launch_of(kernel_size**2), workspace=True)


PLAIN = _kernel(GOOD, 3)
PADDED = _kernel(GOOD.replace("PAD = 0", "PAD = 1"), 3, padding=1)
STRIDED = _kernel(
    GOOD.replace("STRIDE = 1, PAD = 0", "STRIDE = 2, PAD = 1"), 3, stride=2, padding=1, output_padding=1
)
POINT = _kernel(GOOD.replace("R = 3, S = 3", "R = 1, S = 1"), 1)

_IN_DOUBLE = [("float row_sum(", "double row_sum("), ("float rectangle(", "double rectangle(")]
_IN_DOUBLE += [("float total = 0.0f;\n  for (int64_t w", "double total = 0.0;\n  for (int64_t w")]
_COMPENSATED = [
    (
        "total += row[w];\n  return total;",
        "{ const float sum = total + row[w]; low += __builtin_isfinite(sum) ? row[w] - (sum - total) : 0.0f;"
        " total = sum; }\n  return total + low;",
    ),
    ("float total = 0.0f;\n  for (int64_t w", "float total = 0.0f, low = 0.0f;\n  for (int64_t w"),
    ("right - left > 4", "right - left > 400"),
]
_MULTIPLIED = (
    "v[k] = total / (float(a.H_out) * float(a.W_out));",
    "v[k] = total * float(1.0 / double(a.H_out * a.W_out));",
)
_KERNELS = {"plain": PLAIN, "padded": PADDED, "strided": STRIDED, "1x1": POINT}
VARIANTS = {
    **{f"collapsed, {name}": Variant(kernel, []) for name, kernel in _KERNELS.items()},
    **{f"collapsed, {name}, planes in double": Variant(k, _IN_DOUBLE) for name, k in _KERNELS.items()},
    "collapsed, plain, rows compensated": Variant(PLAIN, _COMPENSATED),
    "collapsed, plain, multiplied by the reciprocal": Variant(PLAIN, [_MULTIPLIED]),
    "collapsed, channels backwards": Variant(PLAIN, [("c = 0; c < C_IN; ++c", "c = C_IN - 1; c >= 0; --c")]),
}

_SUM = "sums[r * S + s] = rectangle(plane, a.W, top, bottom, left, right);"
_T = "for (int64_t part = 0; part < SPLIT; ++part) T += sums[(c * SPLIT + part) * R * S + t];"
_WEIGHT = "a.weight[(c * C_OUT + k) * R * S + t]"
_OUT = "a.y[n] = logsumexp(v) * float(a.scale);"
_RANGE = "const int64_t begin = a.H * part / SPLIT, end = a.H * (part + 1) / SPLIT;"
_SEQUENTIAL = (
    "float row_sum(",
    "float in_sequence(const float* plane, int64_t count) { float total = 0.0f;"
    " for (int64_t i = 0; i < count; ++i) total += plane[i]; return total; }\nfloat row_sum(",
)


def _plain(old: str, new: str, reason: str = WRONG) -> Fault:
    return Fault(PLAIN, [(old, new)], reason)


FAULTS = {
    "x ignored": _plain("T += sums[", "T += 0.5f + 0.0f * sums["),
    "x replaced by its mean over a sample": _plain(
        _T,
        "for (int64_t q = 0; q < C_IN * SPLIT; ++q) T += sums[q * R * S + t] / C_IN;",
    ),
    "x replaced by its global mean": _plain(
        _T,
        "const int64_t all = C_IN * SPLIT * a.N;"
        " for (int64_t q = 0; q < all; ++q) T += partials[q * R * S + t] / float(C_IN * a.N);",
    ),
    "half of the rows": _plain(_RANGE, "const int64_t begin = 0, end = part ? 0 : (a.H + 1) / 2;"),
    "half of the rows, doubled": Fault(
        PLAIN,
        [
            (_RANGE, "const int64_t begin = 0, end = part ? 0 : (a.H + 1) / 2;"),
            (_SUM, _SUM.replace("= rectangle", "= float(a.H) / ((a.H + 1) / 2) * rectangle")),
        ],
    ),
    "every other column, doubled": _plain(
        "for (int64_t w = left; w < right; ++w) total += row[w];",
        "for (int64_t w = left; w < right; ++w) total += row[w - (w - left) % 2];",
    ),
    "columns in fours, no rest": _plain(
        "w < right; ++w) total", "w < (right < 4 ? right : right / 4 * 4); ++w) total"
    ),
    "channels of the weights permuted": _plain(_WEIGHT, "a.weight[((c + 1) % C_IN * C_OUT + k) * R * S + t]"),
    "weights as of a convolution": _plain(_WEIGHT, "a.weight[(k * C_IN + c) * R * S + t]"),
    "weights of the next filter": _plain(_WEIGHT, "a.weight[(c * C_OUT + (k + 1) % C_OUT) * R * S + t]"),
    "weights of the first call": Fault(
        PLAIN,
        [
            (_WEIGHT, "kept[(c * C_OUT + k) * R * S + t]"),
            (
                "float v[C_OUT];",
                "float v[C_OUT]; static float kept[C_IN * C_OUT * R * S]; static bool folded = false;"
                " if (!folded) __builtin_memcpy(kept, a.weight, sizeof(kept)); folded = true;",
            ),
        ],
    ),
    "a channel skipped": _plain("c = 0; c < C_IN; ++c)", "c = 1; c < C_IN; ++c)"),
    "a tap skipped": _plain("t = 0; t < R * S; ++t)", "t = 0; t < R * S - 1; ++t)"),
    "taps summed before they are multiplied": Fault(
        PLAIN,
        [
            (_WEIGHT, "folded"),
            (
                "for (int64_t t = 0; t < R * S; ++t) {",
                "for (int64_t t = 0; t < 1; ++t) { float folded = 0.0f;"
                " for (int64_t q = 0; q < R * S; ++q) folded += a.weight[(c * C_OUT + k) * R * S + q];",
            ),
        ],
        "nonfinite",
    ),
    "last split dropped": _plain("part < SPLIT; ++part) T", "part < SPLIT - 1; ++part) T"),
    "a split counted twice": _plain("sums[(c * SPLIT + part)", "sums[(c * SPLIT + (part ? part : 1))"),
    "partials of the first sample": _plain("partials + n * C_IN * SPLIT * R * S", "partials"),
    "partials of empty parts not written": _plain(_SUM, "if (top < bottom) " + _SUM),
    "adds to the output": _plain("a.y[n] =", "a.y[n] +="),
    "finishes when half has arrived": _plain("== C_IN * SPLIT)", "== C_IN * SPLIT / 2)"),
    "pixels of the input counted": _plain("float(a.H_out) * float(a.W_out)", "float(a.H) * float(a.W)"),
    "conv_bias forgotten": _plain("    v[k] += a.conv_bias[k];\n", ""),
    "conv_bias divided too": _plain("v[k] += a.conv_bias[k];", "v[k] += a.conv_bias[k] / float(a.H_out);"),
    "bias of the chain forgotten": _plain("    v[k] += a.bias[k];\n", ""),
    "bias off by one": _plain("a.bias[k]", "a.bias[(k + 1) % C_OUT]"),
    "scaled before the logsumexp": _plain(
        _OUT, "for (float& one : v) one *= float(a.scale); a.y[n] = logsumexp(v);"
    ),
    "not scaled": _plain(" * float(a.scale);", ";"),
    "maximum not subtracted": _plain("__builtin_isfinite(most) ? most : 0.0f", "0.0f"),
    "infinite maximum subtracted": Fault(POINT, [("__builtin_isfinite(most) ? most : 0.0f", "most")]),
    "a channel missing in the logsumexp": _plain(
        "k = 0; k < C_OUT; ++k) total += __builtin_expf", "k = 0; k < C_OUT - 1; ++k) total += __builtin_expf"
    ),
    "mean of the exponentials": _plain("__builtin_logf(total)", "__builtin_logf(total / C_OUT)"),
    "nan lost in the maximum and the sum": _plain(
        "total += __builtin_expf(v[k] - shift);", "if (v[k] == v[k]) total += __builtin_expf(v[k] - shift);"
    ),
    "correction of an infinite sum kept": Fault(
        POINT,
        [
            *_COMPENSATED,
            ("__builtin_isfinite(sum) ? row[w] - (sum - total) : 0.0f", "row[w] - (sum - total)"),
        ],
    ),
    "a plane in one sequence": Fault(
        PLAIN,
        [
            _SEQUENTIAL,
            (_SUM, "sums[r * S + s] = part ? 0.0f : in_sequence(plane, a.H * a.W);"),
        ],
        "common_offset",
    ),
    "partials in tf32": _plain(
        _SUM, _SUM.replace("= rectangle(", "= rounded(rectangle(").replace("right);", "right));")
    ),
    "border sums missing": Fault(
        PADDED,
        [
            (
                "int64_t top = first_met(r), bottom = end_met(r, a.H, a.H_out);",
                "int64_t top = 0, bottom = a.H;",
            ),
            ("left = first_met(s), right = end_met(s, a.W, a.W_out);", "left = 0, right = a.W;"),
        ],
    ),
    "border columns missing": Fault(
        PADDED, [("left = first_met(s), right = end_met(s, a.W, a.W_out);", "left = 0, right = a.W;")]
    ),
    "last border row missing": Fault(PADDED, [("bottom = end_met(r, a.H, a.H_out)", "bottom = a.H")]),
    "taps mirrored": Fault(PADDED, [("sums[r * S + s]", "sums[(R - 1 - r) * S + S - 1 - s]")]),
    "taps transposed": Fault(PADDED, [("sums[r * S + s]", "sums[s * S + r]")]),
    "width for height": Fault(PADDED, [("plane + top * W", "plane + top * (W - 1)")]),
    "tap ranges end one short": Fault(STRIDED, [("last / STRIDE + 1", "last / STRIDE")]),
    "tap ranges begin one early": Fault(
        STRIDED, [("(PAD - tap + STRIDE - 1) / STRIDE", "(PAD - tap) / STRIDE")]
    ),
    "output padding forgotten": Fault(STRIDED, [("outputs - 1 + PAD - tap", "outputs - 2 + PAD - tap")]),
    "counters not zeroed": Fault(PLAIN, [], relaunch=lambda launch: replace(launch, zeroed_bytes=0)),
    "counters of all samples but one": Fault(
        PLAIN, [], relaunch=lambda launch: replace(launch, zeroed_bytes=max(0, launch.zeroed_bytes - 4))
    ),
    "workspace too small": Fault(
        PLAIN,
        [],
        "wrote outside its workspace",
        relaunch=lambda launch: replace(launch, workspace_bytes=launch.workspace_bytes - 4),
    ),
    "scales its input in place": _plain(
        _OUT, _OUT + " if (n == 0) const_cast<float*>(a.x)[0] *= 1.0000001f;", CHANGED
    ),
}
