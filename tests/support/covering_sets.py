# SPDX-License-Identifier: Apache-2.0
"""A few configs of each CUDA template that stand for all, and what is said of those with faults."""

from __future__ import annotations

import functools

from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.space import Config, Space
from coldforge.codegen.target import cuda_target
from coldforge.tuner.check.covering import covering
from coldforge.tuner.check.instantiations import Subject, subjects
from coldforge.tuner.check.run import Checked

SUBJECTS: dict[str, Subject] = {subject.space.name: subject for subject in subjects(catalogue())}


@functools.cache
def covering_set(name: str) -> list[Config]:
    """Configs of a space that have every pair of values which is legal at its founding workload."""
    subject = SUBJECTS[name]
    return covering(subject.configs, _default(subject.space, subject.configs))


def covering_set_on(name: str, arch: str) -> list[Config]:
    """Those of `covering_set` that are legal on another architecture, and what its own pairs need beside
    them."""
    subject = SUBJECTS[name]
    legal = subject.space.feasible(subject.problem, cuda_target(arch))
    known = set(legal)
    return covering(legal, [config for config in covering_set(name) if config in known])


def _default(space: Space, legal: list[Config]) -> list[Config]:
    return [space.default] if space.default in legal else []


def faults(checked: Checked) -> list[str]:
    """One line for each."""
    return [f"{checked.config.key}: {f.cause}: {f.text} ({f.build}, {f.case})" for f in checked.faults]
