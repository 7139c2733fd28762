# SPDX-License-Identifier: Apache-2.0
"""Every CUDA template in the emulator: a set of configs that has every legal pair of values, each under both
sets of checks, at small awkward shapes, against float64."""

from __future__ import annotations

import functools

import pytest
from coldforge.codegen.problem import Problem
from coldforge.tuner.check.cases import SAMPLES, Case, build_cases
from coldforge.tuner.check.instantiations import MOST_CONFIGS
from coldforge.tuner.check.run import check_config
from coldforge.tuner.inputs import ragged_kinds
from coldforge.tuner.shapes import batch_of, batch_size, ragged_problems
from covering_sets import SUBJECTS, covering_set, faults
from emulator_kernels import shared_cache

pytestmark = pytest.mark.build

PARTS = 8
"""Tests that a template's set is spread over."""
FEW_GROUPS = 5


@functools.cache
def _cases(name: str, precision: str = "fp32") -> tuple[Case, ...]:
    return build_cases(_of_few_groups(SUBJECTS[name].problem).in_class(precision), precision)


def _of_few_groups(problem: Problem) -> Problem:
    """The problem with at most FEW_GROUPS of its groups: the others go the way of these."""
    groups = problem.dims.get("groups", 1)
    if groups <= FEW_GROUPS:
        return problem
    channels = {name: problem.dims[name] // groups * FEW_GROUPS for name in ("C_in", "C_out")}
    return problem.with_dims(groups=FEW_GROUPS, **channels)


def _plane(problem: Problem) -> tuple[tuple[str, int], ...]:
    """The run-time sizes without the batch, which the cases cut short."""
    batch = batch_of(problem.operator.family)
    return tuple((name, size) for name, size in sorted(problem.dims.items()) if name != batch)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_covering_set_is_right_and_clean(
    name: str, part: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    subject, cache = SUBJECTS[name], shared_cache(tmp_path_factory)
    mine = covering_set(name)[part::PARTS]
    assert mine
    found = [
        check_config(
            subject.space, config, subject.target, _cases(name, subject.problem_of(config).precision), cache
        )
        for config in mine
    ]
    assert [line for checked in found for line in faults(checked)] == []


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_cases_have_every_shape_and_kind(name: str) -> None:
    problem, cases = _of_few_groups(SUBJECTS[name].problem), _cases(name)
    assert {case.kind for case in cases} == set(ragged_kinds(problem))
    shapes = ragged_problems(problem)
    assert len(shapes) >= 6
    assert {_plane(shape) for shape in shapes} <= {_plane(case.problem) for case in cases}
    assert {batch_size(case.problem) for case in cases} == {1, SAMPLES}
    assert {case.order for case in cases} == {"forward", "reverse", "shuffle:1"}
    assert {case.few_multiprocessors for case in cases} == {True, False}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_space_is_small_enough_to_execute_all_of_it(name: str) -> None:
    configs = SUBJECTS[name].configs
    assert 0 < len(configs) <= MOST_CONFIGS, f"{len(configs)} configs; at most {MOST_CONFIGS}"
