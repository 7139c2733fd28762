# SPDX-License-Identifier: Apache-2.0
"""Faults planted in small kernels, and whether the emulator finds them in every order of threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy
from coldforge.codegen.compile import Cache
from coldforge.codegen.emulator import Emulation, emulate_calls
from emulator_kernels import ORDERS, Base, source


@dataclass(frozen=True)
class Fault:
    """One change to a kernel.

    Attributes:
        base: the kernel's name.
        old: what is replaced, and by `new`.
        finds: build -> the kinds of finding that will do, of which each order must give one.
        at: words of the source line that a finding must name.
        wrong: builds that must at least compute something else than they should.
    """

    base: str
    old: str
    new: str
    finds: Mapping[str, tuple[str, ...]]
    at: str = ""
    wrong: tuple[str, ...] = ()


def found_in(builds: tuple[str, ...], *kinds: str) -> dict[str, tuple[str, ...]]:
    """The same kinds in each build."""
    return dict.fromkeys(builds, kinds)


def run_base(name: str, base: Base, text: str, build: str, cache: Cache) -> list[Emulation]:
    """A kernel's call in each of ORDERS."""
    return emulate_calls(source(text, name), [base.call(order) for order in ORDERS], build=build, cache=cache)


def assert_found(fault: Fault, base: Base, cache: Cache) -> None:
    """Plants a fault; each build that has to must find it, at its line, in every order of threads."""
    assert base.text.count(fault.old) == 1, "the fault cannot be planted"
    text = base.text.replace(fault.old, fault.new)
    lines = source(text).text.splitlines()
    for build in dict.fromkeys((*fault.finds, *fault.wrong)):
        for order, result in zip(ORDERS, run_base(fault.base, base, text, build, cache), strict=True):
            where = f"{build}, {order}: {[str(finding) for finding in result.findings]}"
            if build in fault.wrong:
                assert not numpy.array_equal(result.outputs["y"], base.expected), where
                continue
            found = [finding for finding in result.findings if finding.kind in fault.finds[build]]
            assert found, where
            actors = [a for finding in found for a in (finding.actor, finding.other) if a is not None]
            named = [lines[place.rendered_line - 1] for actor in actors for place in actor.places]
            assert fault.at == "" or any(fault.at in line for line in named), (where, named)


def assert_clean(name: str, base: Base, build: str, cache: Cache) -> None:
    """Nothing is found in the kernel as it is, and its results are right."""
    for result in run_base(name, base, base.text, build, cache):
        assert [str(finding) for finding in result.findings] == []
        numpy.testing.assert_array_equal(result.outputs["y"], base.expected)
