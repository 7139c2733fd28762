# SPDX-License-Identifier: Apache-2.0
"""Every CUDA template under the real compiler, for every architecture that it declares: the configs that are
executed in the emulator, with what the assembler reports of them; and the others are refused."""

from __future__ import annotations

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Artifact, Cache, compile_source
from coldforge.codegen.errors import UnknownName
from coldforge.codegen.render import render
from coldforge.codegen.space import Config, Launch
from coldforge.codegen.target import archs_of, cuda_target
from coldforge.tuner.check.instantiations import Subject
from coldforge.tuner.cli import run
from covering_sets import SUBJECTS, covering_set, covering_set_on

pytestmark = pytest.mark.build

PORTABLE = {"sm_80", "sm_90", "sm_100", "sm_120"}
MOST_SPILLED_BYTES = 64
"""A few that a tight cap of registers costs outside of the inner loop; a template that spills inside of it
spills hundreds."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    pytest.importorskip("cuda.bindings.nvrtc", reason="no NVRTC (pip install 'coldforge[cuda]')")
    return Cache(tmp_path_factory.mktemp("cubins"))


@pytest.mark.parametrize(
    ("name", "arch"), [(name, arch) for name, subject in SUBJECTS.items() for arch in subject.space.archs]
)
def test_a_covering_set_compiles_within_its_registers(name: str, arch: str, cache: Cache) -> None:
    subject = SUBJECTS[name]
    configs = covering_set_on(name, arch)
    assert len(configs) >= len(covering_set(name)) // 2
    complaints = [line for config in configs for line in _complaints(subject, config, arch, cache)]
    assert complaints == []


def _complaints(subject: Subject, config: Config, arch: str, cache: Cache) -> list[str]:
    target = cuda_target(arch)
    artifact = compile_source(render(subject.space, subject.problem, config, target), target, cache)
    launch = subject.space.launch(subject.problem, config, target)
    return [f"{config.key}: {line}" for line in _beyond(artifact, launch, target.attributes)]


def _beyond(artifact: Artifact, launch: Launch, limits: dict[str, int]) -> list[str]:
    """Which limits a variant breaks."""
    used, threads = artifact.resources, max(launch.block, launch.finish_block if launch.finish_grid else 0)
    most = min(limits["max_registers"], limits["registers_per_sm"] // threads)
    found = []
    if not 0 < used.registers <= most:
        found.append(f"{used.registers} registers a thread; {threads} threads leave {most}")
    if max(used.spill_store_bytes, used.spill_load_bytes) > MOST_SPILLED_BYTES:
        found.append(f"spills {used.spill_store_bytes} bytes, reads {used.spill_load_bytes} back")
    shared = used.shared_bytes + max(launch.shared_bytes, launch.finish_shared_bytes)
    if used.shared_bytes > limits["static_shared_bytes"] or shared > limits["max_shared_bytes"]:
        found.append(f"{shared} bytes of shared memory")
    return found


def test_each_family_has_a_portable_template() -> None:
    for family in catalogue().families:
        archs = [set(s.space.archs) for s in SUBJECTS.values() if s.space.family == family]
        assert any(each >= PORTABLE for each in archs), family


@pytest.mark.parametrize("name", SUBJECTS)
def test_another_architecture_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    subject = SUBJECTS[name]
    space, operator = subject.space, subject.problem.operator
    others = [arch for arch in archs_of("cuda") if arch not in space.archs]
    assert others
    for arch in others:
        target = cuda_target(arch)
        assert space.feasible(subject.problem, target) == []
        reason = space.check(subject.problem, space.default, target)
        assert reason is not None
        assert arch in reason
        if all(arch not in s.archs for s in catalogue().spaces(operator, "cuda")):
            with pytest.raises(UnknownName, match=arch):
                catalogue().space(operator, target)
            assert run(["check", operator.name, "--arch", arch]) == 2
            assert arch in capsys.readouterr().err
