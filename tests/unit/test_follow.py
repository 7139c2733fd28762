# SPDX-License-Identifier: Apache-2.0
"""Looking on at a study that others write: when it is shown again, and when looking ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from coldforge.tuner.attempts import Attempts
from coldforge.tuner.follow import moments
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.search import FeasibleSet, Point
from coldforge.tuner.storage import is_embedded, open_storage
from coldforge.tuner.study import Study
from report_studies import new_study

FEASIBLE = FeasibleSet({"direct": [{"TILE": t} for t in range(40)]})


@pytest.fixture
def study() -> Study:
    return new_study(optuna.storages.InMemoryStorage())


def _finish(study: Study, index: int) -> None:
    point = FEASIBLE.points[index]
    result = TrialResult(TrialOutcome.OK, time_ms=1.0 + index, template=point.template, config=point.config)
    study.record(point, result, FEASIBLE.distributions_of(index))


def _hold_finals(study: Study) -> None:
    count = len(study.trials())
    measured = {"time_ms": 1.0, "floor_ms": None, "error": None}
    winner = {"template": "direct", "config": {"TILE": 0}, "resources": {}, "measurement": measured}
    study.set_winner({"trials": count, "final": True, "time_ms": 1.0, "winner": winner}, [])


class Others:
    """What other processes do between two looks, and whether a run is at work after each step."""

    def __init__(self, *steps: tuple[Callable[[], None] | None, bool | None]) -> None:
        self.steps = list(steps)
        self.working: bool | None = self.steps.pop(0)[1]
        self.looks = 0

    def at_work(self) -> bool | None:
        self.looks += 1
        return self.working

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        assert self.looks < 100, "looked for ever"
        if self.steps:
            step, self.working = self.steps.pop(0)
            if step is not None:
                step()


def _counts(study: Study, others: Others) -> list[tuple[int, bool]]:
    seen = moments(study, others.at_work, others.wait)
    return [(document["finished"], document["finals_held"]) for document in seen]


def test_each_change_is_shown_once_until_the_run_has_ended(study: Study) -> None:
    others = Others(
        (None, True),
        (lambda: _finish(study, 0), True),
        (None, True),
        (lambda: _finish(study, 1), True),
        (lambda: _hold_finals(study), True),
        (None, False),
    )
    assert _counts(study, others) == [(0, False), (1, False), (2, False), (2, True)]
    assert others.looks == 6


def test_a_run_that_goes_on_with_a_finished_study_is_followed(study: Study) -> None:
    _finish(study, 0)
    _hold_finals(study)
    others = Others(
        (None, True),
        (lambda: _finish(study, 1), True),
        (lambda: _hold_finals(study), False),
    )
    assert _counts(study, others) == [(1, True), (2, False), (2, True)]


def test_what_is_finished_is_shown_and_left(study: Study) -> None:
    _finish(study, 0)
    _hold_finals(study)
    for working in (False, None):
        others = Others((None, working))
        assert _counts(study, others) == [(1, True)]
        assert others.looks == 1


def test_runs_that_end_without_finals_end_it_after_a_while(study: Study) -> None:
    others = Others((None, True), (lambda: _finish(study, 0), True), (None, False))
    assert _counts(study, others) == [(0, False), (1, False)]
    assert 5 <= others.looks <= 20


def test_a_run_that_begins_late_is_waited_for(study: Study) -> None:
    def work() -> None:
        _finish(study, 0)
        _hold_finals(study)

    others = Others(*[(None, False)] * 4, *[(None, True)] * 20, (work, False))
    assert _counts(study, others) == [(0, False), (1, True)]


def test_where_runs_leave_no_record_here_only_the_finals_end_it(study: Study) -> None:
    def work() -> None:
        _finish(study, 0)
        _hold_finals(study)

    others = Others(*[(None, None)] * 40, (work, None))
    assert _counts(study, others) == [(0, False), (1, True)]


def test_a_tuner_is_at_work_from_its_first_claim_to_its_end(tmp_path: Path) -> None:
    looking = Attempts(tmp_path, "a study")
    assert not looking.at_work
    with Attempts(tmp_path, "a study") as tuner:
        tuner.claim(Point("direct", {"TILE": 0}).key)
        assert looking.at_work
        assert not Attempts(tmp_path, "another").at_work
    assert not looking.at_work


def test_which_storage_only_this_machine_writes(tmp_path: Path) -> None:
    assert is_embedded(open_storage(None, tmp_path))
    assert not is_embedded(None)
