# SPDX-License-Identifier: Apache-2.0
"""Problems of each family other than its founding one, and a few configs of each CUDA template for them.

Those that the mutation run uses are not repeated here: its list is read, with the config that it names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from coldforge.codegen.catalogue import BUILTIN_ROOT, Catalogue
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.space import Config, Space
from covering_sets import SUBJECTS

MUTATION = Path(__file__).parents[1] / "mutation"
CONV, MISH = "conv2d_divide_leaky_relu", "conv2d_mish"
RELU6 = "depthwise_conv2d_relu6"
LOGSUMEXP, SCALE_MEAN = "conv_transpose2d_mean_logsumexp", "conv_transpose2d_scale_mean"
# Operator, words over its workload `small`, dtype.
OWN: dict[str, dict[str, tuple[str, dict[str, int], str]]] = {
    "conv2d": {
        "one tap": (CONV, {"C_in": 33, "C_out": 10, "kernel_size": 1}, "fp32"),
        "one tap, apart": (MISH, {"C_in": 7, "C_out": 19, "kernel_size": 1, "stride": 2, "bias": 0}, "fp16"),
        "a row of taps": (CONV, {"C_in": 5, "C_out": 21, "R": 1, "S": 5, "padding_w": 2, "bias": 0}, "fp32"),
        "a column of taps": (
            CONV,
            {"C_in": 6, "C_out": 9, "R": 5, "S": 1, "dilation_h": 2, "stride_h": 3},
            "fp32",
        ),
        "mish": (MISH, {"C_in": 3, "C_out": 19, "padding": 1, "stride_w": 3}, "fp32"),
        "bf16": (CONV, {"C_in": 5, "C_out": 19, "stride": 2, "padding": 1}, "bf16"),
        "bf16, apart": (MISH, {"C_in": 5, "C_out": 17, "dilation": 2, "padding": 3, "bias": 0}, "bf16"),
        "many taps": (CONV, {"C_in": 2, "C_out": 13, "R": 7, "S": 5, "stride": 2, "padding": 3}, "fp32"),
        "one channel": (CONV, {"C_in": 1, "C_out": 1}, "fp32"),
        "a wide image": (CONV, {"C_in": 5, "C_out": 9, "W": 250}, "fp16"),
        "groups": (CONV, {"C_in": 15, "C_out": 9, "groups": 3, "stride": 2, "padding": 1}, "fp32"),
        "groups, bf16": (MISH, {"C_in": 6, "C_out": 66, "groups": 2, "bias": 0}, "bf16"),
        "depthwise": (RELU6, {"C_in": 3, "C_out": 3, "groups": 3, "bias": 0}, "fp32"),
        "depthwise, apart": (
            RELU6,
            {"C_in": 2, "C_out": 6, "groups": 2, "R": 3, "S": 2, "stride": 2, "dilation_h": 2, "W": 130},
            "bf16",
        ),
        "depthwise, far apart": (
            RELU6,
            {"C_in": 2, "C_out": 2, "groups": 2, "R": 2, "S": 5, "stride_h": 3, "dilation": 2, "padding": 3},
            "fp32",
        ),
        "depthwise, one tap": (
            MISH,
            {"C_in": 5, "C_out": 5, "groups": 5, "kernel_size": 1, "padding": 0, "W": 128},
            "fp16",
        ),
    },
    "conv_transpose2d_mean": {
        "one tap, apart": (SCALE_MEAN, {"C_in": 7, "C_out": 9, "kernel_size": 1, "stride": 3}, "fp32"),
        "a row of taps": (LOGSUMEXP, {"C_in": 3, "C_out": 11, "R": 1, "S": 5, "padding_w": 2}, "fp32"),
        "a column of taps": (
            LOGSUMEXP,
            {
                "C_in": 3,
                "C_out": 7,
                "R": 5,
                "S": 1,
                "padding_h": 3,
                "stride_h": 2,
                "dilation_h": 3,
                "bias": 0,
            },
            "fp32",
        ),
        "bf16": (LOGSUMEXP, {"C_in": 5, "C_out": 13, "bias": 0, "conv_bias": 0}, "bf16"),
        "bf16, padded": (SCALE_MEAN, {"C_in": 3, "C_out": 10, "dilation": 2, "conv_bias": 0}, "bf16"),
        "fp16, padded": (LOGSUMEXP, {"C_in": 3, "C_out": 5, "padding": 2, "stride": 2}, "fp16"),
        "sums of amax": ("conv_transpose2d_mean_amax", {"C_in": 7, "C_out": 33, "padding": 1}, "fp32"),
        "one channel": (LOGSUMEXP, {"C_in": 1, "C_out": 1, "padding": 1, "output_padding": 0}, "fp32"),
    },
}


@dataclass(frozen=True)
class Specialisation:
    """A problem, and which configs it asks for.

    Attributes:
        name: unique.
        wanted: configs by what differs from the space's default; those that are legal are taken.
    """

    name: str
    problem: Problem
    wanted: tuple[Mapping[str, int | str], ...]

    @property
    def family(self) -> str:
        """Its family's name."""
        return self.problem.operator.family.name


@functools.cache
def specialisations() -> dict[str, Specialisation]:
    """All of them by name; exercises of the mutation run that differ in nothing but their config are one."""
    operators = Catalogue((BUILTIN_ROOT, MUTATION))
    found: dict[str, Specialisation] = {}
    for name, operator, shape, dtype, config in (*_of_the_mutation_run(), *_own()):
        problem = make_problem(operators.operator(operator), "small", shape, dtype)
        same = next((s for s in found.values() if s.problem == problem), None)
        if same is None:
            found[name] = Specialisation(name, problem, (config,))
        else:
            found[same.name] = Specialisation(same.name, problem, (*same.wanted, config))
    return found


def _own() -> Iterator[tuple[str, str, dict[str, int], str, dict[str, Any]]]:
    for family, group in OWN.items():
        for name, (operator, shape, dtype) in group.items():
            yield f"{family}: {name}", operator, shape, dtype, {}


def _of_the_mutation_run() -> Iterator[tuple[str, str, dict[str, int], str, dict[str, Any]]]:
    declared = yaml.safe_load((MUTATION / "mutations.yaml").read_text("utf-8"))["exercises"]
    for family in OWN:
        for name, fields in declared[family].items():
            shape, dtype = fields["shape"], fields.get("dtype", "fp32")
            yield f"{family}: {name}", fields["operator"], shape, dtype, fields["config"]


def is_for(subject: str, problem: Problem) -> bool:
    """Whether a template may have a legal config: none of its rules that read no parameter, not even through
    a derived value, is broken."""
    space, target = SUBJECTS[subject].space, SUBJECTS[subject].target
    known: dict[str, Any] = {**target.attributes, **problem.values}
    for name, expression in space.derived.items():
        if expression.names <= set(known):
            known[name] = expression.evaluate(known)
    rules = [rule.require for rule in space.constraints if rule.require.names <= set(known)]
    return all(rule.evaluate(known) for rule in rules)


@functools.cache
def few_configs(subject: str) -> dict[str, tuple[Config, ...]]:
    """By the names of a family's specialisations, the configs of one of its templates: those that it asks for
    and the space's default, where they are legal; where these are less than two, also legal ones with most
    pairs of values that none before them has, so that values take turns. Where only channels are others than
    at the founding problem, one will do. None for what the template refuses altogether."""
    space, target = SUBJECTS[subject].space, SUBJECTS[subject].target
    seen: set[tuple[int, object, object]] = set()
    found: dict[str, tuple[Config, ...]] = {}
    for each in specialisations().values():
        if each.family != space.family or not is_for(subject, each.problem):
            continue
        other = _is_other(each.problem, SUBJECTS[subject].problem)
        asked_for = dict.fromkeys((*_asked_for(space, each.wanted), *([space.default] if other else [])))
        chosen = [config for config in asked_for if space.check(each.problem, config, target) is None]
        for config in chosen:
            seen |= _pairs(config)
        if len(chosen) < (2 if other else 1):
            legal = space.feasible(each.problem, target)
            # A hundred of them, spread over all, are choice enough.
            some = [config for config in legal[:: max(1, len(legal) // 100)] if config not in chosen]
            for _ in range(min((2 if other else 1) - len(chosen), len(some))):
                others = [config for config in some if config not in chosen]
                chosen.append(max(others, key=lambda config: len(_pairs(config) - seen)))
                seen |= _pairs(chosen[-1])
        found[each.name] = tuple(chosen)
    return found


def _is_other(problem: Problem, founding: Problem) -> bool:
    """Whether anything that is compiled in differs, beside the numbers of channels."""

    def compiled_in(each: Problem) -> tuple[object, ...]:
        present = [tensor.present for tensor in each.tensors]
        kernel = {n: v for n, v in each.dims.items() if n not in (*each.sizes, "C_in", "C_out")}
        return each.operator.name, each.dtype.name, present, kernel

    return compiled_in(problem) != compiled_in(founding)


def _asked_for(space: Space, wanted: Sequence[Mapping[str, int | str]]) -> list[Config]:
    values = {parameter.name: parameter.values for parameter in space.parameters}
    known = [each for each in wanted if all(each[name] in values.get(name, ()) for name in each)]
    return [space.config({**space.default, **each}) for each in known]


def _pairs(config: Config) -> set[tuple[int, object, object]]:
    """Pairs of values, by which pair of parameters they belong to."""
    return {(i, *pair) for i, pair in enumerate(combinations(config.values(), 2))}
