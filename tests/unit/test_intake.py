# SPDX-License-Identifier: Apache-2.0
"""What a run takes in of its study."""

from __future__ import annotations

from pathlib import Path

import pytest
from coldforge.tuner.intake import Intake
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.search import FeasibleSet
from coldforge.tuner.standing import Standing
from coldforge.tuner.storage import open_storage
from coldforge.tuner.study import Study, open_study
from optuna.trial import FrozenTrial
from pretend import make_plan

OURS, THEIRS = "1-ours", "2-theirs"


class Shelf:
    """A study and what a run knows of it."""

    def __init__(self, folder: Path) -> None:
        plan = make_plan(folder)
        self.feasible: FeasibleSet = plan.feasible()
        storage = open_storage(None, folder)
        assert storage is not None
        self.study: Study = open_study(storage, plan.inputs())
        self.standing, self.learned = Standing(None), list[TrialResult]()
        self.intake = Intake(self.study, self.standing, OURS, self.learned.append)

    def store(self, index: int, worker: str, time_ms: float = 1.0) -> TrialResult:
        point = self.feasible.points[index]
        result = TrialResult(
            TrialOutcome.OK,
            time_ms=time_ms,
            template=point.template,
            config=dict(point.config),
            details={"worker": worker},
        )
        self.study.record(point, result, self.feasible.distributions_of(index))
        return result

    def indices(self, trials: list[FrozenTrial]) -> list[int | None]:
        return [self.feasible.index_of(trial.params) for trial in trials]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_what_others_stored_is_taken_in_once_and_ones_own_not_again(shelf: Shelf) -> None:
    shelf.store(3, THEIRS)
    assert shelf.indices(shelf.intake.take_in()) == [3]
    shelf.intake.stored(shelf.store(4, OURS))
    shelf.store(5, THEIRS)
    assert shelf.indices(shelf.intake.take_in()) == [5]
    assert shelf.intake.take_in() == []
    assert len(shelf.standing.results) == len(shelf.standing.finished) == 3
    assert len(shelf.learned) == 2


def test_a_config_that_both_tried_counts_as_two_results_of_one(shelf: Shelf) -> None:
    shelf.store(4, THEIRS, 7.0)
    shelf.intake.stored(shelf.store(4, OURS, 5.0))
    assert shelf.indices(shelf.intake.take_in()) == [4]
    assert sorted(result.time_ms or 0 for result in shelf.standing.results) == [5.0, 7.0]
    assert len(shelf.standing.finished) == 1


def test_where_anothers_result_stands_ones_own_is_dropped(shelf: Shelf) -> None:
    """A server keeps one result of a config, and it may be that of the other one."""
    theirs = shelf.store(4, THEIRS, 7.0)
    shelf.intake.stored(
        TrialResult.from_dict(theirs.to_dict() | {"time_ms": 5.0, "details": {"worker": OURS}})
    )
    shelf.store(6, THEIRS)
    assert shelf.indices(shelf.intake.take_in()) == [4, 6]
    assert [result.time_ms for result in shelf.standing.results] == [7.0, 1.0]
    assert shelf.standing.best is not None
    assert len(shelf.study.trials()) == len(shelf.standing.results)
