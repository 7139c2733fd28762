# SPDX-License-Identifier: Apache-2.0
"""Twins of matrix products of a warp, and of what brings numbers there and back."""

from __future__ import annotations

import torch
from twin import THREADS, Twin, ints

_INCLUDES = '#include "coldforge/matrix.cuh"'
_TILE = """
  __shared__ alignas(16) unsigned tile[2][32][4];
  for (int i = 0; i < 4; ++i) tile[threadIdx.x / 32][lane][i] = x[(threadIdx.x / 32 * 32 + lane) * 4 + i];
  __syncwarp();
  unsigned part[4];
"""
# A lane's pieces are rows of `x`: six words for the factors, four floats to begin with.
_PIECES = """
  const unsigned* own = reinterpret_cast<const unsigned*>(x) + t * 10;
  float sum[4], other[4];
  for (int i = 0; i < 4; ++i) other[i] = sum[i] = __uint_as_float(own[6 + i]);
  coldforge::multiply_halves(sum, own[0], own[1], own[2], own[3], own[4], own[5]);
  coldforge::multiply_halves(other, own[0], own[1], own[4]);
  for (int i = 0; i < 4; ++i) y[i * n + t] = sum[i];
  for (int i = 0; i < 4; ++i) y[(4 + i) * n + t] = other[i];
"""


# Four warps, each with its rows; columns of the right factor follow at 16 bytes, the second eight terms of
# the
# first at a place of their own. Then the results leave by the copy engine.
_FOUR_WARPS = """
  __shared__ alignas(128) unsigned tile[3 * 128 * 4];
  for (int i = t; i < 3 * 128 * 4; i += 128) tile[i] = x[i];
  const unsigned* own = x + 3 * 128 * 4 + t * 4;
  const unsigned a[4] = {own[0], own[1], own[2], own[3]};
  coldforge::publish_shared();
  __syncthreads();
  float small[16], middle[32], large[64];
  for (int i = 0; i < 64; ++i) small[i % 16] = middle[i % 32] = large[i] = 7.0f;
  coldforge::warpgroup_begin();
  coldforge::multiply_warpgroup(small, a, tile, 48, 130 * 16, false);
  coldforge::multiply_warpgroup(middle, a, tile, 16, 129 * 16, false);
  coldforge::multiply_warpgroup(middle, a, tile, 0, 64 * 16, true);
  coldforge::multiply_warpgroup(large, a, tile, 0, 128 * 16, true);
  coldforge::warpgroup_commit();
  coldforge::warpgroup_wait<0>();
  __shared__ alignas(16) float results[128][4];
  for (int i = 0; i < 28; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int at = i * 4 + j;
      results[t][j] = at < 16 ? small[at & 15] : at < 48 ? middle[(at - 16) & 31] : large[(at - 48) & 63];
    }
    coldforge::publish_shared();
    coldforge::bulk_store(y + (i * n + t) * 4, results[t], 16);
    coldforge::bulk_commit();
    coldforge::bulk_wait_read();
  }
  if (coldforge::matrix_descriptor(tile, 0, 16) == 1) y[0] = 1.0f;
"""


def _pieces(halves: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """[64, 12] halves and [64, 4] floats as the words of each lane."""
    return torch.cat([halves.contiguous().view(torch.int32), sums.contiguous().view(torch.int32)], dim=1)


def matrices() -> dict[str, Twin]:
    """By name."""
    generator = torch.Generator().manual_seed(11)
    words = torch.arange(THREADS * 4, dtype=torch.int32) * -1640531527
    # Small whole numbers: whatever the order, every sum is exact.
    whole = torch.randint(-60, 61, (THREADS, 12), generator=generator).half()
    start = torch.randint(-1000, 1000, (THREADS, 4), generator=generator).float()
    some = torch.randn(THREADS, 12, generator=generator).half()
    limits = torch.tensor(
        [0.0, -0.0, float("inf"), -float("inf"), 65504.0, 65519.0, 65520.0, 6e-8, 3e-8, 2e-8]
    )
    floats = torch.cat([limits, torch.randn(THREADS * 2 - len(limits), generator=generator) * 1e-3])
    products = torch.zeros(8, THREADS)
    factors = torch.randint(-30, 31, (3 * 128 * 8 + 128 * 8,), generator=generator).half()
    return {
        "matrices from shared memory": Twin(
            _TILE + "  coldforge::load_matrices(part, &tile[threadIdx.x / 32][0][0], "
            "static_cast<unsigned>((lane ^ 5) * 16));\n"
            "  for (int i = 0; i < 4; ++i) y[i * n + t] = part[i];\n",
            words,
            torch.zeros(4, THREADS, dtype=torch.int32),
            THREADS,
            "unsigned",
            "unsigned",
            includes=_INCLUDES,
        ),
        "products of whole numbers": Twin(
            _PIECES, _pieces(whole, start), products, THREADS, "unsigned", "float", includes=_INCLUDES
        ),
        "products of halves": Twin(
            _PIECES,
            _pieces(some, torch.zeros(THREADS, 4)),
            products,
            THREADS,
            "unsigned",
            "float",
            includes=_INCLUDES,
            atol=4e-6,
        ),
        "products of four warps": Twin(
            _FOUR_WARPS,
            factors.view(torch.int32),
            torch.zeros(28, 128, 4),
            128,
            "unsigned",
            "float",
            includes='// for sm_90a\n#include "coldforge/warpgroup.cuh"',
            block=128,
            archs=("sm_90",),
        ),
        "halves in pairs": Twin(
            "  const float low = __uint_as_float(coldforge::held(x[t])), high = __uint_as_float(x[n + t]);\n"
            "  const unsigned pair = coldforge::pack_halves(low, high);\n"
            "  y[t] = pair;\n"
            "  y[n + t] = __float_as_uint(coldforge::low_half(x[t] & 0xbfffbfffu));\n"
            "  y[2 * n + t] = __float_as_uint(coldforge::high_half(pair));\n",
            ints(floats.numpy().view("uint32")),
            torch.zeros(3, THREADS, dtype=torch.int32),
            THREADS,
            "unsigned",
            "unsigned",
            includes=_INCLUDES,
        ),
    }
