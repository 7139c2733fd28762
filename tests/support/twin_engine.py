# SPDX-License-Identifier: Apache-2.0
"""Twins of the copy engine, its barriers, and barriers of some of a block's threads."""

from __future__ import annotations

import torch
from twin import Twin

_TILES, _WORDS = 5, 128
# Two buffers take turns; each of three warps reads what it has waited for and says when it is done. The third
# barrier counts arrivals alone.
_RING = """
  constexpr int T = 128;
  __shared__ alignas(128) unsigned stages[2][T];
  __shared__ alignas(128) unsigned out[2][T];
  __shared__ alignas(8) unsigned long long full[2];
  __shared__ alignas(8) unsigned long long empty[2];
  __shared__ alignas(8) unsigned long long turn;
  if (t == 0) {
    for (int i = 0; i < 2; ++i) {
      coldforge::mbarrier_init(&full[i], 2);
      coldforge::mbarrier_init(&empty[i], 64);
    }
    coldforge::mbarrier_init(&turn, 64);
    coldforge::fence_barrier_init();
  }
  __syncthreads();
  if (t < 32) {
    for (int tile = 0; t == 0 && tile < 5; ++tile) {
      const int stage = tile % 2, use = tile / 2;
      coldforge::mbarrier_wait(&empty[stage], (use & 1) ^ 1);
      coldforge::mbarrier_expect(&full[stage], 256);
      coldforge::bulk_load(stages[stage], x + tile * T, 256, &full[stage]);
      coldforge::bulk_load(stages[stage] + 64, x + tile * T + 64, 256, &full[stage]);
      coldforge::mbarrier_expect(&full[stage], 256);
    }
    return;
  }
  const int c = t - 32;
  for (int tile = 0; tile < 5; ++tile) {
    const int stage = tile % 2, use = tile / 2;
    coldforge::mbarrier_wait(&full[stage], use & 1);
    const unsigned low = stages[stage][c ^ 1], high = stages[stage][64 + (c ^ 3)];
    coldforge::mbarrier_arrive(&empty[stage]);
    if (c == 0) coldforge::bulk_wait_read<1>();
    coldforge::mbarrier_arrive(&turn);
    coldforge::mbarrier_wait(&turn, tile & 1);
    out[stage][c] = low * 3u;
    out[stage][64 + c] = high + 1u;
    coldforge::publish_shared();
    coldforge::named_barrier_sync(1, 64);
    if (c == 0) {
      coldforge::bulk_store(y + tile * T, out[stage], 512);
      coldforge::bulk_commit();
    }
  }
  if (c == 0) coldforge::bulk_wait_read();
"""
# A warp hands numbers to each of the others and none to itself, then all of three warps meet.
_HANDOVER = """
  __shared__ int box[4][32];
  __shared__ int sums[96];
  const int warp = t / 32;
  box[warp][lane] = x[t];
  if (warp == 3) {
    coldforge::named_barrier_arrive(15, 128);
  } else {
    coldforge::named_barrier_sync(15, 128);
    sums[t] = box[warp + 1][31 - lane];
    coldforge::named_barrier_sync(7, 96);
    y[t] = sums[(t + 40) % 96];
    coldforge::named_barrier_sync(15, 96);
  }
  __syncthreads();
  if (warp == 3) y[t] = sums[lane];
"""


def engine() -> dict[str, Twin]:
    """By name."""
    x = torch.arange(_TILES * _WORDS, dtype=torch.int32) * -1640531527
    rows = x.view(_TILES, 2, _WORDS // 2)
    c = torch.arange(_WORDS // 2)
    results = torch.stack([rows[:, 0, c ^ 1] * 3, rows[:, 1, c ^ 3] + 1], dim=1).reshape(-1)
    box = torch.arange(128, dtype=torch.int32) * 29 % 83
    sums = box.view(4, 32)[1:].flip(1).reshape(-1)
    return {
        "copies by the copy engine": Twin(
            _RING,
            x,
            torch.zeros(_TILES * _WORDS, dtype=torch.int32),
            96,
            "unsigned",
            "unsigned",
            includes='#include "coldforge/copy_engine.cuh"',
            block=96,
            archs=("sm_90", "sm_100", "sm_120"),
            expected=results,
        ),
        "barriers of some warps": Twin(
            _HANDOVER,
            box,
            torch.zeros(128, dtype=torch.int32),
            128,
            includes='#include "coldforge/memory.cuh"',
            block=128,
            expected=torch.cat([sums.roll(-40), sums[:32]]),
        ),
    }
