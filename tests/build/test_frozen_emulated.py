# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels frozen in this repository, in full in the emulator: the committed text with the committed
launch, every kind of inputs at every small shape in several orders of threads, and planes of the workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.dtypes import dtype_named
from coldforge.codegen.emulator import Array, Call, emulate_calls
from coldforge.codegen.problem import Problem
from coldforge.codegen.render import KernelSource
from coldforge.codegen.target import Target
from coldforge.generated.runtime import manifest
from coldforge.tuner.bound import expect, judge
from coldforge.tuner.check.cases import few
from coldforge.tuner.inputs import draw, ragged_kinds
from coldforge.tuner.request import TrialRequest
from coldforge.tuner.shapes import batch_of, describe, ragged_problems
from emulator_kernels import shared_cache

pytestmark = pytest.mark.build

LOADED = manifest.load()
ENTRIES = {str(e["name"]): e for e in LOADED.entries if e["target"]["kind"] == "cuda"}
ORDERS = ("forward", "reverse", "shuffle:7")


def _problem(entry: Mapping[str, Any]) -> Problem:
    operator = catalogue().operator(entry["operator"])
    absent = [n for n in operator.optional_tensors if not entry["specialisation"][f"has_{n}"]]
    dtype = dtype_named(entry["dtype"])
    return Problem(operator, entry["workload"], dtype, tuple(absent), operator.scalars)


def _source(entry: Mapping[str, Any]) -> KernelSource:
    text = (LOADED.root / entry["source"]["file"]).read_text("utf-8")
    return KernelSource(text, "coldforge_kernel", entry["source"]["sha256"], entry["source"]["name"], "cuda")


def _call(
    entry: Mapping[str, Any], problem: Problem, tensors: dict[str, torch.Tensor], target: Target, order: str
) -> Call:
    geometry = {name: text for name, text in entry["launch"].items() if name != "work"}
    request = TrialRequest(
        problem.to_dict(), {}, entry["template"], entry["config"], geometry, entry["derived"]
    )
    launch = request.launch_at(problem, target)
    arrays = [Array(s.name, "input", tensors[s.name]) if s.present else None for s in problem.tensors]
    output = torch.empty(problem.output.shape, dtype=problem.dtype.torch)
    arrays.append(Array(problem.output.name, "output", output))
    if request.has_workspace:
        size, zeroed = launch.workspace_bytes, launch.zeroed_bytes
        scratch = Array("workspace", "workspace", workspace_bytes=size, zeroed_bytes=zeroed)
        arrays.append(scratch if size else None)
    sizes = [int(problem.values[name]) for name in problem.sizes]
    scalars = [float(problem.scalars[name]) for name in problem.scalar_names]
    return Call(launch, arrays, sizes, scalars, order, 60.0)


def _run(
    entry: Mapping[str, Any], drawn: list[tuple[Problem, str]], build: str, factory: pytest.TempPathFactory
) -> list[str]:
    """What is wrong with any of the calls."""
    whole = Target.from_dict(entry["target"])
    inputs = [draw(problem, kind) for problem, kind in drawn]
    calls = [
        _call(entry, problem, tensors, few(whole) if index % 7 % 2 else whole, ORDERS[index % 3])
        for index, ((problem, _), tensors) in enumerate(zip(drawn, inputs, strict=True))
    ]
    results = emulate_calls(_source(entry), calls, build=build, cache=shared_cache(factory))
    wrong: list[str] = []
    for (problem, kind), tensors, result in zip(drawn, inputs, results, strict=True):
        wrong += [str(finding) for finding in result.findings]
        expected = expect(problem, tensors, problem.scalars, entry["precision"])
        judgement = judge(result.outputs[problem.output.name], expected)
        if judgement.wrong:
            wrong.append(f"{kind} inputs at {describe(problem)}: {judgement}")
    return wrong


@pytest.mark.parametrize("build", ["plain", "asan", "race"])
@pytest.mark.parametrize("name", ENTRIES)
def test_at_every_small_shape(name: str, build: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of every kind of inputs where results are looked at alone; where accesses are, a third of these: each
    shape, each kind."""
    problem = _problem(ENTRIES[name])
    drawn = [
        (shape, kind)
        for i, kind in enumerate(ragged_kinds(problem))
        for j, shape in enumerate(ragged_problems(problem))
        if build == "plain" or (i + j) % 3 == 0
    ]
    assert {kind for _, kind in drawn} == set(ragged_kinds(problem))
    assert _run(ENTRIES[name], drawn, build, tmp_path_factory) == []


@pytest.mark.parametrize("name", ENTRIES)
def test_at_planes_of_the_workload(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    problem = _problem(ENTRIES[name])
    batch = batch_of(problem.operator.family)
    assert batch is not None
    one = problem.with_dims(**{batch: 1})
    assert _run(ENTRIES[name], [(one, "normal")], "plain", tmp_path_factory) == []
