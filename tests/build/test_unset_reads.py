# SPDX-License-Identifier: Apache-2.0
"""Variables that may be read before they are set: some number on the CPU, to NVRTC a licence to leave out
what depends on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Cache
from coldforge.codegen.emulator import unset_reads
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import KernelSource, render
from coldforge.codegen.space import Space
from coldforge.codegen.target import cuda_target
from coldforge.tuner.check import run
from coldforge.tuner.check.cases import build_cases

pytestmark = pytest.mark.build

SM90 = cuda_target("sm_90")
SET, UNSET = "own(own),\n        written(0) {", "own(own) {"


@pytest.fixture(scope="module")
def space() -> Space:
    operator = catalogue().operator("conv2d_divide_leaky_relu")
    return catalogue().space(operator, SM90, "warpgroup")


@pytest.fixture(scope="module")
def source(space: Space) -> KernelSource:
    problem = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "seed", {}, "fp32")
    return render(space, problem, space.default, SM90)


def test_a_member_that_no_constructor_sets(space: Space, source: KernelSource) -> None:
    assert unset_reads(source, space.file) == []
    assert source.text.count(SET) == 1
    (said,) = unset_reads(replace(source, text=source.text.replace(SET, UNSET)), space.file)
    assert said.startswith("coldforge/conv2d_warpgroup.cuh:")
    assert said.endswith(": written may be read before it is set")


def test_check_says_so_at_its_line(
    space: Space, source: KernelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = replace(source, text=source.text.replace(SET, UNSET))
    (fault,) = run._unset(bad, space)
    assert (fault.cause, fault.build) == ("uninitialised", "static")
    assert fault.refused_at is not None
    assert fault.refused_at.file == "coldforge/conv2d_warpgroup.cuh"
    assert "written may be read before it is set" in fault.text

    def rendered(*_: object) -> KernelSource:
        return bad

    monkeypatch.setattr(run, "render", rendered)
    monkeypatch.setattr(run, "BUILDS", ())
    problem = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small", {}, "fp32")
    checked = run.check_config(space, space.default, SM90, build_cases(problem, "fp32")[:1], Cache(tmp_path))
    assert [(each.cause, each.build) for each in checked.faults] == [("uninitialised", "static")]
