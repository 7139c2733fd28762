# SPDX-License-Identifier: Apache-2.0
"""Every trial of a study with all that is known of it, in one order and one shape for all formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from optuna.trial import FrozenTrial

from ..outcome import TrialResult
from ..study import Study
from ..summary import summarise


@dataclass(frozen=True)
class Row:
    """One trial.

    Attributes:
        number: In the study, from 0.
        completed: When it was recorded (ISO time, UTC); empty where the database does not say.
        seconds: What it took in all, compilation included.
        result: What became of it.
        finals: The same config's row in the finals; None where it was no finalist.
    """

    number: int
    completed: str
    seconds: float | None
    result: TrialResult
    finals: Mapping[str, Any] | None

    def detail(self, name: str) -> Any:
        """A figure of the details; None where there is none."""
        return self.result.details.get(name)

    def phase_s(self, name: str) -> float | None:
        """Seconds of a phase of the trial; None where it had none, or never came so far."""
        phases = self.detail("phase_s")
        found = phases.get(name) if isinstance(phases, Mapping) else None
        return float(found) if isinstance(found, int | float) else None


@dataclass(frozen=True)
class Export:
    """A study as it is exported.

    Attributes:
        about: What is tuned, on what and with what.
        summary: See `summary.summarise`.
        rows: In the order in which trials were recorded.
    """

    about: Mapping[str, Any]
    summary: Mapping[str, Any]
    rows: tuple[Row, ...]

    @property
    def parameters(self) -> list[str]:
        """The names of all templates' parameters, each once, as they come."""
        return list(dict.fromkeys(name for row in self.rows for name in row.result.config))

    @property
    def resources(self) -> list[str]:
        """The names of the resources that the compiler reported."""
        return list(dict.fromkeys(name for row in self.rows for name in row.result.resources))


def export_of(study: Study) -> Export:
    """Reads a study.

    Raises:
        ColdforgeError: it is damaged.
    """
    trials, results = study.trials(), study.results()
    results = results[: len(trials)]  # another process may have added to it meanwhile
    summary = summarise(study, results)
    finals = {_key(row): row for row in summary["finals"]} if summary["finals_held"] else {}
    rows = tuple(
        Row(trial.number, _completed(trial), _seconds(trial), result, finals.get(_key(result.to_dict())))
        for trial, result in zip(trials, results, strict=False)
    )
    return Export(study.about, summary, rows)


def _key(data: Mapping[str, Any]) -> tuple[Any, ...]:
    return (data["template"], *sorted(data["config"].items()))


def _completed(trial: FrozenTrial) -> str:
    """Optuna keeps local time without its zone."""
    moment = trial.datetime_complete
    if not isinstance(moment, datetime):
        return ""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(trial: FrozenTrial) -> float | None:
    return None if trial.duration is None else round(trial.duration.total_seconds(), 6)
