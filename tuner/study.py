# SPDX-License-Identifier: Apache-2.0
"""Studies in Optuna's storage: one finished trial per outcome, committed at once, and what the study is
about.

Trials are only ever added finished (COMPLETE with a time, or PRUNED with a reason), so a killed run leaves
nothing half done; on a server they are claimed first (`shared/ledger.py`), and only finished ones are a
study's. Everything that showing or freezing a study needs is in its user attributes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from ..codegen.errors import InputError, UnknownName
from .bulk_storage import FINISHED, BulkStorage
from .identity import StudyInputs
from .labels import study_label
from .limits import TIME
from .outcome import TrialOutcome, TrialResult
from .ranking import reconciled
from .search import Point
from .search.feasible import TEMPLATE
from .stored import FINALS, WINNER, checked, checked_trial, is_ours, reading
from .stored import ROOTS as FOLDERS

_ABOUT, _WINNER, _FINALS, _TOUCHED, _DEFAULTS = "about", "winner", "finals", "touched", "defaults"
ROOTS = "roots"
"""The attribute that holds paths of this machine."""
REQUEST = "request"
"""The attribute that says what workers are to do."""
_ALONE, _REST = ("outcome", "reason", "error", "code_digest", "resources", "config"), "more"
_MAY_BE_INFINITE = ("error", "bound_ratio")
"""Figures that have no value where a variant left a NaN, or nothing at all in its poisoned output; they are
stored as unknown, for JSON has no such numbers. Studies of older versions may hold them."""
_MAX_SAMPLES = 100
SPILLED = "spilled_bytes"
"""The detail of a config that was not run because it spills so many bytes."""
RUN_AFTER_ALL = "run_after_all"
"""The detail of a config that was not run at first, and under a larger limit then was."""


class Study:
    """One study. Reads are answered from storage, so that another process's trials are seen too."""

    def __init__(self, study: optuna.Study, store: Callable[[FrozenTrial], object] | None = None) -> None:
        """The study as Optuna gives it.

        Args:
            store: takes the finished trials; they are added as new ones when not given.
        """
        self._study, self._store = study, store or study.add_trial

    @property
    def name(self) -> str:
        """Its unique name."""
        return self._study.study_name

    @property
    def about(self) -> dict[str, Any]:
        """What is tuned, on what, with what: the inputs, ``created`` (ISO time, UTC) and ``coldforge``
        (version).
        """
        about = self._attribute(_ABOUT)
        return dict(about) if is_ours(about) else {}

    def _attribute(self, name: str) -> Any:
        with reading(f"study {self.name}"):
            return self._study.user_attrs.get(name)

    @property
    def touched(self) -> str:
        """When a run last worked on it (ISO time, UTC)."""
        touched = self._attribute(_TOUCHED)
        return touched if isinstance(touched, str) else ""

    def touch(self) -> None:
        """Notes that a run works on it now, which makes it its operator's newest."""
        self._study.set_user_attr(_TOUCHED, _now().isoformat())

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders with declarations, beside the built-in ones, that it was last tuned from."""
        return tuple(checked(self._attribute(ROOTS) or [], FOLDERS, f"study {self.name}: {ROOTS}"))

    def remember_roots(self, roots: Sequence[str]) -> None:
        """Notes where its declarations are."""
        if tuple(roots) != self.roots:
            self._study.set_user_attr(ROOTS, list(roots))

    @property
    def request(self) -> dict[str, Any] | None:
        """What the last `tune` asked of the study's workers; None where none did."""
        found = self._attribute(REQUEST)
        return found if isinstance(found, dict) else None

    def ask_for(self, request: Mapping[str, Any]) -> None:
        """Notes what is asked of the study's workers: see `joining.Request`."""
        if dict(request) != self.request:
            self._study.set_user_attr(REQUEST, dict(request))

    def storing(self, store: Callable[[FrozenTrial], object]) -> Study:
        """The same study, whose finished trials go elsewhere first."""
        return Study(self._study, store)

    @property
    def of_optuna(self) -> optuna.Study:
        """Optuna's own."""
        return self._study

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """Template -> its default config as the last run declared it, where that is legal."""
        found = self._attribute(_DEFAULTS)
        return found if isinstance(found, dict) and all(isinstance(c, dict) for c in found.values()) else {}

    def remember_defaults(self, defaults: Mapping[str, Mapping[str, Any]]) -> None:
        """Notes the default configs, which may change within one study."""
        given = {name: dict(config) for name, config in defaults.items()}
        if given != self.defaults:
            self._study.set_user_attr(_DEFAULTS, given)

    @property
    def winner(self) -> dict[str, Any] | None:
        """The stored winner, as `set_winner` left it."""
        found = self._attribute(_WINNER)
        return None if found is None else checked(found, WINNER, f"study {self.name}: its winner")

    def set_winner(self, winner: Mapping[str, Any], finals: list[dict[str, Any]]) -> None:
        """Stores the winner and the finals it comes from (plain JSON)."""
        self._study.set_user_attr(_FINALS, finals)
        self._study.set_user_attr(_WINNER, dict(winner))

    def winner_is_current(self, trials: int, objective: str | None = None) -> bool:
        """Whether the winner comes from finals held when the study had this many trials.

        Args:
            objective: What decided them; whatever did when not given.
        """
        winner = self.winner
        if winner is None or objective not in (None, winner.get("objective") or TIME):
            return False
        return bool(winner["final"]) and winner["trials"] == trials

    @property
    def finals(self) -> list[dict[str, Any]]:
        """The finalists with their times; empty before the finals."""
        rows = checked(self._attribute(_FINALS) or [], FINALS, f"study {self.name}: its finals")
        return [reconciled(row) for row in rows]

    def trials(self) -> list[FrozenTrial]:
        """The finished trials, in order. Do not change them."""
        with reading(f"study {self.name}"):
            return self._study.get_trials(deepcopy=False, states=FINISHED)

    @property
    def is_empty(self) -> bool:
        """Whether nothing came of it so far: its first run has just begun, or ended before the first config,
        as with a reference that raises."""
        return self._attribute(_WINNER) is None and not self.trials()

    def trials_beside(self, known: Collection[int]) -> list[FrozenTrial]:
        """The finished trials that are not known yet, in order. Do not change them.

        Args:
            known: ids (`FrozenTrial._trial_id`) of those that are left out; they are not read.
        """
        storage = self._study._storage
        database = getattr(storage, "_backend", storage)  # Optuna keeps what it read in front of a database
        if not isinstance(database, BulkStorage):
            return [trial for trial in self.trials() if trial._trial_id not in known]
        with reading(f"study {self.name}"):
            return database.finished(self._study._study_id, known)

    def results(self, trials: Sequence[FrozenTrial] | None = None) -> list[TrialResult]:
        """What became of each trial, in order.

        Args:
            trials: what `trials` gave; asked for when not given.
        """
        found = self.trials() if trials is None else trials
        return [result_of(trial, f"study {self.name}: trial {trial.number}") for trial in found]

    def record(
        self,
        point: Point,
        result: TrialResult,
        distributions: Mapping[str, BaseDistribution],
        seconds: float = 0.0,
    ) -> None:
        """Commits one finished trial.

        Args:
            point: what was tried.
            result: what became of it.
            distributions: of the point's parameters.
            seconds: what the trial took in all, compilation included.
        """
        complete = result.ok and result.time_ms is not None
        trial = create_trial(
            state=TrialState.COMPLETE if complete else TrialState.PRUNED,
            value=result.time_ms if complete else None,
            params=point.params,
            distributions=dict(distributions),
            user_attrs=_attributes(point, result),
        )
        trial.datetime_complete = datetime.now()
        trial.datetime_start = trial.datetime_complete - timedelta(seconds=seconds)
        self._store(trial)


def thinned(samples: Sequence[float]) -> list[float]:
    """At most 100 of the samples, evenly spread in time: enough to judge the median by."""
    step = -(-len(samples) // _MAX_SAMPLES) or 1
    return list(samples[::step])


def _attributes(point: Point, result: TrialResult) -> dict[str, Any]:
    """The result as user attributes. Each costs a millisecond to store: those that a person would filter by
    stand alone, the rest is one; what is empty, or in the trial itself, is left out."""
    data = {**result.to_dict(), "config": dict(point.config), "samples_ms": thinned(result.samples_ms)}
    del data["template"], data["time_ms"]
    data |= {name: None for name in _MAY_BE_INFINITE if _is_infinite(data[name])}
    alone = {name: data.pop(name) for name in _ALONE}
    return {name: value for name, value in alone.items() if value not in (None, "", {})} | {_REST: data}


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def result_of(trial: FrozenTrial, where: str = "a trial") -> TrialResult:
    """The result that a stored trial holds.

    Args:
        where: what a message calls the trial.

    Raises:
        ColdforgeError: it holds none.
    """
    attributes = trial.user_attrs
    alone = {name: attributes[name] for name in _ALONE if name in attributes}
    rest = checked(attributes.get(_REST, {}), {}, where)
    data = {**rest, **alone, "template": trial.params.get(TEMPLATE), "time_ms": trial.value}
    data |= {name: None for name in _MAY_BE_INFINITE if _is_infinite(data.get(name))}
    return TrialResult.from_dict(checked_trial(data, where))


def tally(results: list[TrialResult]) -> dict[str, int]:
    """Outcome -> how many, the good ones first; outcomes that did not occur are left out. That a
    config was not run does not count when it was run after all."""
    counts = Counter(result.outcome for result in results)
    counts[TrialOutcome.RESOURCE_LIMIT] -= sum(bool(r.details.get(RUN_AFTER_ALL)) for r in results)
    return {outcome.value: counts[outcome] for outcome in TrialOutcome if counts[outcome] > 0}


def finished_count(results: list[TrialResult]) -> int:
    """Distinct finished configs, which ``--trials`` limits: every outcome but ``illegal``."""
    done = (r for r in results if r.outcome is not TrialOutcome.ILLEGAL)
    # Two runs at once on one study may both have tried a config.
    return len({Point(r.template, r.config).key for r in done})


def open_study(storage: BaseStorage, inputs: StudyInputs) -> Study:
    """The study of these inputs, made if it does not exist."""
    with reading(f"study {inputs.name}"):
        study = optuna.create_study(storage=storage, study_name=inputs.name, load_if_exists=True)
        described = _ABOUT in study.user_attrs
    if not described:
        about = {**inputs.to_dict(), "created": _now().isoformat(), "coldforge": version("coldforge")}
        del about["defaults"]
        study.set_user_attr(_ABOUT, about)
    found = Study(study)
    found.remember_defaults(inputs.defaults)
    return found


def list_studies(storage: BaseStorage | None) -> list[Study]:
    """Every study of coldforge's in the storage, the newest last. No storage: none."""
    if storage is None:
        return []
    with reading("the list of studies"):
        names = optuna.get_all_study_names(storage)
        studies = [Study(optuna.load_study(study_name=name, storage=storage)) for name in names]
    return sorted((study for study in studies if study.about), key=lambda study: (study.touched, study.name))


def find_study(storage: BaseStorage | None, text: str, but: str = "", *, empty: bool = False) -> Study:
    """The study that ``text`` names: an operator (its newest study), a whole name, or a unique prefix.

    Args:
        but: the name of one that is not meant.
        empty: whether an operator's newest study is meant even while it has no trials; else it is the newest
            of those that have some, if there are any.

    Raises:
        UnknownName: nothing matches.
        InputError: a prefix matches several.
    """
    studies = [study for study in list_studies(storage) if study.name != but]
    exact = [study for study in studies if study.name == text]
    of_operator = [study for study in studies if study.about["operator"] == text]
    if exact:
        return exact[-1]
    if of_operator:
        return of_operator[-1] if empty else newest_of(of_operator)
    matches = [study for study in studies if study.name.startswith(text)]
    if not matches:
        raise UnknownName("study", text, [study.name for study in studies])
    if len(matches) > 1:
        known = ", ".join(f"{study.name} ({study_label(study)})" for study in matches)
        raise InputError(f"study {text!r} is not unique: {known}")
    return matches[0]


def newest_of(studies: Sequence[Study]) -> Study:
    """Of studies of one operator, the newest last, the one that answers for it: a run that failed at once
    leaves an empty study, which has nothing to say as long as another has."""
    return next((study for study in reversed(studies) if not study.is_empty), studies[-1])


def _now() -> datetime:
    return datetime.now(UTC)
