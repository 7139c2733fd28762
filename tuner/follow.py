# SPDX-License-Identifier: Apache-2.0
"""Looking on while other processes work on a study."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from .show import study_document
from .study import Study

_EVERY_S = 2.0
_IDLE_LOOKS = 6
"""So many looks in a row at which no run is at work and nothing has changed: what there was has ended. A run
is not seen in its first seconds."""


def moments(
    study: Study, at_work: Callable[[], bool | None], wait: Callable[[float], None] = time.sleep
) -> Iterator[dict[str, Any]]:
    """The study's document now, and again whenever it has changed, until its finals are held and no run goes
    on with it, or runs have ended without finals.

    Args:
        study: may be written by anybody.
        at_work: whether a run works on it; None where that cannot be known.
        wait: called with seconds between two looks.
    """
    shown: dict[str, Any] | None = None
    idle = 0
    while True:
        working = at_work()  # before the reading: what an ended run stored last is seen
        document = study_document(study)
        if document != shown:
            shown, idle = document, 0
            yield document
        idle = 0 if working is not False else idle + 1
        if idle >= _IDLE_LOOKS or (document["finals_held"] and not working):
            return
        wait(_EVERY_S)
