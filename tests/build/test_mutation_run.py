# SPDX-License-Identifier: Apache-2.0
"""The mutation run of the CUDA templates: a handful of its list, and that all of the list can be applied."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from coldforge.codegen.catalogue import BUILTIN_ROOT
from emulator_kernels import shared_cache

pytestmark = pytest.mark.build

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/emulator_mutations.json"
# A word of each one's name, and what has to be among its causes.
HANDFUL = {
    "collapse_stream.cuh: (pixels + G::SPLIT * STEP - 1)": "wrong_result",
    "plane_sum.cuh: if (lane < head &&": "out_of_bounds",
    "arrival.cuh: if (last) fence_acquire();": "race",
    "conv2d_fill.cuh: ix < static_cast<u32>(sizes.W);": "out_of_bounds",
    "conv2d_direct.cuh: source.fill(stage ^ 1, 0, next);": "wrong_result",
}


@pytest.fixture(scope="module")
def mutants() -> Iterator[ModuleType]:
    path = ROOT / "tests/mutation/mutants.py"
    spec = importlib.util.spec_from_file_location("mutants", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


def test_the_list_can_be_applied(mutants: ModuleType) -> None:
    exercises, mutations = mutants.load()
    changing = [mutation for mutation in mutations if not mutation.equivalent]
    assert len(changing) >= 50
    assert len({mutation.name for mutation in mutations}) == len(mutations)
    assert {name for mutation in mutations for name in mutation.run} == set(exercises)
    files = {mutation.file for mutation in mutations}
    headers = {str(p.relative_to(BUILTIN_ROOT)) for p in (BUILTIN_ROOT / "include/coldforge").glob("*.cuh")}
    templates = {str(p.relative_to(BUILTIN_ROOT)) for p in BUILTIN_ROOT.glob("*/*.cu.jinja")}
    # Sizes of shared memory alone: the compiler compares them with the space's.
    assert headers | templates <= files | {"include/coldforge/collapse_shared.cuh"}


def test_a_handful(mutants: ModuleType, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    exercises, mutations = mutants.load()
    tree = mutants.Tree(tmp_path, shared_cache(tmp_path_factory))
    with tree.in_use():
        for words, cause in HANDFUL.items():
            file, _, old = words.partition(": ")
            (mutation, *_) = [m for m in mutations if m.file.endswith(file) and m.old.strip().startswith(old)]
            result = tree.judge(mutation, [exercises[name] for name in mutation.run])
            assert result.outcome == "caught", mutation.name
            assert cause in {kind for kinds in result.causes.values() for kind in kinds}, mutation.name
    for name in ("arrival.cuh", "plane_sum.cuh"):
        copy = tree.root / "include/coldforge" / name
        assert copy.read_text() == (BUILTIN_ROOT / "include/coldforge" / name).read_text()


def test_the_results_are_those_of_the_list(mutants: ModuleType) -> None:
    document = json.loads(RESULTS.read_text())
    found = document["summary"]
    outcomes = Counter(each["outcome"] for each in document["mutations"])
    assert outcomes["caught"] == found["caught"]
    assert found["caught_percent"] >= 95
    listed = {(m.file, *m.changed_line) for m in mutants.load()[1]}
    assert {(each["file"], each["old"], each["new"]) for each in document["mutations"]} == listed
    assert all(each["survives"] for each in document["survivors"])
