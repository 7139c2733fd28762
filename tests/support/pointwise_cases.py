# SPDX-License-Identifier: Apache-2.0
"""What the pointwise expressions are tried on, as one kernel source, and how the results are judged.

The same cases run through g++ (tests/build) and NVRTC (tests/gpu).
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field

import torch
from coldforge.codegen.epilogue import float_literal
from coldforge.codegen.render import KernelSource
from coldforge.templates.pointwise import POINTWISE

EPS = 2.0**-24
TINY = 2.0**-149  # the least positive float
MAX = torch.finfo(torch.float32).max

# What the expressions may be off by, in units of EPS: a few roundings of their own (a library function is
# good to 2 units in the last place, 4 on CUDA, which is 4 and 8 EPS, and two or three operations follow),
# and the roundings of their argument, which the function magnifies by its condition number v * f'(v) /
# f(v): about v^2 in the tail of GELU. With g++ all pass at 4 and 2.
RESULT_EPS = 12.0
ARGUMENT_EPS = 4.0


@dataclass(frozen=True)
class Case:
    """One operation with the values of its parameters."""

    op: str
    parameters: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A name for failures."""
        return self.op + "".join(f" {name}={value:g}" for name, value in self.parameters.items())


def cases() -> list[Case]:
    """Every operation with its defaults, and with the parameters that could trip it."""
    found = []
    for name in ("add", "sub", "mul", "div"):
        values = (0.7, -3.0, 2.0, 0.0, 1e-40, 3e38, math.inf, math.nan)
        found += [Case(name, {"value": value}) for value in values]
    for name in ("min", "max"):
        found += [Case(name, {"value": value}) for value in (0.7, -3.0, math.inf, -math.inf, math.nan)]
    for low, high in (
        (-0.5, 1.5),
        (0.25, 6.0),
        (2.0, 1.0),
        (-math.inf, 1.0),
        (math.nan, 1.0),
        (-1.0, math.nan),
    ):
        found.append(Case("clamp", {"min": low, "max": high}))
    found.append(Case("hardtanh", {"min_val": -2.0, "max_val": 0.5}))
    found += [Case("leaky_relu", {"negative_slope": value}) for value in (0.2, 0.0, -0.5, 1.5, math.inf)]
    found += [Case("elu", {"alpha": value}) for value in (0.3, -2.0)]
    found.append(Case("softplus", {"beta": 2.0, "threshold": 10.0}))
    for name, row in POINTWISE.items():
        if None not in row.parameters.values():
            found.append(
                Case(name, {key: value for key, value in row.parameters.items() if value is not None})
            )
    return found


def inputs() -> torch.Tensor:
    """Float32 values: the edges, an even grid over the interesting range, and all magnitudes."""
    edges = [
        0.0,
        math.inf,
        MAX,
        1e38,
        1e30,
        1e4,
        1.17549435e-38,
        1e-40,
        TINY,
        1.0,
        3.0,
        6.0,
        20.0,
        88.0,
        104.0,
    ]
    generator = torch.Generator().manual_seed(0)
    magnitude = torch.exp(torch.empty(6_000).uniform_(math.log(1e-44), math.log(3e38), generator=generator))
    parts = [
        torch.tensor([math.nan, *edges, *(-value for value in edges)]),
        torch.linspace(-110.0, 110.0, 6_001),
        torch.linspace(-15.0, 15.0, 6_001),
        magnitude,
        -magnitude,
    ]
    return torch.cat(parts).float()


def _function(index: int, case: Case, kind: str) -> str:
    expression = POINTWISE[case.op].expression_for(kind)
    literals = {name: _literal(value) for name, value in case.parameters.items()}
    body = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: literals.get(m.group(), m.group()), expression)
    qualifier = "__device__" if kind == "cuda" else "static inline"
    return f"{qualifier} float op_{index}(float v) {{ v = {body}; return v; }}"


def _literal(value: float) -> str:
    if math.isfinite(value):
        return float_literal(value)
    # Behind a function in real kernels too: parameters that are not finite come at run time.
    return "not_a_number()" if math.isnan(value) else f"({'-' if value < 0 else ''}infinite())"


_COMMON = """
{qualifier} float not_a_number() {{ return 0.0f * infinite(); }}
{functions}
struct Args {{ const float* x; float* y; long long op, count; }};
"""
_CPU = """
#include <math.h>
#include <stdint.h>
static float infinite() {{ volatile float value = __builtin_inff(); return value; }}
{common}
extern "C" __attribute__((visibility("default")))
void coldforge_kernel(int64_t begin, int64_t end, void* packed) {{
  const Args& args = *static_cast<const Args*>(packed);
  const float* const x = args.x;
  float* const y = args.y;
  switch (args.op) {{
{branches}
  }}
}}
"""
_CUDA = """
// Read at run time, as a kernel's scalars are: NVRTC was seen to fold a constant NaN bound away.
__device__ volatile unsigned infinity_bits = 0x7f800000u;
__device__ float infinite() {{ return __uint_as_float(infinity_bits); }}
{common}
extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args args) {{
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= args.count) return;
  const float* const x = args.x;
  float* const y = args.y;
  switch (args.op) {{
{branches}
  }}
}}
"""


def kernel_source(kind: str, tried: list[Case]) -> KernelSource:
    """One kernel that applies the `op`-th case to `count` elements: arguments x, y, op, count."""
    functions = "\n".join(_function(index, case, kind) for index, case in enumerate(tried))
    qualifier = "__device__" if kind == "cuda" else "static inline"
    common = _COMMON.format(qualifier=qualifier, functions=functions)
    # A loop inside each branch, as in real kernels: vector code is what has to be right.
    loop = "" if kind == "cuda" else "for (int64_t i = begin; i < end; ++i) "
    branches = "\n".join(f"    case {i}: {loop}y[i] = op_{i}(x[i]); break;" for i in range(len(tried)))
    text = (_CUDA if kind == "cuda" else _CPU).format(common=common, branches=branches)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return KernelSource(text, "coldforge_kernel", digest, "pointwise", "cuda" if kind == "cuda" else "cpp")


def _known_exceptions(case: Case, x: torch.Tensor, kind: str) -> torch.Tensor:
    """Where an expression is known to go another way than PyTorch, as the operation's comment says."""
    slope = case.parameters.get("negative_slope", 0.0)
    odd = kind == "cuda" and case.op == "leaky_relu" and (slope < 0 or not math.isfinite(slope))
    return (x == 0) & ~x.signbit() & odd


def failures(case: Case, x: torch.Tensor, y: torch.Tensor, kind: str) -> list[str]:
    """Where `y`, computed for float32 `x`, is not the operation's value, in words; empty when all is well."""
    exact = x.double().requires_grad_()
    parameters = {name: float(torch.tensor(value)) for name, value in case.parameters.items()}
    reference = POINTWISE[case.op].reference(exact, **parameters)
    (slope,) = torch.autograd.grad(reference.sum(), exact)
    exact, reference = exact.detach(), reference.detach()
    rounded = reference.float()
    condition = torch.nan_to_num(exact * slope, 0.0, 0.0, 0.0).abs()
    bound = RESULT_EPS * EPS * reference.abs() + ARGUMENT_EPS * EPS * condition + 8 * TINY
    finite = rounded.isfinite()
    wrong = {
        "NaN": rounded.isnan() != y.isnan(),
        "infinity": ~rounded.isnan() & ~finite & (rounded != y),
        "value": finite & ~((y.double() - reference).abs() <= bound),
        "sign of zero": (reference == 0) & (y == 0) & (rounded.signbit() != y.signbit()),
    }
    found = []
    known = _known_exceptions(case, x, kind)
    for what, mask in wrong.items():
        if (mask & ~known).any():
            i = int((mask & ~known).nonzero()[0, 0])
            found.append(f"{case.label}: {what}: f({x[i]:g}) = {y[i]:.9g}, not {reference[i]:.9g}")
    return found
