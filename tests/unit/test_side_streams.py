# SPDX-License-Identifier: Apache-2.0
"""Whether a call that takes longer alone works on other streams, or only slower than it did."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

import pytest
from coldforge.tuner.devices.side_streams import StreamGuard, _Alone

ALONE_MS, BEFORE_MS = 21.0, 20.0  # five hundredths more, where three are borne


def nothing() -> None: ...


def _guard(monkeypatch: pytest.MonkeyPatch, samples: Iterator[float]) -> StreamGuard:
    """Sees a call that takes ALONE_MS whenever nothing else is enqueued, and these samples of it."""
    guard = StreamGuard(nothing, lambda _: next(samples))
    monkeypatch.setattr(guard, "_alone", lambda _: _Alone(ALONE_MS, 0.0, 0.0))
    return guard


def test_clocks_that_sink_hide_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    sinking = chain((BEFORE_MS, BEFORE_MS), repeat(ALONE_MS))
    assert not _guard(monkeypatch, sinking).works_aside(nothing)


def test_what_stays_longer_alone_was_begun_before_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _guard(monkeypatch, repeat(BEFORE_MS)).works_aside(nothing)
