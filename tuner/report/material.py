# SPDX-License-Identifier: Apache-2.0
"""What a report is made of: a study's own figures, put in the order in which charts and sentences want them.

Everything comes out of storage, so that a study of another machine's device reads as well as one of this one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...codegen.freeze.winner import Winner
from ..outcome import TrialResult
from ..speed import fraction_of_floor, is_highest, speed_name
from ..study import Study
from ..summary import Entry, best_entry, summarise
from ..winners import study_winner
from .occupancy import Occupancy, occupancy_of

Value = int | float | str | bool


@dataclass(frozen=True)
class Axis:
    """A parameter as the study saw it.

    Attributes:
        name: of the parameter.
        values: that were tried, numbers in their order before words.
    """

    name: str
    values: tuple[Value, ...]

    @property
    def varies(self) -> bool:
        """Whether more than one value was tried."""
        return len(self.values) > 1

    @property
    def texts(self) -> list[str]:
        """The values as they are shown."""
        return [str(value) for value in self.values]


@dataclass(frozen=True)
class Floor:
    """The least time of the problem on its device, as the study recorded it.

    Attributes:
        time_ms: the larger of the next two; 0 where none was recorded.
        memory_ms: of the bytes that must move; 0 where they may stay in the cache.
        arithmetic_ms: of the operations, on the fastest unit that the error class admits.
        fma_ms: of the operations on the fp32 units alone.
        limit: ``memory`` or ``arithmetic``, whichever sets it.
        cache_resident: whether the tensors fit the cache.
    """

    time_ms: float = 0.0
    memory_ms: float = 0.0
    arithmetic_ms: float = 0.0
    fma_ms: float = 0.0
    limit: str = ""
    cache_resident: bool = False


@dataclass(frozen=True)
class Material:
    """One study, read.

    Attributes:
        about: what the study is about, as it was stored.
        summary: the facts that `show` tells.
        results: every trial's result, in order.
        finals: the finalists as they were stored; empty where the finals are not those of these trials.
        winner: the stored winner; None before one is known.
        defaults: template -> its default config.
    """

    about: Mapping[str, Any]
    summary: Mapping[str, Any]
    results: Sequence[TrialResult]
    finals: Sequence[Mapping[str, Any]]
    winner: Winner | None
    defaults: Mapping[str, Mapping[str, Any]]

    @property
    def best(self) -> Entry | None:
        """The config that the report is about: of the finals, or before them the search's; None when no
        config was right."""
        return self.summary["best"]

    @property
    def default(self) -> Entry | None:
        """The default config's entry, which may have failed; None where it was not tried."""
        return self.summary["default"]

    @property
    def is_final(self) -> bool:
        """Whether the winner comes from finals held when the study had these trials."""
        return self.best is not None and self.best.get("from") == "finals"

    @property
    def on_gpu(self) -> bool:
        """Whether the target is a CUDA device."""
        return self.summary["target"] == "cuda"

    @cached_property
    def timed(self) -> list[TrialResult]:
        """The right configs in the order in which they were tried."""
        return [result for result in self.results if result.ok and result.time_ms is not None]

    @cached_property
    def templates(self) -> list[str]:
        """The templates that were tried, the winner's first, then by how often they were right."""
        counts = {result.template: 0 for result in self.results}
        for result in self.timed:
            counts[result.template] += 1
        first = self.best["template"] if self.best else ""
        return sorted(counts, key=lambda name: (name != first, -counts[name], name))

    def of_template(self, template: str) -> list[TrialResult]:
        """The right configs of a template."""
        return [result for result in self.timed if result.template == template]

    def axes(self, template: str) -> list[Axis]:
        """A template's parameters in the order of its space, with the values that were tried."""
        seen: dict[str, dict[Value, None]] = {}
        for result in self.results:
            if result.template == template:
                for name, value in result.config.items():
                    seen.setdefault(name, {})[value] = None
        return [Axis(name, tuple(sorted(values, key=_order))) for name, values in seen.items()]

    @cached_property
    def parameters(self) -> list[str]:
        """The names of all parameters, those of the first templates first."""
        names = [axis.name for template in self.templates for axis in self.axes(template)]
        return list(dict.fromkeys(names))

    def role(self, result: TrialResult) -> str:
        """``winner``, ``default`` (of its template), ``finalist`` or ``other``."""
        if self.best and _is(self.best, result):
            return "winner"
        if self.defaults.get(result.template) == dict(result.config):
            return "default"
        return "finalist" if any(_is(finalist, result) for finalist in self.finals) else "other"

    @cached_property
    def best_result(self) -> TrialResult | None:
        """The trial of the winner; None when there is none."""
        best = self.best
        return next((r for r in self.timed if best and _is(best, r)), None)

    @cached_property
    def floor(self) -> Floor:
        """The floor that the winner was measured against, or else the last one; an empty one when none was
        stored."""
        entries = [self.winner.measurement] if self.winner and self.is_final else []
        found = [_floor(d.get("floor")) for d in (*entries, *(r.details for r in reversed(self.timed)))]
        known = [floor for floor in found if floor.time_ms]
        return next(iter(known or [floor for floor in found if floor.cache_resident]), Floor())

    @property
    def floor_share(self) -> float | None:
        """floor / time of the winner; None where either is unknown."""
        return fraction_of_floor(self.best)

    @property
    def speed_name(self) -> str:
        """Which of the device's speeds sets the floor: ``memory speed``."""
        return speed_name(self.floor.limit)

    @property
    def energy_j(self) -> float | None:
        """Joules of one launch of the winner; None where they were not read."""
        return joules_of(self.best)

    @property
    def floor_was_raised(self) -> bool:
        """Whether the floor is the time of a kernel that beat what was probed: then it is no bound on what
        is possible."""
        return is_highest(self.best)

    def occupancy(self, result: TrialResult) -> Occupancy | None:
        """How far a kernel fills a multiprocessor; None on a CPU and where the study lacks the figures."""
        launch = result.details.get("launch")
        attributes = self.about["target"].get("attributes")
        if not self.on_gpu or not isinstance(launch, Mapping) or not isinstance(attributes, Mapping):
            return None
        return occupancy_of(result.resources, launch, attributes)


def joules_of(entry: Mapping[str, Any] | None) -> float | None:
    """An entry's joules a launch; None where they were not read."""
    joules = (entry or {}).get("energy_j")
    if not isinstance(joules, int | float) or not math.isfinite(joules) or joules <= 0:
        return None
    return float(joules)


def _is(entry: Mapping[str, Any], result: TrialResult) -> bool:
    return entry["template"] == result.template and entry["config"] == dict(result.config)


def _order(value: Value) -> tuple[bool, Any]:
    return (isinstance(value, str), value)


def _floor(stored: Any) -> Floor:
    """What a trial's details say of its floor; they may say anything."""
    if not isinstance(stored, Mapping):
        return Floor()
    names = ("time_ms", "memory_ms", "arithmetic_ms", "fma_ms")
    times = [stored.get(name) for name in names]
    if not all(isinstance(t, int | float) and math.isfinite(t) and t >= 0 for t in times):
        return Floor()
    limit = stored.get("limit")
    known = limit if limit in ("memory", "arithmetic") else ""
    figures = dict(zip(names, (float(t or 0.0) for t in times), strict=True))
    return Floor(**figures, limit=known, cache_resident=stored.get("cache_resident") is True)


def read_material(study: Study) -> Material:
    """Reads a study.

    Raises:
        ColdforgeError: it is damaged.
    """
    results = study.results()
    current = study.winner_is_current(len(results))
    summary = summarise(study, results)
    winner = study_winner(study)
    best = best_entry(study, results)
    if winner is not None and (best is None or dict(winner.config) != best["config"]):
        winner = None  # of an earlier stage of the study: what is shown is what leads now
    return Material(
        about=study.about,
        summary=summary,
        results=results,
        finals=study.finals if current else [],
        winner=winner,
        defaults=study.defaults,
    )
