# SPDX-License-Identifier: Apache-2.0
"""Twins of matrix products of a warp, and of what brings numbers there and back."""

from __future__ import annotations

import torch
from twin import THREADS, Twin, ints
from twin_layouts import in_units, left_factor, right_factor, sums_of, whole

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
# the first at a place of their own. Then the results leave by the copy engine.
_FOUR_WARPS = """
  __shared__ alignas(128) unsigned tile[3 * 128 * 4];
  for (int i = t; i < 3 * 128 * 4; i += 128) tile[i] = x[i];
  const unsigned* own = x + 3 * 128 * 4 + t * 4;
  const unsigned a[4] = {own[0], own[1], own[2], own[3]};
  coldforge::publish_shared();
  __syncthreads();
  float small[16], middle[32], large[64];
  for (int i = 0; i < 64; ++i) small[i % 16] = middle[i % 32] = large[i] = 7.0f;
  const coldforge::MatrixPlace tiles(tile);
  coldforge::warpgroup_begin();
  coldforge::multiply_warpgroup<false>(small, a, tiles.at(48, 130 * 16));
  coldforge::multiply_warpgroup<true>(small, a, tiles.at(32, 0));
  coldforge::multiply_warpgroup<false>(middle, a, tiles.at(16, 129 * 16));
  coldforge::multiply_warpgroup<true>(middle, a, tiles.at(0, 64 * 16));
  coldforge::multiply_warpgroup<true>(large, a, tiles.at(0, 128 * 16));
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
"""
_STORED = """
  __shared__ alignas(16) unsigned tile[2][32][4];
  const unsigned part[4] = {x[t], x[n + t], x[2 * n + t], x[3 * n + t]};
  coldforge::store_matrices(&tile[threadIdx.x / 32][0][0], static_cast<unsigned>((lane ^ 5) * 16), part);
  __syncwarp();
  for (int i = 0; i < 4; ++i) y[t * 4 + i] = tile[threadIdx.x / 32][lane][i];
"""


def _pieces(halves: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """[64, 12] halves and [64, 4] floats as the words of each lane."""
    return torch.cat([halves.contiguous().view(torch.int32), sums.contiguous().view(torch.int32)], dim=1)


def _loaded(words: torch.Tensor) -> torch.Tensor:
    """What load_matrices gives in the order of lanes that its twin has: [4, 64]."""
    rows, lane = words.view(2, 32, 4), torch.arange(32)
    parts = [rows[:, (8 * i + lane // 4) ^ 5, lane % 4].reshape(-1) for i in range(4)]
    return torch.stack(parts)


def _stored(words: torch.Tensor) -> torch.Tensor:
    """The inverse."""
    tile = torch.zeros(2, 32, 4, dtype=torch.int32)
    lane = torch.arange(32)
    for i in range(4):
        tile[:, (8 * i + lane // 4) ^ 5, lane % 4] = words.view(4, 2, 32)[i]
    return tile.reshape(-1)


def _products(halves: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """[8, 64]: of 16 terms, then of their first eight."""
    found = []
    for own, sums in zip(halves.view(2, 32, 12), start.view(2, 32, 4), strict=True):
        left, right = left_factor(own[:, :8]), right_factor(own[:, 8:])
        both = [left @ right, left[:, :8] @ right[:8]]
        found.append(torch.cat([sums_of(whole(sums) + each) for each in both], dim=1).T)
    return torch.cat(found, dim=1).float()


def _by_lanes(*products: torch.Tensor) -> torch.Tensor:
    """[64, columns] each -> [128, sums] of all."""
    of_warps = [torch.cat([sums_of(each) for each in product.split(16)]) for product in products]
    return torch.cat(of_warps, dim=1).float()


def _four_warps(halves: torch.Tensor) -> torch.Tensor:
    units = halves[: 3 * 128 * 8].view(-1, 8)
    left = torch.cat([left_factor(own) for own in halves[3 * 128 * 8 :].view(4, 32, 8)])
    # The same eight terms twice: a single last unit is multiplied so, the second time with weights of zero.
    small = left @ in_units(units, 3, 130, 32) + left @ in_units(units, 2, 0, 32)
    middle = left @ in_units(units, 1, 129, 64) + left @ in_units(units, 0, 64, 64)
    return _by_lanes(small, middle, 7 + left @ in_units(units, 0, 128, 128))


def matrices() -> dict[str, Twin]:
    """By name."""
    generator = torch.Generator().manual_seed(11)
    words = torch.arange(THREADS * 4, dtype=torch.int32) * -1640531527
    # Small whole numbers: whatever the order, every sum is exact.
    numbers = torch.randint(-60, 61, (THREADS, 12), generator=generator).half()
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
            expected=_loaded(words),
        ),
        "matrices to shared memory": Twin(
            _STORED,
            words,
            torch.zeros(4 * THREADS, dtype=torch.int32),
            THREADS,
            "unsigned",
            "unsigned",
            includes=_INCLUDES,
            archs=("sm_90", "sm_100", "sm_120"),
            expected=_stored(words),
        ),
        "products of whole numbers": Twin(
            _PIECES,
            _pieces(numbers, start),
            products,
            THREADS,
            "unsigned",
            "float",
            includes=_INCLUDES,
            expected=_products(numbers, start),
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
            expected=_products(some, torch.zeros(THREADS, 4)),
        ),
        "products of bfloats": Twin(
            _PIECES.replace("multiply_halves", "multiply_bfloats"),
            _pieces(some.bfloat16(), torch.zeros(THREADS, 4)),
            products,
            THREADS,
            "unsigned",
            "float",
            includes=_INCLUDES,
            atol=4e-6,
            expected=_products(some.bfloat16(), torch.zeros(THREADS, 4)),
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
            expected=_four_warps(factors).view(128, 28, 4).permute(1, 0, 2),
        ),
        "halves in pairs": Twin(
            "  const float low = __uint_as_float(coldforge::apart(x[t])), high = __uint_as_float(x[n + t]);\n"
            "  const unsigned pair = coldforge::pack_halves(low, high);\n"
            "  y[t] = coldforge::uniform(coldforge::held(7u)) == 7u ? pair : 0u;\n"
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
