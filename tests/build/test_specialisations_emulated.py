# SPDX-License-Identifier: Apache-2.0
"""Every CUDA template in the emulator at other problems than its family's founding one: padding, strides,
dilation, channels that no tile divides, other kernels, absent tensors, 16-bit elements, other chains. A few
configs of each under both sets of checks, at small awkward shapes, against float64."""

from __future__ import annotations

from collections import Counter

import pytest
from coldforge.codegen.problem import Problem
from coldforge.tuner.check.cases import build_cases
from coldforge.tuner.check.run import check_config
from covering_sets import SUBJECTS, faults
from emulator_kernels import shared_cache
from specialisations import few_configs, is_for, specialisations

pytestmark = pytest.mark.build

OF_TEMPLATES = [
    (subject, name)
    for subject in SUBJECTS
    for name, each in specialisations().items()
    if each.family == SUBJECTS[subject].space.family and is_for(subject, each.problem)
]
# What a specialisation may have that the founding one has not; some of each family's must.
FEATURES = {
    "padding": lambda d: d["padding_h"] > 0 and d["padding_w"] > 0,
    "padding on one axis": lambda d: (d["padding_h"] == 0) != (d["padding_w"] == 0),
    "stride": lambda d: d["stride_h"] > 1 and d["stride_w"] > 1,
    "stride on one axis": lambda d: (d["stride_h"] == 1) != (d["stride_w"] == 1),
    "dilation": lambda d: d["dilation_h"] > 1 or d["dilation_w"] > 1,
    "odd channels": lambda d: d["C_in"] % 2 == 1 and d["C_out"] % 2 == 1 and d["C_out"] > 8,
    "one tap": lambda d: d["R"] * d["S"] == 1,
    "one row of taps": lambda d: d["R"] == 1 < d["S"],
    "one column of taps": lambda d: d["S"] == 1 < d["R"],
    "many taps": lambda d: d["R"] * d["S"] > 25,
}
# The same of a family that has groups.
GROUPS = {
    "groups": lambda d: 1 < d["groups"] < d["C_in"],
    "depthwise": lambda d: 1 < d["groups"] == d["C_in"] == d["C_out"],
    "depthwise, several": lambda d: 1 < d["groups"] == d["C_in"] < d["C_out"],
}


@pytest.mark.parametrize("which", ["first", pytest.param("others", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("subject", "name"), OF_TEMPLATES)
def test_right_and_clean(
    subject: str, name: str, which: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    space, target = SUBJECTS[subject].space, SUBJECTS[subject].target
    problem, cache = specialisations()[name].problem, shared_cache(tmp_path_factory)
    few = few_configs(subject)[name]
    assert few or not space.feasible(problem, target)
    configs = few[:1] if which == "first" else few[1:]
    if which == "others" and not configs:
        pytest.skip("one config at most")
    cases = build_cases(problem, problem.dtype.name) if configs else ()
    checked = [check_config(space, config, target, cases, cache) for config in configs]
    assert [line for each in checked for line in faults(each)] == []


def _features(problem: Problem) -> set[str]:
    absent = {f"no {tensor.name}" for tensor in problem.tensors if not tensor.present}
    return {
        *(name for name, has in {**FEATURES, **GROUPS}.items() if has(problem.dims)),
        *absent,
        problem.dtype.name,
        problem.operator.name,
    }


@pytest.mark.parametrize("subject", SUBJECTS)
def test_each_family_has_problems_of_all_kinds(subject: str) -> None:
    founding = SUBJECTS[subject].problem
    problems = [s.problem for s in specialisations().values() if s.family == SUBJECTS[subject].space.family]
    found = Counter(feature for problem in problems for feature in _features(problem))
    optional = {f"no {tensor.name}" for tensor in founding.tensors if tensor.optional}
    groups = GROUPS if SUBJECTS[subject].space.family == "conv2d" else {}
    assert {*FEATURES, *groups, *optional, "fp32", "fp16", "bf16"} <= set(found)
    assert len([p for p in problems if p.operator.name != founding.operator.name]) >= 3
    assert len({problem.operator.name for problem in problems}) >= 3


@pytest.mark.parametrize("subject", SUBJECTS)
def test_values_take_turns(subject: str) -> None:
    space, target = SUBJECTS[subject].space, SUBJECTS[subject].target
    chosen = {name: group for name, group in few_configs(subject).items() if group}
    configs = [config for group in chosen.values() for config in group]
    assert len(chosen) >= 6
    for name, group in chosen.items():
        problem = specialisations()[name].problem
        assert all(space.check(problem, config, target) is None for config in group), name
        assert len(set(group)) == len(group), name
    assert len([group for group in chosen.values() if len(group) >= 2]) >= len(chosen) / 2
    assert space.default in configs
    for parameter in space.parameters:
        used = {config[parameter.name] for config in configs}
        legal = {config[parameter.name] for config in SUBJECTS[subject].configs}
        assert len(used) >= min(3, len(legal)), parameter.name
