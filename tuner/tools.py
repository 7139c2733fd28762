# SPDX-License-Identifier: Apache-2.0
"""What the tuning loop needs from outside, as small interfaces: tests put fakes in their place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from ..codegen.compile import Artifact
from ..codegen.errors import CompileError
from ..codegen.render import KernelSource
from .outcome import TrialResult
from .search import Point


@dataclass(frozen=True)
class Job:
    """A compiled point, ready to be verified and timed.

    Attributes:
        point: template and config.
        source: the text it was compiled from.
        artifact: the binary.
    """

    point: Point
    source: KernelSource
    artifact: Artifact


class Waited(Protocol):
    """What does work elsewhere. Nothing of it waits unless it says so."""

    @property
    def waitables(self) -> Sequence[Any]:
        """What `multiprocessing.connection.wait` can wait for: one that is ready means that there may be
        something to collect."""
        ...

    @property
    def patience_s(self) -> float | None:
        """Seconds until something must be collected although nothing is ready; None: no limit."""
        ...

    def close(self) -> None:
        """Ends what still runs. May be called again, also after an interrupted call."""
        ...


class Compiler(Waited, Protocol):
    """Compiles sources while other work goes on, or a batch.

    Attributes:
        jobs: how many it compiles at once.
    """

    jobs: int

    @property
    def load(self) -> int:
        """How many it is busy with, abandoned ones included."""
        ...

    def submit(self, source: KernelSource) -> int:
        """Takes one; `collect` answers under the number."""
        ...

    def collect(self) -> list[tuple[int, Artifact | CompileError]]:
        """What has finished.

        Raises:
            ColdforgeError: what no source would survive: no compiler, a full disk.
        """
        ...

    def abandon(self, numbers: Iterable[int]) -> None:
        """Takes some back: they are not answered."""
        ...

    def compile(self, sources: Sequence[KernelSource]) -> Iterator[tuple[int, Artifact | CompileError]]:
        """Waits: yields (position in ``sources``, what came of it) as each finishes."""
        ...


class Measurer(Waited, Protocol):
    """Verifies and times compiled points of one problem on one device, one at a time."""

    def begin(self, job: Job, best_ms: float | None, handed_over: Callable[[], None]) -> None:
        """Has one point verified and timed; `poll` answers. Failures of the point are values.

        Args:
            best_ms: the best time so far; a point that is surely much slower may be timed less carefully.
            handed_over: called once, right before the device gets the point.

        Raises:
            ColdforgeError: the device itself is unusable.
        """
        ...

    def poll(self) -> TrialResult | None:
        """The result, once it is there.

        Raises:
            ColdforgeError: the device itself is unusable.
        """
        ...

    def finals(self, jobs: Sequence[Job], *, energy: bool = False) -> list[TrialResult]:
        """Waits: times the points again, interleaved, and answers one result for each, in order.

        Args:
            energy: whether their energy is read too, in as many rounds as decide by it.
        """
        ...


@dataclass(frozen=True)
class Terms:
    """Of a claim: what the run that makes it knows of the study, and how far it goes.

    Attributes:
        left: how many points it wants beside the finished ones; no limit when None.
        finished: keys of the points that it knows to be finished.
        admitted: keys of points that others are through with, and that this run may try again.
        limit: how many points may be finished or under way, as the study counts them; no limit when None.
        known: how many results of the point are no reason not to try it again.
    """

    left: int | None = None
    finished: Collection[str] = ()
    admitted: Collection[str] = ()
    limit: int | None = None
    known: int = 0


NO_TERMS = Terms()
"""Any number of points, none of which was tried before."""


class Record(Protocol):
    """Which points tuners are at, and were at when they died: see `attempts.Attempts` (one machine, in files)
    and `shared.record.SharedRecord` (a database server).

    Attributes:
        binding: whether a claim settles everything: nobody else has tried the point, nor will, and there are
            not too many. Else it only says that no other live tuner is at it.
        full: whether the last claim was refused because there are as many points as may be.
        departed: whether the last `claims` or `claim` missed a tuner that was there at the `claims` before.
            What it finished may be unknown here; where claims are not binding, nothing is claimed until the
            record is asked for them, and the study is to be read then.
    """

    binding: bool
    full: bool
    departed: bool

    def claims(self) -> frozenset[str] | None:
        """The points that other live tuners have claimed; None when there is no other one."""
        ...

    def offered(self) -> Sequence[str]:
        """Points that others began with and gave back, as of the last `claims`: they come first."""
        ...

    def claim(self, point_key: str, terms: Terms = NO_TERMS) -> bool:
        """Makes a point this tuner's; False when it is another's, or one too many."""
        ...

    def release(self, point_key: str) -> None:
        """Takes a claim back."""
        ...

    def begin(self, point_key: str) -> None:
        """Notes that a point is about to run."""
        ...

    def beat(self) -> float | None:
        """Says, if it is time to, that this tuner lives; seconds until it is to be called again, None when it
        need not be."""
        ...

    def suspects(self, finished: Collection[str]) -> tuple[str, ...]:
        """The points not to be tried again."""
        ...

    def finals(self) -> AbstractContextManager[None]:
        """Around the finals; may wait until others have done what they are at."""
        ...


class NoRecord:
    """Remembers nothing."""

    binding = full = departed = False

    def claims(self) -> frozenset[str] | None:
        """There is no other."""
        return None

    def offered(self) -> Sequence[str]:
        """Nothing."""
        return ()

    def claim(self, point_key: str, terms: Terms = NO_TERMS) -> bool:
        """Every point is free."""
        return True

    def release(self, point_key: str) -> None:
        """Nothing was claimed."""

    def begin(self, point_key: str) -> None:
        """Forgets it."""

    def beat(self) -> float | None:
        """Nobody listens."""
        return None

    def suspects(self, finished: Collection[str]) -> tuple[str, ...]:
        """None."""
        return ()

    def finals(self) -> AbstractContextManager[None]:
        """Waits for nobody."""
        return nullcontext()
