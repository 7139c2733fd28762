# SPDX-License-Identifier: Apache-2.0
"""What a winner took at sizes that it did not win: other studies of the same operator, device and toolchain have
tried it there. Frozen with it, a call of a size that nobody tuned goes by the measurement nearest to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..codegen.freeze.winner import OTHER_SIZES, Winner
from .identity import digest_of
from .search import Point
from .study import Study

_RENDERED = ":rendered"
_LABELS = ("workload", "defaults", "created", "coldforge")


class OtherSizes:
    """Measurements of variants, by what makes them comparable."""

    def __init__(self, studies: Iterable[Study]) -> None:
        """Reads nothing yet.

        Args:
            studies: all that may have measured a winner.
        """
        self._studies = {study.name: study for study in studies}
        self._about: dict[str, Mapping[str, Any]] = {}
        self._alike: dict[tuple[str, ...], dict[str, list[Study]]] = {}  # by the names of the run-time sizes
        self._times: dict[str, dict[str, float]] = {}

    def of(self, winner: Winner) -> Winner:
        """The winner with what other studies measured of it; as it is where its study is not among them.

        Raises:
            InputError: a study is damaged.
        """
        own = self._studies.get(winner.study)
        if own is None:
            return winner
        names = tuple(name for name in winner.workload if name not in winner.specialisation)
        key = Point(winner.template, winner.config).key
        rows = []
        for study in self._comparable(own, names):
            if study is own:
                continue
            sizes = {name: self._about_of(study)["problem"]["dims"][name] for name in names}
            time_ms = self._measured(study).get(key)
            if time_ms is not None and sizes != {name: winner.workload[name] for name in names}:
                rows.append({"sizes": sizes, "time_ms": time_ms})
        if not rows:
            return winner
        rows.sort(key=lambda row: tuple(row["sizes"].values()))
        return replace(winner, measurement={**winner.measurement, OTHER_SIZES: rows})

    def _comparable(self, own: Study, names: tuple[str, ...]) -> list[Study]:
        if names not in self._alike:
            self._alike[names] = alike = {}
            for study in self._studies.values():
                alike.setdefault(_but_for(self._about_of(study), names), []).append(study)
        return self._alike[names].get(_but_for(self._about_of(own), names), [])

    def _about_of(self, study: Study) -> Mapping[str, Any]:
        if study.name not in self._about:
            self._about[study.name] = study.about
        return self._about[study.name]

    def _measured(self, study: Study) -> Mapping[str, float]:
        """Key of a point -> what it took, in the finals where it came to them; none of those whose timing was
        given up early."""
        if study.name not in self._times:
            found = {
                Point(r.template, r.config).key: r.time_ms
                for r in study.results(study.trials_beside(()))
                if r.ok and r.time_ms is not None and not r.details.get("given_up")
            }
            for row in study.finals:
                if row["time_ms"] is not None:
                    found[Point(row["template"], row["config"]).key] = row["time_ms"]
            self._times[study.name] = found
        return self._times[study.name]


def _but_for(about: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """A digest of a study's inputs, but for the named sizes and what only labels it."""
    inputs = {name: value for name, value in about.items() if name not in _LABELS}
    problem = dict(inputs.get("problem") or {})
    problem["dims"] = {n: v for n, v in dict(problem.get("dims") or {}).items() if n not in names}
    problem.pop("workload", None)
    # Which config is rendered to stand for all may hang on the sizes.
    sources = {n: v for n, v in dict(inputs.get("sources") or {}).items() if not n.endswith(_RENDERED)}
    return digest_of({**inputs, "problem": problem, "sources": sources})
