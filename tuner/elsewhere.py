# SPDX-License-Identifier: Apache-2.0
"""What other tuners are at: the search is told of it as of points that it asked for itself, so that it
expects their results and does not ask for the same."""

from __future__ import annotations

from collections.abc import Collection

from .search import Search
from .standing import Standing
from .tools import Record


class Elsewhere:
    """The points of other live tuners.

    Args:
        record: tells of them.
        search: is told of them.
        standing: of the study.
        claims: what the record said before the study was read first.

    Attributes:
        claims: what others have claimed, finished points included; None when there is no other tuner.
    """

    def __init__(
        self, record: Record, search: Search, standing: Standing, claims: frozenset[str] | None
    ) -> None:
        self._record, self._search, self._standing, self.claims = record, search, standing, claims
        self._held: dict[str, int] = {}  # asked for on their behalf: key -> index

    @property
    def quiet(self) -> bool:
        """Whether there is nobody, and nothing is left of anybody."""
        return self.claims is None and not self._held

    @property
    def busy(self) -> frozenset[str]:
        """What they are at; not what they left out under a stricter spill limit, which they go on claiming
        where a claim is not taken back when there is a result."""
        through = self._standing.seen
        if not self._record.binding:
            through = through | self._standing.admitted
        return (self.claims or frozenset()) - through

    def ask(self) -> bool:
        """Asks the record; whether somebody departed, so that the study must be read before anything else."""
        self.claims = self._record.claims()
        return self._record.departed

    def leave(self) -> None:
        """Leaves to them what they are at."""
        feasible = self._search.feasible
        for key in self.busy - self._held.keys():
            index = feasible.index_of_key(key)
            if index is not None and self._search.claim(index, elsewhere=True):
                self._held[key] = index

    def keep(self, index: int) -> None:
        """A point that was asked for turned out to be another's."""
        self._held[self._search.feasible.points[index].key] = index

    def asked_for(self, key: str) -> int | None:
        """Asks for this very point; None where it was seen already."""
        if (held := self._held.pop(key, None)) is not None:
            return held
        index = self._search.feasible.index_of_key(key)
        return index if index is not None and self._search.claim(index) else None

    def forget(self, finished: Collection[int]) -> None:
        """These are known to be finished."""
        self._held = {key: index for key, index in self._held.items() if index not in finished}

    def free(self) -> None:
        """Makes anybody's again what nobody claims any more. Read the study first: it may be finished."""
        for key in [key for key in self._held if key not in (self.claims or ())]:
            self._search.withdraw(self._held.pop(key))

    def close(self) -> None:
        """Withdraws all that was asked for on their behalf."""
        while self._held:
            self._search.withdraw(self._held.popitem()[1])
