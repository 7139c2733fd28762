# SPDX-License-Identifier: Apache-2.0
"""What the tuning loop needs from outside, as two small interfaces, so that tests can put fakes in their
place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

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


class Compiler(Protocol):
    """Compiles batches."""

    def compile(self, sources: Sequence[KernelSource]) -> Iterator[tuple[int, Artifact | CompileError]]:
        """Yields (position in ``sources``, what came of it) as each finishes. No compiler runs once it is
        exhausted or closed."""
        ...

    def close(self) -> None:
        """Ends what still runs. May be called again."""
        ...


class Measurer(Protocol):
    """Verifies and times compiled points of one problem on one device."""

    def measure(self, job: Job, best_ms: float | None) -> TrialResult:
        """Verifies and times one point. Failures of the point are values.

        Args:
            best_ms: the best time so far; a point that is surely much slower may be timed less carefully.

        Raises:
            ColdforgeError: the device itself is unusable.
        """
        ...

    def finals(self, jobs: Sequence[Job]) -> list[TrialResult]:
        """Times the points again, interleaved, and answers one result for each, in order."""
        ...

    def close(self) -> None:
        """Ends the worker. May be called again, also after an interrupted call."""
        ...
