# SPDX-License-Identifier: Apache-2.0
"""When a run looks at what others on its study did: often enough that they share the work, seldom enough that
neither the device nor the storage waits for it."""

from __future__ import annotations

import math

from .elsewhere import Elsewhere
from .equipment import Equipment
from .standing import Standing
from .stream import Stream

WAIT_FOR_OTHERS_S = 0.2
"""So long a run that has nothing else to do waits between two looks."""
_LOOK_EVERY_S = 1.0
_SILENT_S = 60.0
"""After so long without a look a run that was alone may have lost what it claimed to one that came since."""
_FULL_AGAIN = 2
"""So many times it is asked again at once where there are too many configs, and nobody is seen at work."""


class Looks:
    """Of one run.

    Args:
        equipment: has the record and the clock.
        elsewhere, stream, standing: of the run.
        trials: how many configs it may leave finished; no limit when None.
        since: when the study was first read.
    """

    def __init__(
        self,
        equipment: Equipment,
        elsewhere: Elsewhere,
        stream: Stream,
        standing: Standing,
        trials: int | None,
        since: float,
    ) -> None:
        self._record, self._clock = equipment.record, equipment.clock
        self._elsewhere, self._stream, self._standing, self._trials = elsewhere, stream, standing, trials
        self._looked = self._full_until = since
        self._full_in_a_row = 0  # refusals with nobody at work

    def note(self) -> None:
        """The study is read now."""
        self._looked = self._clock()

    def hasten(self) -> None:
        """The next look is due."""
        self._looked = -math.inf

    @property
    def _since_s(self) -> float:
        return self._clock() - self._looked

    @property
    def _near_end(self) -> bool:
        left = math.inf if self._trials is None else self._trials - len(self._standing.finished)
        return left <= 2 * self._stream.window

    @property
    def watchful(self) -> bool:
        """Whether the next config may begin only when what others did is known: where claims are not binding,
        when few are left to do, and when this run was silent so long that others may have taken what it
        claimed."""
        if self._record.binding:
            return False
        late_s = _SILENT_S if self._elsewhere.claims is None else _LOOK_EVERY_S
        return self._since_s >= late_s or self._near_end

    @property
    def due(self) -> bool:
        """Whether the study is to be read again."""
        if self._elsewhere.quiet and not self._near_end:
            return self._since_s >= _LOOK_EVERY_S
        each_step = self._near_end and not self._record.binding
        return self._since_s >= WAIT_FOR_OTHERS_S or not len(self._stream) or each_step

    @property
    def spared(self) -> bool:
        """Whether not even the record need be asked: what is known here may be old where a claim tells."""
        return self._record.binding and len(self._stream) > 0 and self._since_s < WAIT_FOR_OTHERS_S

    # --- where there are as many configs as may be ---

    @property
    def full(self) -> bool:
        """Whether it is too early to ask for another config."""
        return self._clock() < self._full_until

    def refused(self) -> None:
        """One was too many, and the study was read since. What another one was at and gave back before that
        is asked for at once; not again and again, as a record may count what this run does not know of."""
        self._full_in_a_row = 0 if self._elsewhere.busy else self._full_in_a_row + 1
        again = 0 < self._full_in_a_row <= _FULL_AGAIN
        self._full_until = self._clock() + (0.0 if again else _LOOK_EVERY_S)

    def granted(self) -> None:
        """One was not."""
        self._full_in_a_row = 0
