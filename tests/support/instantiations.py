# SPDX-License-Identifier: Apache-2.0
"""Executing what the ledgers lack, as the suite's options say."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.settings import load_settings
from coldforge.codegen.target import Target
from coldforge.tuner.check.execute import Tally, fill
from coldforge.tuner.check.instantiations import Subject, subjects

SHOWN = 20
NAMES = [subject.space.name for subject in subjects(catalogue())]


def subject_named(name: str, config: pytest.Config) -> Subject:
    """The subject of a space, its ledger where the options want it."""
    folder = config.getoption("--ledger-folder")
    return next(s for s in subjects(catalogue(), folder=folder) if s.space.name == name)


class Budget:
    """The seconds that all subjects of a session share: each gets an equal part of what is left."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._waiting = len(NAMES)

    def share(self) -> float | None:
        """The next subject's part; None for as long as it takes."""
        if self._end is None:
            return None
        share = max(0.0, self._end - time.monotonic()) / max(1, self._waiting)
        self._waiting -= 1
        return share

    def rest(self) -> float | None:
        """All that is left."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def execute(
    subject: Subject,
    seconds: float | None,
    record_property: Callable[[str, object], None],
    *,
    gpu: Target | None = None,
    everywhere: bool = False,
) -> Tally:
    """Fills a ledger and fails with what was wrong."""
    tally = fill(subject, load_settings(), gpu=gpu, everywhere=everywhere, seconds=seconds)
    total = len(subject.configs)
    warning = "WARNING: " if tally.remaining else ""
    said = str(tally) if tally.passed or tally.failed or tally.remaining else "none lacks"
    record_property("instantiations", f"{warning}{subject.space.name}: {total} in all; {said}")
    shown = [
        f"{checked.config.key}: {fault.cause}: {fault.text} ({fault.build} {fault.case})"
        for checked in tally.failed
        for fault in checked.faults[:1]
    ]
    assert not shown, "\n".join([f"{len(shown)} of {total} have faults", *shown[:SHOWN]])
    return tally
