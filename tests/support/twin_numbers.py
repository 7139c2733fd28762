# SPDX-License-Identifier: Apache-2.0
"""Twins of arithmetic, mathematical functions, and conversions of 16-bit types."""

from __future__ import annotations

import torch
from twin import THREADS, Twin, integers, rows

_SUBNORMALS = [1e-45, -1e-45, 1.1754942e-38, -3e-39, 5.877e-39]
_LIMITS = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3.4028235e38, -3.4028235e38, 1.17549435e-38]


def _floats(count: int = 256) -> torch.Tensor:
    """Corners, subnormals, and numbers of every magnitude, of both signs."""
    generator = torch.Generator().manual_seed(7)
    some = torch.randn(count, generator=generator) * 2.0 ** torch.randint(
        -60, 60, (count,), generator=generator
    )
    return torch.cat([torch.tensor(_LIMITS + _SUBNORMALS + [1.0, -1.0, 0.5, 2.0, 1.0 + 2**-23]), some])[
        :count
    ]


def _pairs(count: int = 256) -> torch.Tensor:
    """Three rows of `count` floats: among them each corner with each other, and numbers near each other."""
    corners = torch.tensor([*_LIMITS, 1e-45, -3e-39, 1.0, -1.0])
    grid = torch.cartesian_prod(corners, corners)
    a, b = _floats(count), _floats(count).flip(0)
    a[: len(grid)], b[: len(grid)] = grid[:, 0], grid[:, 1]
    b[-32:] = -a[-32:] * (1 + 2**-20)
    return torch.stack([a, b, b.flip(0)])


# Of a, b and c, correctly rounded on both sides.
_EXACT = [
    "__fadd_rn(a, b)",
    "__fsub_rn(a, b)",
    "__fmul_rn(a, b)",
    "__fdiv_rn(a, b)",
    "__fmaf_rn(a, b, c)",
    "__fsqrt_rn(a)",
    "__frcp_rn(a)",
    "__frsqrt_rn(a)",
    "fmaf(a, b, c)",
    "a + b",
    "a * b",
    "a / b",
    "sqrtf(a)",
    "fminf(a, b)",
    "fmaxf(a, b)",
    "min(a, b)",
    "max(a, b)",
    "fabsf(a)",
    "abs(a)",
    "floorf(a)",
    "ceilf(a)",
    "truncf(a)",
    "rintf(a)",
    "roundf(a)",
    "copysignf(a, b)",
    "fdimf(a, b)",
    "fmodf(a, fabsf(b) > 1e-3f * fabsf(a) ? b : 1.0f)",
    "__saturatef(a)",
    "__double2float_rn(static_cast<double>(a) * b)",
    "static_cast<float>(isfinite(a) + 2 * isinf(b) + 4 * isnan(c) + 8 * (signbit(b) != 0))",
    "__int_as_float(__float_as_int(a))",
    "__uint_as_float(__float_as_uint(b))",
    "__int2float_rn(__float_as_int(a))",
    "__uint2float_rn(__float_as_uint(b))",
    "ldexpf(a, 3)",
    "nextafterf(a, b)",
]
_EXACT_DOUBLE = [
    "__dadd_rn(a, b)",
    "__dsub_rn(a, b)",
    "__dmul_rn(a, b)",
    "__ddiv_rn(a, b)",
    "__fma_rn(a, b, c)",
    "fma(a, b, c)",
    "sqrt(a)",
    "fmin(a, b)",
    "fmax(a, b)",
    "floor(a)",
    "rint(a)",
    "__longlong_as_double(__double_as_longlong(a))",
]
_TO_INT = ["__float2int_rn(a)", "__float2int_rz(a)", "__float2int_rd(a)", "__float2int_ru(a)"]

# In CUDA's documentation each of these is within 2 units (some within 4); a C library's are within 1.
_WITHIN = {
    **dict.fromkeys(
        ("expf", "exp2f", "expm1f", "tanhf", "erff", "atanf", "sinf", "cosf", "cbrtf", "asinhf"), "v"
    ),
    **dict.fromkeys(("logf", "log2f", "log10f", "rsqrtf", "lgammaf"), "fabsf(v) + 1e-3f"),
    "log1pf": "fabsf(v)",
    "erfcf": "v * 0.5f",
    "sinhf": "v",
    "coshf": "v",
    "tanf": "v * 0.25f",
    "tgammaf": "fabsf(v) + 0.5f",
    "acoshf": "fabsf(v) + 1.0f",
    "asinf": "v * 0.1f",
    "acosf": "v * 0.1f",
    "atanhf": "v * 0.1f",
}
_WITHIN_TWO = ["powf(fabsf(v) + 0.01f, 1.7f)", "atan2f(v, 0.7f)", "hypotf(v, 0.3f)", "rsqrt(fabsf(v) + 0.5f)"]
_FAST = {
    "__expf(v)": 16,
    "__exp10f(v * 0.25f)": 16,
    "__logf(fabsf(v) + 2.5f)": 4,
    "__log2f(fabsf(v) + 2.5f)": 4,
    "__log10f(fabsf(v) + 2.5f)": 4,
    "__powf(fabsf(v) + 2.5f, 1.5f)": 64,
    "__fdividef(v, 3.0f)": 3,
}
_FAST_ABSOLUTE = ["__sinf(v * 0.3f)", "__cosf(v * 0.3f)", "__tanf(v * 0.1f)"]


def arithmetic() -> dict[str, Twin]:
    triple = "  const float a = x[t], b = x[n + t], c = x[2 * n + t];\n  (void)a, (void)b, (void)c;\n"
    pairs, doubles = _pairs(), _pairs().double() * (1 + 2.0**-40)
    near = torch.linspace(-8, 8, 256)
    whole = torch.cat(
        [_floats(), torch.tensor([2147483520.0, 2147483648.0, -2147483648.0, 0.5, 1.5, 2.5, -0.5, -2.5])]
    )
    whole = torch.cat([whole, near])[:512]
    value = "  const float v = x[t];\n"
    functions = [f"{name}({of})" for name, of in _WITHIN.items()] + _WITHIN_TWO
    return {
        "rounded arithmetic": Twin(
            triple + rows(_EXACT), pairs, torch.zeros(len(_EXACT), 256), 256, "float", "float"
        ),
        "rounded arithmetic in double": Twin(
            triple.replace("float", "double") + rows(_EXACT_DOUBLE),
            doubles,
            torch.zeros(len(_EXACT_DOUBLE), 256, dtype=torch.float64),
            256,
            "double",
            "double",
        ),
        "float to int": Twin(
            "  const float a = x[t];\n" + rows(_TO_INT),
            whole,
            torch.zeros(len(_TO_INT), len(whole), dtype=torch.int32),
            len(whole),
            "float",
        ),
        "functions": Twin(
            value + rows(functions),
            near,
            torch.zeros(len(functions), 256),
            256,
            "float",
            "float",
            ulps=10,
            atol=1e-30,
        ),
        "functions in double": Twin(
            "  const double v = x[t];\n"
            + rows(["exp(v)", "log(fabs(v) + 1e-3)", "tanh(v)", "log1p(fabs(v))", "rsqrt(fabs(v) + 1)"]),
            near.double(),
            torch.zeros(5, 256, dtype=torch.float64),
            256,
            "double",
            "double",
            ulps=4,
        ),
        "fast functions": Twin(
            value + rows(list(_FAST)),
            near,
            torch.zeros(len(_FAST), 256),
            256,
            "float",
            "float",
            ulps=max(_FAST.values()),
        ),
        "fast functions near zero": Twin(
            value + rows(_FAST_ABSOLUTE),
            near,
            torch.zeros(len(_FAST_ABSOLUTE), 256),
            256,
            "float",
            "float",
            atol=2e-6,
        ),
    }


_SHORTS = {
    "fp16": ("cuda_fp16.h", "__half", torch.float16),
    "bf16": ("cuda_bf16.h", "__nv_bfloat16", torch.bfloat16),
}
_PACKED = {
    "fp16": ("__floats2half2_rn(x[t], -x[t])", "__half2", "__half22float2", "__halves2half2", "half"),
    "bf16": (
        "__floats2bfloat162_rn(x[t], -x[t])",
        "__nv_bfloat162",
        "__bfloat1622float2",
        "__halves2bfloat162",
        "bfloat16",
    ),
}


def _rounding(dtype: torch.dtype) -> torch.Tensor:
    """Floats at, just beside and half way between the numbers of a 16-bit type."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).float()
    exact = every[every.isfinite()]
    half_way = (exact[:-1].double() + exact[1:].double()).float() / 2
    beside = [torch.nextafter(half_way, half_way + s * half_way.abs().clamp(min=1e-38)) for s in (1.0, -1.0)]
    more = torch.tensor(
        [65519.99, 65520.0, 65536.0, 3.3961e38, 3.4028235e38, 1e-45, -1e-45, float("nan"), float("inf")]
    )
    all_of_them = torch.cat([more, -more, exact, half_way, *beside])
    return all_of_them[: len(all_of_them) // THREADS * THREADS]


def conversions() -> dict[str, Twin]:
    found = {}
    for name, (header, word, dtype) in _SHORTS.items():
        include = f"#include <{header}>"
        packed, pair, unpack, join, short = _PACKED[name]
        every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
        floats = _rounding(dtype)
        doubles = torch.cat([floats.double() * (1 + s * 2.0**-40) for s in (0.0, 1.0, -1.0)])
        to_float = "__half2float" if name == "fp16" else "__bfloat162float"
        from_float = "__float2half" if name == "fp16" else "__float2bfloat16"
        bits = f"__{short}_as_ushort", f"__ushort_as_{short}"
        found[f"{name} to float"] = Twin(
            rows(
                ["static_cast<float>(x[t])", f"{to_float}(x[t])", f"{to_float}({bits[1]}({bits[0]}(x[t])))"]
            ),
            every,
            torch.zeros(3, 65536),
            65536,
            word,
            "float",
            includes=include,
            block=256,
        )
        found[f"float to {name}"] = Twin(
            rows([f"static_cast<{word}>(x[t])", f"{from_float}(x[t])", f"{from_float}_rn(x[t])"]),
            floats,
            torch.zeros(3, len(floats), dtype=dtype),
            len(floats),
            "float",
            word,
            includes=include,
        )
        found[f"double to {name}"] = Twin(
            f"  y[t] = static_cast<{word}>(x[t]);\n",
            doubles,
            torch.zeros(len(doubles), dtype=dtype),
            len(doubles),
            "double",
            word,
            includes=include,
        )
        found[f"int to {name}"] = Twin(
            f"  y[t] = static_cast<{word}>(x[t]);\n",
            integers(),
            torch.zeros(64, dtype=dtype),
            64,
            "int",
            word,
            includes=include,
        )
        body = (
            f"  const {pair} both = {packed};\n  const float2 back = {unpack}(both);\n"
            f"  const {pair} again = {join}(both.y, both.x);\n"
        )
        values = ["__low2float(both)", "__high2float(both)", "back.x", "back.y", "__low2float(again)"]
        values += ["__low2float(__float22half2_rn(make_float2(x[t], 0.0f)))"] if name == "fp16" else []
        found[f"pairs of {name}"] = Twin(
            body + rows(values),
            floats[::13][:4096].contiguous(),
            torch.zeros(len(values), 4096),
            4096,
            "float",
            "float",
            includes=include,
        )
        operations = ["a + b", "a - b", "a * b"]
        a = every[::31][:2048].contiguous()
        found[f"arithmetic of {name}"] = Twin(
            f"  const {word} a = x[t], b = x[n + t];\n" + rows(operations),
            torch.stack([a, every.flip(0)[::37][: len(a)] if len(every[::37]) >= len(a) else a.flip(0)]),
            torch.zeros(len(operations), len(a), dtype=dtype),
            len(a),
            word,
            word,
            includes=include,
        )
        compared = ["a < b", "a > b", "a == b", "a != b"]
        found[f"comparison of {name}"] = Twin(
            f"  const {word} a = x[t], b = x[n + t];\n" + rows(compared, "int"),
            torch.stack([a, a.flip(0)]),
            torch.zeros(len(compared), len(a), dtype=torch.int32),
            len(a),
            word,
            includes=include,
        )
    return found
