# SPDX-License-Identifier: Apache-2.0
"""Winners of the family conv_transpose2d_mean: kernels written by hand, one unit a sample, and those of the
template."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.compile.host import compile_flags
from coldforge.codegen.freeze import Winner, winner_of
from coldforge.codegen.operator import Operator
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import render
from coldforge.codegen.target import Target, cpu_target, cpu_target_for

SMALL = {"C_in": 4, "C_out": 6, "H": 20, "W": 24}
MEASURED = {"time_ms": 1.0, "floor_ms": 0.1, "error": 1e-7, "bound_ratio": 0.5}

KERNEL = r"""
#include <cmath>
#include <cstdint>
namespace {
struct Args {
  const float *x, *weight, *conv_bias%(vectors)s;
  float* y;
  int64_t N, H, W, H_out, W_out;
  double %(scalars)s;
};
constexpr int64_t C = %(C_in)d, K = %(C_out)d, R = %(R)d, S = %(S)d;
bool inside(int64_t at, int64_t out) { return at >= 0 && at < out; }
double plane(const Args& a, const float* x, int64_t r, int64_t s) {
  double sum = 0;
  for (int64_t h = 0; h < a.H; ++h)
    for (int64_t w = 0; w < a.W; ++w)
      if (inside(h * %(stride_h)d - %(padding_h)d + r * %(dilation_h)d, a.H_out) &&
          inside(w * %(stride_w)d - %(padding_w)d + s * %(dilation_w)d, a.W_out))
        sum += x[h * a.W + w];
  return sum;
}
}  // namespace
extern "C" void coldforge_kernel(int64_t begin, int64_t end, void* raw) {
  const Args& a = *static_cast<const Args*>(raw);
  for (int64_t n = begin; n < end; ++n) {
    double total[K] = {};
    for (int64_t c = 0; c < C; ++c)
      for (int64_t r = 0; r < R; ++r)
        for (int64_t s = 0; s < S; ++s) {
          const double sum = plane(a, a.x + (n * C + c) * a.H * a.W, r, s);
          for (int64_t k = 0; k < K; ++k) total[k] += sum * a.weight[((c * K + k) * R + r) * S + s];
        }
    float values[K];
    for (int64_t k = 0; k < K; ++k) {
      float v = float(total[k] / double(a.H_out * a.W_out)) + (a.conv_bias ? a.conv_bias[k] : 0.0f);
      %(before)s
      values[k] = v;
    }
    %(rest)s
  }
}
"""
LOGSUMEXP = """float top = values[0], sum = 0;
    for (float v : values) top = v > top ? v : top;
    for (float v : values) sum += std::exp(v - top);
    a.y[n] = (top + std::log(sum)) * float(a.scale);"""
ADD_BIAS = "if (a.bias) v += a.bias[k];"
SCALED = "for (int64_t k = 0; k < K; ++k) a.y[n * K + k] = values[k] * float(a.multiplier);"


def mean_winner(
    shape: dict[str, int] | None = None,
    *,
    operator: Operator | None = None,
    before: str = ADD_BIAS,
    rest: str = LOGSUMEXP,
    fault: tuple[str, str] | None = None,
    arch: str = "x86-64-v2",
    **changes: Any,
) -> Winner:
    """A cpu winner, of conv_transpose2d_mean_logsumexp when no operator is given.

    Args:
        shape: fields over the workload ``small``; 4 channels in, 6 out when not given.
        before: statements on ``v``, for channel ``k`` and arguments ``a``.
        rest: what becomes of ``values[K]``.
        fault: a part of the text, and what stands in its place.
        changes: fields of the winner.
    """
    declared = operator or catalogue().operator("conv_transpose2d_mean_logsumexp")
    given = {**SMALL, "stride": 1, "padding": 0, "output_padding": 0}
    problem = make_problem(declared, "small", {**given, **(shape or {})})
    words = {
        "vectors": "".join(f", *{name}" for name in declared.channel_vectors),
        "scalars": ", ".join(declared.scalars),
        "before": before,
        "rest": rest,
    }
    text = KERNEL % {**problem.constants, **words}
    if fault is not None:
        assert fault[0] in text
        text = text.replace(*fault)
    digest = hashlib.sha256(text.encode()).hexdigest()
    fields: dict[str, Any] = {
        "operator": declared.name,
        "family": declared.family.name,
        "template": "naive",
        "operator_digest": declared.digest,
        "target": {**cpu_target_for(arch).to_dict(), "device": "Test CPU"},
        "dtype": "fp32",
        "precision": "fp32",
        "specialisation": problem.specialisation,
        "workload": problem.dims,
        "workload_name": problem.workload,
        "config": {"GRAIN": 1},
        "source_text": text,
        "source_name": f"{declared.name}_naive_{digest[:8]}",
        "source_digest": digest,
        "binary": None,
        "launch": {"units": "N", "grain": "GRAIN"},
        "derived": {},
        "compiler": "g++ 12.2.0",
        "flags": compile_flags(arch),
        "resources": {"code_bytes": 1000},
        "measurement": {"time_ms": 1.0, "floor_ms": 0.1, "error": 1e-7, "bound_ratio": 0.5},
        "study": "a study",
    }
    return Winner(**{**fields, **changes})


def template_winner(
    folder: Path, shape: dict[str, int], choice: dict[str, int | str], target: Target | None = None
) -> Winner:
    """A winner of conv_transpose2d_mean_logsumexp with the template's own kernel, for this machine's CPU.

    Args:
        folder: where the compiler's cache may stand.
        shape: fields over the workload ``small``; 4 channels in, 6 out when not given.
        choice: parameters of the config that differ from the default.
        target: another target.
    """
    target = target or cpu_target()
    known = catalogue()
    operator = known.operator("conv_transpose2d_mean_logsumexp")
    problem = make_problem(operator, "small", {**SMALL, **shape})
    space = known.space(operator, target)
    config = space.config(choice)
    space.require(problem, config, target)
    source = render(space, problem, config, target)
    artifact = compile_source(source, target, Cache(folder / "cache"))
    parts = (problem, space, config, target, source, artifact)
    return winner_of(*parts, precision="fp32", measurement=MEASURED, study="a study")
