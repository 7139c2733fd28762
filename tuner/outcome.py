# SPDX-License-Identifier: Apache-2.0
"""What became of one trial: an enum and a plain record, never an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class TrialOutcome(StrEnum):
    """How a variant ended. The values are the words of the study, the JSON and the reports."""

    OK = "ok"
    ILLEGAL = "illegal"  # refused by the space before anything was compiled
    COMPILE_ERROR = "compile_error"
    RESOURCE_LIMIT = "resource_limit"  # the device refused to load or launch it
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    CRASH = "crash"


@dataclass(frozen=True)
class TrialResult:
    """One variant's outcome with everything that was learnt about it.

    Attributes:
        outcome: How it ended.
        reason: One line that says why, empty when `outcome` is ok.
        time_ms: The median time on the workload (cold L2 on cuda), None unless timed.
        samples_ms: The samples behind the median, in the order they were taken.
        error: Relative L2 error against float64, the worst over all checks that ran.
        bound_ratio: The worst `|out - ref| / bound` over all checks that ran; above 1 is wrong.
        config: The variant's parameters.
        template: The template's name.
        resources: Registers, spills, shared memory as the compiler reported them.
        code_digest: Digest of the machine code, for telling duplicates.
        seconds: What verifying and timing took, wall clock.
        details: More figures (warm_ms, floor_ms, given_up, seconds by phase, ...), plain JSON values.
    """

    outcome: TrialOutcome
    reason: str = ""
    time_ms: float | None = None
    samples_ms: tuple[float, ...] = ()
    error: float | None = None
    bound_ratio: float | None = None
    config: Mapping[str, int | str] = field(default_factory=dict)
    template: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)
    code_digest: str = ""
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when the variant was verified and timed."""
        return self.outcome is TrialOutcome.OK

    def to_dict(self) -> dict[str, Any]:
        """Returns the record as plain JSON values."""
        return {
            "outcome": self.outcome.value,
            "reason": self.reason,
            "time_ms": self.time_ms,
            "samples_ms": list(self.samples_ms),
            "error": self.error,
            "bound_ratio": self.bound_ratio,
            "config": dict(self.config),
            "template": self.template,
            "resources": dict(self.resources),
            "code_digest": self.code_digest,
            "seconds": self.seconds,
            "details": dict(self.details),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrialResult:
        """Builds the record from what `to_dict` returned; unknown keys are dropped."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        known["outcome"] = TrialOutcome(known["outcome"])
        known["samples_ms"] = tuple(known.get("samples_ms", ()))
        return cls(**known)
