# SPDX-License-Identifier: Apache-2.0
"""What a run may begin with: the results of another study, and the winners that its operator had before."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from optuna.storages import BaseStorage

from ..codegen.errors import ColdforgeError, InputError
from .equipment import TuneOptions
from .outcome import TrialOutcome
from .plan import Plan
from .search import FeasibleSet, Point, Sibling, sibling_of
from .stored import ABOUT, checked
from .study import Study, find_study, list_studies

_AUTO = "auto"
_LEAST = 4
"""Timed configs that are legal here, below which a study is not looked at unless it was named."""
_WINNERS = 3


class Beginnings:
    """What the runs of one command begin with.

    Args:
        storage: where earlier studies are.
        warm_start: as on the command line: a study, `auto`, or None.
    """

    def __init__(self, storage: BaseStorage, warm_start: str | None) -> None:
        self._storage, self._text = storage, warm_start
        self._named: dict[str, Sibling] = {}

    def check(self, plan: Plan, feasible: FeasibleSet) -> None:
        """Looks up what was named, before anything runs.

        Raises:
            InputError: see `sibling_named`.
        """
        if self._text not in (None, _AUTO):
            self._named[plan.inputs().name] = sibling_named(self._storage, self._text, plan, feasible)

    def options(self, plan: Plan, feasible: FeasibleSet, given: TuneOptions) -> TuneOptions:
        """The options of a run, with what it begins with; tells on stderr of another study."""
        sibling = self._named.get(plan.inputs().name)
        if self._text == _AUTO:
            sibling = likeliest_sibling(self._storage, plan, feasible)
        if self._text is not None:
            said = "no earlier study is like this one"
            if sibling is not None:
                said = f"begins with {sibling.timed} timed configs of {sibling.name}"
            print(f"{plan.problem.operator.name} {plan.problem.workload}: {said}", file=sys.stderr)
        first = earlier_winners(self._storage, plan, feasible)
        return dataclasses.replace(given, sibling=sibling, first=first)


def sibling_named(storage: BaseStorage | None, text: str, plan: Plan, feasible: FeasibleSet) -> Sibling:
    """What the study that ``text`` names (see `find_study`) found, in the points of this one.

    Raises:
        UnknownName: there is no such study.
        InputError: it is this very one, of another kind of device, or timed nothing that is legal here.
    """
    own = plan.inputs().name
    if text == own:
        raise InputError(f"--warm-start {text}: a study cannot begin with itself; leave the option out")
    study = find_study(storage, text, but=own)
    kind = _about(study)["target"]["kind"]
    if kind != plan.target.kind:
        raise InputError(f"--warm-start {study.name}: it is of {kind}, and this one of {plan.target.kind}")
    found = _sibling(study, feasible)
    if not found.timed:
        raise InputError(f"--warm-start {study.name}: no config that it timed is legal here; name another")
    return found


def likeliest_sibling(storage: BaseStorage | None, plan: Plan, feasible: FeasibleSet) -> Sibling | None:
    """What the study found that is most like this one: of the same operator and kind of device, and of as
    much else as can be (device, sizes, types); of those alike the newest. None when there is none.
    """
    here = plan.inputs().to_dict()
    for study in sorted(_others(storage, plan), key=lambda study: -_likeness(_about(study), here)):
        with contextlib.suppress(ColdforgeError):  # a damaged study is no reason not to tune
            found = _sibling(study, feasible)
            if found.timed >= _LEAST:
                return found
    return None


def earlier_winners(storage: BaseStorage | None, plan: Plan, feasible: FeasibleSet) -> tuple[int, ...]:
    """The points, at most a few, that won earlier studies of the operator, and those that are frozen: where
    they are legal here; the newest of the same device first, then others.
    """
    device = plan.target.device
    studies = _others(storage, plan)
    own = [s for s in studies if _about(s)["target"]["device"] == device]
    found: dict[int, None] = {}
    for params in (*_won(own), *_won([s for s in studies if s not in own]), *_frozen(plan)):
        index = feasible.index_of(params)
        if index is not None and index not in feasible.defaults:
            found[index] = None
    return tuple(found)[:_WINNERS]


def _others(storage: BaseStorage | None, plan: Plan) -> list[Study]:
    """The readable studies of the operator on this kind of device, without this one, the newest first."""
    own, found = plan.inputs().name, []
    with contextlib.suppress(ColdforgeError):
        for study in reversed(list_studies(storage)):
            with contextlib.suppress(ColdforgeError):
                about = _about(study)
                alike = (about["operator"], about["target"]["kind"])
                if alike == (plan.problem.operator.name, plan.target.kind) and study.name != own:
                    found.append(study)
    return found


def _about(study: Study) -> Mapping[str, Any]:
    return checked(study.about, ABOUT, f"study {study.name}")


def _likeness(about: Mapping[str, Any], here: Mapping[str, Any]) -> int:
    """In how much a study is like this one."""
    same = [about["problem"][name] == here["problem"][name] for name in ("dims", "dtype")]
    same += [about["target"][name] == here["target"][name] for name in ("arch", "device")]
    return sum(same) + (about["precision"] == here["precision"])


def _sibling(study: Study, feasible: FeasibleSet) -> Sibling:
    results = (r for r in study.results() if r.outcome is not TrialOutcome.ILLEGAL)
    found = ((Point(r.template, r.config).params, r.time_ms if r.ok else None) for r in results)
    return sibling_of(feasible, study.name, found)


def _won(studies: list[Study]) -> Iterator[dict[str, Any]]:
    """The winners' parameters."""
    for study in studies:
        with contextlib.suppress(ColdforgeError):
            if (record := study.winner) is not None:
                winner = record["winner"]
                yield Point(winner["template"], winner["config"]).params


def _frozen(plan: Plan) -> Iterator[dict[str, Any]]:
    """The same of what coldforge was delivered with."""
    from ..codegen.freeze import GENERATED, load_winners

    with contextlib.suppress(ColdforgeError):
        for winner in load_winners(GENERATED):
            if (winner.operator, winner.target["kind"]) == (plan.problem.operator.name, plan.target.kind):
                yield Point(winner.template, winner.config).params
