# SPDX-License-Identifier: Apache-2.0
"""What spaces of the convolution leave out."""

from __future__ import annotations

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import make_problem
from coldforge.codegen.space import Config
from coldforge.codegen.target import cuda_target

SM90 = cuda_target("sm_90")
OPERATOR = catalogue().operator("conv2d_divide_leaky_relu")
WARPGROUP = catalogue().space(OPERATOR, SM90, "warpgroup")


@pytest.mark.parametrize(("columns", "run", "legal"), [(32, 64, False), (64, 64, True), (64, 128, False)])
def test_a_run_is_mostly_pixels_of_its_tile_whatever_the_image(columns: int, run: int, legal: bool) -> None:
    problem = make_problem(OPERATOR, "seed", dtype="fp16")
    config = Config({**WARPGROUP.default, "PRODUCTS": 1, "COLUMNS": columns, "RUN": run})
    reason = WARPGROUP.check(problem, config, SM90)
    assert (reason is None) == legal
    assert legal or "of a tile's row" in str(reason)
