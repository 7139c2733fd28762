# SPDX-License-Identifier: Apache-2.0
"""Every config of every CUDA template on a GPU (`pytest -m gpu --instantiations=all`): minutes, so only when
asked for. Each pass is recorded at once, so a run that was cut short goes on where it ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from coldforge.codegen.target import Target, detect
from instantiations import NAMES, Budget, execute, subject_named

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.timeout(0),
]


@pytest.fixture(scope="module")
def gpu() -> Target:
    return detect("cuda")


@pytest.fixture(scope="module")
def budget(pytestconfig: pytest.Config) -> Budget:
    return Budget(pytestconfig.getoption("--instantiations-seconds"))


@pytest.mark.parametrize("name", NAMES)
def test_every_instantiation(
    name: str,
    gpu: Target,
    budget: Budget,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    if pytestconfig.getoption("--instantiations") != "all":
        pytest.skip("takes minutes: --instantiations=all")
    subject = subject_named(name, pytestconfig)
    if subject.target.arch != gpu.arch:
        pytest.skip(f"the instantiations are for {subject.target.arch}; this GPU is {gpu.arch}")
    tally = execute(subject, budget.rest(), record_property, gpu=gpu)
    if tally.remaining:
        pytest.skip(f"{tally.remaining} of {len(subject.configs)} remain: run the same command again")
