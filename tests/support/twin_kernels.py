# SPDX-License-Identifier: Apache-2.0
"""Small kernels, one for each group of words that the emulator has a twin of: what it makes of them must be
what the hardware makes of them, on inputs chosen for the corners.

Words that have no answer to compare are not here: fences, clocks and sleeping.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import twin_engine
import twin_matrices
import twin_numbers
from twin import Twin, integers, rows

_EXCHANGES = [
    "__shfl_sync(0xffffffffu, v, 5)",
    "__shfl_sync(0xffffffffu, v, lane + 37)",
    "__shfl_sync(0xffffffffu, v, -1)",
    *(f"__shfl_sync(0xffffffffu, v, lane * 3 + 1, {width})" for width in (1, 2, 4, 8, 16, 32)),
    *(
        f"__shfl_up_sync(0xffffffffu, v, {by}, {width})"
        for by, width in ((0, 32), (3, 32), (2, 8), (5, 4), (1, 1))
    ),
    *(f"__shfl_down_sync(0xffffffffu, v, {by}, {width})" for by, width in ((7, 32), (3, 16), (9, 8), (1, 2))),
    *(
        f"__shfl_xor_sync(0xffffffffu, v, {by}, {width})"
        for by, width in ((9, 32), (9, 8), (3, 4), (16, 16), (31, 32))
    ),
]
# Lanes of a mask that is closed under `^ 1`, so that a lane may ask its neighbour; the others stand aside.
_MASK = "0xcc33f00fu"
_PARTLY = [
    f"__shfl_xor_sync({_MASK}, v, 1)",
    f"__shfl_sync({_MASK}, v, lane ^ 1)",
    f"__shfl_sync({_MASK}, v, 12)",
    f"__ballot_sync({_MASK}, v & 1)",
    f"__any_sync({_MASK}, v == 17)",
    f"__all_sync({_MASK}, v != 17)",
    f"__match_any_sync({_MASK}, v % 3)",
    *(f"__reduce_{op}_sync({_MASK}, v)" for op in ("add", "min", "max")),
    *(
        f"__reduce_{op}_sync({_MASK}, static_cast<unsigned>(v))"
        for op in ("add", "min", "max", "and", "or", "xor")
    ),
]
_VOTES = [each.replace(_MASK, "0xffffffffu") for each in _PARTLY[3:]]

_ATOMICS = ["Add", "Sub", "Min", "Max", "And", "Or", "Xor", "Exch", "Inc", "Dec"]
_SIGNED = ["Add", "Sub", "Min", "Max", "And", "Or", "Xor", "Exch"]


def _atomics() -> dict[str, Twin]:
    """Each thread updates a word of its own: what was there and what is then; and all of them one word."""
    x = integers()
    other = x.flip(0)
    found = {}
    for word, names in (("unsigned", _ATOMICS), ("int", _SIGNED)):
        body = "".join(
            f"  y[{2 * i} * n + t] = x[n + t];\n"
            f"  y[{2 * i + 1} * n + t] = atomic{name}(&y[{2 * i} * n + t], x[t]);\n"
            for i, name in enumerate(names)
        )
        body += f"  y[{2 * len(names)} * n + t] = x[n + t];\n"
        body += f"  atomicCAS(&y[{2 * len(names)} * n + t], x[n + t], x[t]);\n"
        start = torch.zeros(2 * len(names) + 1, 64, dtype=torch.int32)
        found[f"atomics on {word}"] = Twin(body, torch.stack([x, other]), start, 64, word, word)
    together = [name for name in _ATOMICS if name not in ("Exch", "Inc", "Dec")]
    body = "".join(f"  atomic{name}(&y[{i}], x[t]);\n" for i, name in enumerate(together))
    body += f"  atomicInc(&y[{len(together)}], 40u);\n  atomicDec(&y[{len(together) + 1}], 40u);\n"
    shared = "  __shared__ unsigned s[2];\n  if (threadIdx.x < 2) s[threadIdx.x] = 7u;\n  __syncthreads();\n"
    shared += "  atomicAdd_block(&s[0], x[t]);\n  atomicMax(&s[1], x[t]);\n  __syncthreads();\n"
    shared += (
        f"  if (threadIdx.x < 2) atomicAdd_system(&y[{len(together) + 2} + threadIdx.x], s[threadIdx.x]);\n"
    )
    start = torch.full((len(together) + 4,), 77, dtype=torch.int32)
    found["atomics of many threads"] = Twin(body + shared, x, start, 64, "unsigned", "unsigned", block=32)
    exact = (torch.arange(64) * 37 % 101 - 50).double()
    add = "  atomicAdd(&y[0], x[t]);\n"
    exchange = "  y[1 + t] = x[t];\n  y[65 + t] = atomicExch(&y[1 + t], x[t] * 0.5f);\n"
    found["atomics on double"] = Twin(add, exact, torch.zeros(1, dtype=torch.float64), 64, "double", "double")
    found["atomics on float"] = Twin(add + exchange, exact.float(), torch.zeros(129), 64, "float", "float")
    return found


_BITS = [
    "__popc(v)",
    "__clz(v)",
    "__ffs(v)",
    "__brev(v)",
    "__umulhi(v, 0x9e3779b9u)",
    "__mulhi(v, -1640531527)",
    "__popcll(w)",
    "__clzll(w)",
    "__ffsll(w)",
    "static_cast<int>(__umul64hi(w, 0x9e3779b97f4a7c15ull))",
    "static_cast<int>(__umul64hi(w, 0x9e3779b97f4a7c15ull) >> 32)",
    "min(v, -7)",
    "max(static_cast<unsigned>(v), 7u)",
    "min(static_cast<long long>(v), -3ll)",
    "abs(v == static_cast<int>(0x80000000u) ? 0 : v)",
]

_HINTED = ["__ldg", "__ldca", "__ldcg", "__ldcs", "__ldcv", "__ldlu"]
_STORES = ["__stcg", "__stcs", "__stwb", "__stwt"]
_OWN_LOADS = ["LoadPlain", "LoadStreaming", "LoadNoAllocate"]


def _memory() -> dict[str, Twin]:
    words = torch.arange(4096, dtype=torch.int32) * -1640531527
    found = {}
    body = "".join(
        f"  {{ const {kind} v = {load}(reinterpret_cast<const {kind}*>(x) + t); "
        f"{store}(reinterpret_cast<{kind}*>(y + {row * 256}) + t, v); }}\n"
        for row, (load, store, kind) in enumerate(
            (load, _STORES[i % 4], kind)
            for i, load in enumerate(_HINTED)
            for kind in (
                "unsigned",
                "uint2",
                "uint4",
                "unsigned short",
                "float",
                "float4",
                "double",
                "long long",
            )
        )
    )
    found["loads and stores with hints"] = Twin(
        body, words[:256], torch.zeros(len(_HINTED) * 8 * 256, dtype=torch.int32), 64
    )
    kinds = [
        (way, size, elements)
        for way in [*_OWN_LOADS, "vector", "readonly"]
        for size, elements in (
            ("float", 1),
            ("float", 2),
            ("float", 4),
            ("unsigned short", 1),
            ("unsigned short", 2),
            ("unsigned short", 4),
            ("unsigned short", 8),
            ("double", 1),
            ("double", 2),
        )
    ]
    body = "  coldforge::prefetch_l2(x + t);\n"
    for row, (way, kind, elements) in enumerate(kinds):
        load = f"{way}::load<{elements}>" if way in _OWN_LOADS else f"load_{way}<{elements}>"
        body += (
            f"  {{ const auto v = coldforge::{load}(reinterpret_cast<const {kind}*>(x) + t * {elements});\n"
            f"    auto* to = reinterpret_cast<{kind}*>(y + {row * 256}) + t * {elements};\n"
            f"    coldforge::store_vector<{elements}>(to, v); }}\n"
        )
    body += f"  y[{len(kinds) * 256} + t] = coldforge::load_written(x + t);\n"
    found["vector loads and stores"] = Twin(
        body,
        words[:256],
        torch.zeros((len(kinds) + 1) * 256, dtype=torch.int32),
        64,
        includes='#include "coldforge/stream_load.cuh"',
    )
    found["background copies"] = _copies(words)
    return found


def _copies(words: torch.Tensor) -> Twin:
    """Copies of 4, 8 and 16 bytes, every third one zeros instead, in groups that are waited for singly."""
    body = "  __shared__ alignas(16) unsigned tile[3][4 * 64];\n"
    body += "  for (int i = t; i < 3 * 4 * 64; i += 64) tile[i / 256][i % 256] = 0xdeadbeefu;\n"
    body += "  __syncthreads();\n"
    for stage, size in enumerate((4, 8, 16)):
        step = size // 4
        body += (
            f"  coldforge::cp_async<{size}>(&tile[{stage}][t * {step}], x + {stage} * 256 + t * {step},\n"
            f"                              t % 3 != {stage});\n"
            "  coldforge::cp_async_commit();\n"
        )
    for stage in range(3):
        body += f"  coldforge::cp_async_wait<{2 - stage}>();\n  __syncthreads();\n"
        body += f"  for (int i = t; i < 256; i += 64) y[{stage} * 256 + i] = tile[{stage}][i ^ 1];\n"
    body += "  if (coldforge::shared_address(&tile[0][0]) % 16 != 0) y[0] = 1u;\n"
    body += "  const auto first = __cvta_generic_to_shared(&tile[0][0]);\n"
    body += "  if (__cvta_generic_to_shared(&tile[0][1]) - first != 4) y[1] = 1u;\n"
    return Twin(
        body,
        words[:768],
        torch.zeros(768, dtype=torch.int32),
        64,
        "unsigned",
        "unsigned",
        includes='#include "coldforge/memory.cuh"',
    )


_ARRIVAL = """
  __shared__ bool last;
  unsigned* counter = reinterpret_cast<unsigned*>(y + n + 64);
  y[t] = x[t] * 3;
  __syncthreads();
  if (threadIdx.x == 0) last = coldforge::arrive(counter, 1, gridDim.x);
  __syncthreads();
  if (!last) return;
  int sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 64) sum += coldforge::load_written(y + i);
  y[n + threadIdx.x] = __reduce_add_sync(0xffffffffu, sum);
"""
_BARRIERS = [
    "__syncthreads_count(x[t] > 20)",
    "__syncthreads_and(x[t] >= 0) * 2 + __syncthreads_or(x[t] > 38)",
]


def _together() -> dict[str, Twin]:
    x = (torch.arange(64, dtype=torch.int32) * 29 % 83) - 9
    full, part = "  const int v = x[t];\n", f"  const int v = x[t];\n  if ({_MASK} >> lane & 1u) {{\n"
    wide = [each.replace("v,", "w,") for each in _EXCHANGES]
    return {
        "shuffles": Twin(full + rows(_EXCHANGES), x, torch.zeros(len(_EXCHANGES), 64, dtype=torch.int32), 64),
        "shuffles of long long": Twin(
            "  const long long w = x[t] * 0x123456789ll;\n" + rows(wide),
            x,
            torch.zeros(len(wide), 64, dtype=torch.int64),
            64,
            "int",
            "long long",
        ),
        "shuffles of double": Twin(
            "  const double w = x[t] * 1.1;\n" + rows(wide),
            x,
            torch.zeros(len(wide), 64, dtype=torch.float64),
            64,
            "int",
            "double",
        ),
        "votes and reductions": Twin(
            full + rows(_VOTES, "int"), x, torch.zeros(len(_VOTES), 64, dtype=torch.int32), 64
        ),
        "some lanes of a warp": Twin(
            part + rows(_PARTLY, "int") + "    __syncwarp(" + _MASK + ");\n  }\n  __syncwarp();\n",
            x,
            torch.zeros(len(_PARTLY), 64, dtype=torch.int32),
            64,
        ),
        "barriers, and a last warp of a few lanes": Twin(
            rows(_BARRIERS, "int")
            + "  const unsigned here = threadIdx.x < 32 ? 0xffffffffu : 0xffu;\n"
            + "  y[2 * n + t] = __shfl_sync(here, x[t], 7);\n"
            "  y[3 * n + t] = __popc(__ballot_sync(here, 1));\n",
            torch.arange(40, dtype=torch.int32),
            torch.zeros(4, 40, dtype=torch.int32),
            40,
            block=40,
        ),
        "bits": Twin(
            "  const int v = x[t];\n  const long long w = static_cast<long long>("
            "static_cast<unsigned long long>(static_cast<unsigned>(v)) << 32 | "
            "static_cast<unsigned>(x[63 - t]));\n" + rows(_BITS, "int"),
            integers(),
            torch.zeros(len(_BITS), 64, dtype=torch.int32),
            64,
        ),
        "arrivals": Twin(
            _ARRIVAL,
            torch.arange(64 * 300, dtype=torch.int32),
            torch.zeros(64 * 300 + 65, dtype=torch.int32),
            64 * 300,
            includes='#include "coldforge/arrival.cuh"\n#include "coldforge/stream_load.cuh"',
        ),
    }


def twins() -> Mapping[str, Twin]:
    """All of them by name."""
    return {
        **_together(),
        **_atomics(),
        **_memory(),
        **twin_numbers.arithmetic(),
        **twin_numbers.conversions(),
        **twin_matrices.matrices(),
        **twin_engine.engine(),
    }
