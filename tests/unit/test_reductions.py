# SPDX-License-Identifier: Apache-2.0
"""The references of the reductions: PyTorch's own, along any axes, and growing with each value."""

from __future__ import annotations

import pytest
import torch
from coldforge.templates.pointwise import POINTWISE
from coldforge.templates.reductions import REDUCTIONS

EXPECTED = {
    "logsumexp": lambda v, axes, keep: v.exp().sum(axes, keepdim=keep).log(),
    "sum": lambda v, axes, keep: v.sum(axes, keepdim=keep),
    "mean": lambda v, axes, keep: v.sum(axes, keepdim=keep) / 12,
    "amax": lambda v, axes, keep: -((-v).amin(axes, keepdim=keep)),
    "amin": lambda v, axes, keep: v.sort(1).values.transpose(0, 1)[0].amin(-1)[(...,) + (None,) * 2 * keep],
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("axes", [(1, 2), [1, 2]])
def test_is_what_it_is_called(name: str, keepdim: bool, axes: list[int]) -> None:
    v = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    got = REDUCTIONS[name].reference(v, axes, keepdim)
    assert got.shape == ((2, 1, 1) if keepdim else (2,))
    torch.testing.assert_close(got, EXPECTED[name](v, tuple(axes), keepdim))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_of_one_value_is_that_value(name: str, dtype: torch.dtype) -> None:
    # So a kernel has nothing to do where a chain reduces the pixels of an output that has one.
    v = torch.tensor([[0.0], [-3.5], [1e30], [float("inf")], [-float("inf")]], dtype=dtype)
    assert torch.equal(REDUCTIONS[name].reference(v, [1], False), v[:, 0])


@pytest.mark.parametrize("name", REDUCTIONS)
def test_grows_with_each_value(name: str) -> None:
    # The error bound of a check rests on it.
    g = torch.Generator().manual_seed(2)
    v = torch.randn(50, 6, dtype=torch.float64, generator=g)
    up = v + torch.rand(50, 6, dtype=torch.float64, generator=g)
    low, high = (REDUCTIONS[name].reference(t, [1], False) for t in (v, up))
    assert bool((low <= high).all())


def test_large_values_do_not_overflow() -> None:
    v = torch.tensor([[1000.0, 1000.0], [-1000.0, -1000.0], [-float("inf"), -float("inf")]])
    got = REDUCTIONS["logsumexp"].reference(v, [1], False)
    log2 = torch.tensor(2.0).log()
    torch.testing.assert_close(got, torch.stack([1000 + log2, -1000 + log2, torch.tensor(-float("inf"))]))


def test_names_are_those_of_no_operation() -> None:
    assert set(REDUCTIONS) & set(POINTWISE) == set()
    assert {row.scale for row in REDUCTIONS.values()} <= {"terms", "result", "none"}
    assert all(row.roundings > 0 or row.scale == "none" for row in REDUCTIONS.values())
