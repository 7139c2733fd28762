# SPDX-License-Identifier: Apache-2.0
"""The kernels that compare the emulator's words with the hardware's: all compile for each architecture, run
here without a finding, and no word is left out."""

from __future__ import annotations

import re

import pytest
import torch
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.emulator import BUILDS, Array, emulate
from coldforge.codegen.emulator.build import NATIVE
from coldforge.codegen.emulator.source import without_comments
from coldforge.codegen.target import cuda_target
from emulator_kernels import shared_cache
from twin import differences
from twin_kernels import twins

pytestmark = pytest.mark.build

TWINS = twins()
# Words whose effect is no value: order, time, and the end of everything.
NOT_COMPARED = {"__threadfence", "__threadfence_block", "__threadfence_system", "__syncthreads", "clock64",
                "__nanosleep", "__trap"}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return shared_cache(tmp_path_factory)


@pytest.mark.parametrize("name", TWINS)
def test_builds_agree_and_find_nothing(name: str, cache: Cache) -> None:
    twin = TWINS[name]
    arrays = [Array("x", "input", twin.x), Array("y", "updated", twin.y)]
    outputs = []
    for build in BUILDS:
        result = emulate(twin.source, twin.launch, arrays, [twin.n], build=build, cache=cache)
        assert [str(finding) for finding in result.findings] == []
        outputs.append(result.outputs["y"])
    assert not torch.equal(outputs[0], twin.y), "nothing was written"
    for output in outputs[1:]:
        assert differences(twin, output, outputs[0]) == []
    if twin.expected is not None:
        assert differences(twin, outputs[0], twin.expected) == []


def test_whatever_many_threads_make_together_is_said_in_other_words_too() -> None:
    headers = ("matrix.cuh", "warpgroup.cuh", "copy_engine.cuh")
    for name, twin in TWINS.items():
        if any(f"coldforge/{header}" in twin.includes for header in headers):
            assert twin.expected is not None or name == "halves in pairs", name


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_they_compile(arch: str, cache: Cache) -> None:
    for name, twin in TWINS.items():
        if twin.archs and arch not in twin.archs:
            continue
        artifact = compile_source(twin.source, cuda_target(arch), cache)
        assert artifact.path.stat().st_size > 0, name


def test_no_word_is_left_out() -> None:
    used = set(re.findall(r"\w+", " ".join(without_comments(twin.source.text) for twin in TWINS.values())))
    words: set[str] = set()
    for header in (
        "intrinsics.h",
        "cooperation.h",
        "atomics.h",
        "twins.h",
        "cuda/cuda_fp16.h",
        "cuda/cuda_bf16.h",
    ):
        text = without_comments((NATIVE / "shim" / header).read_text())
        words |= set(re.findall(r"^(?:inline|extern \"C\") [\w ]*?\b(\w+)\(", text, re.MULTILINE))
        words |= set(
            re.findall(
                r"^(?:#define|COLDFORGE_LOAD|COLDFORGE_STORE|COLDFORGE_ATOMIC)[ (](\w+)[(,)]",
                text,
                re.MULTILINE,
            )
        )
    own = re.compile("COLDFORGE_|(all|any|ballot|sync_warp)$")  # the emulator's, not CUDA's
    missing = {word for word in words - used - NOT_COMPARED if not own.match(word)}
    assert len(words) > 90
    assert missing == set()
