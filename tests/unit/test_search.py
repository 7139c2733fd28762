# SPDX-License-Identifier: Apache-2.0
"""The feasible set, and what every sampler behind ask/tell must do."""

from __future__ import annotations

import itertools
import math

import numpy as np
import optuna
import pytest
from coldforge.codegen.errors import UnknownName
from coldforge.tuner.search import SAMPLERS, FeasibleSet, Point, Search, point_of, sampler_named
from coldforge.tuner.search.history import Reader
from optuna.trial import TrialState, create_trial

TILES, WIDTHS, KINDS = (8, 16, 32, 64, 128), (1, 2, 4, 8), ("plain", "packed", "staged")


def _configs() -> list[dict[str, int | str]]:
    """A space with a hole: wide vectors need wide tiles."""
    combinations = itertools.product(TILES, WIDTHS, KINDS, range(6))
    return [{"TILE": t, "VEC": v, "KIND": k, "DEPTH": d} for t, v, k, d in combinations if t >= 8 * v]


def _other_configs() -> list[dict[str, int | str]]:
    """Another template that shares TILE and has a parameter of its own."""
    return [{"TILE": t, "SPLIT": s} for t in (64, 256) for s in (1, 2, 3)]


def _time_ms(point: Point) -> float | None:
    """A made-up landscape; some points fail."""
    config = point.config
    if point.template == "other":
        return 9.0 + int(config["SPLIT"])
    if config["KIND"] == "staged" and config["VEC"] == 8:
        return None
    depth = int(config["DEPTH"])
    tile = abs(math.log2(int(config["TILE"])) - 6)
    return 1.0 + tile + abs(depth - 3) + {"plain": 1.0, "packed": 0.0, "staged": 0.5}[str(config["KIND"])]


def _set(two: bool = False) -> FeasibleSet:
    spaces = {"direct": _configs()} | ({"other": _other_configs()} if two else {})
    defaults = {"direct": _configs()[5]} | ({"other": _other_configs()[3]} if two else {})
    return FeasibleSet(spaces, defaults)


def _drive(search: Search, trials: int, batch: int = 2) -> list[int]:
    """Asks and tells until ``trials`` points were tried or none is left."""
    tried: list[int] = []
    while len(tried) < trials:
        asked = search.ask(min(batch, trials - len(tried)))
        if not asked:
            break
        for index in asked:
            search.tell(index, _time_ms(search.feasible.points[index]))
        tried += asked
    return tried


def _stored(feasible: FeasibleSet, tried: list[int]) -> list[optuna.trial.FrozenTrial]:
    trials = []
    for index in tried:
        time_ms = _time_ms(feasible.points[index])
        trials.append(
            create_trial(
                state=TrialState.PRUNED if time_ms is None else TrialState.COMPLETE,
                value=time_ms,
                params=feasible.params(index),
                distributions=feasible.distributions_of(index),
            )
        )
    return trials


def test_every_point_is_found_by_its_parameters() -> None:
    feasible = _set(two=True)
    assert len(feasible) == len(_configs()) + len(_other_configs())
    for index in range(len(feasible)):
        assert feasible.index_of(feasible.params(index)) == index
        assert point_of(feasible.params(index)) == feasible.points[index]


def test_what_is_not_feasible_has_no_index() -> None:
    feasible = _set(two=True)
    assert feasible.index_of({"template": "direct", "TILE": 8, "VEC": 8, "KIND": "plain", "DEPTH": 0}) is None
    assert feasible.index_of({"template": "direct", "TILE": 7, "VEC": 1, "KIND": "plain", "DEPTH": 0}) is None
    assert feasible.index_of({"template": "other", "TILE": 64}) is None
    assert feasible.index_of({"template": "other", "TILE": 64, "SPLIT": 1, "NEW": 1}) is None


def test_choices_of_a_shared_name_are_the_union() -> None:
    feasible = _set(two=True)
    assert feasible.distributions["TILE"].choices == (8, 16, 32, 64, 128, 256)
    assert feasible.names == {"direct": ("TILE", "VEC", "KIND", "DEPTH"), "other": ("TILE", "SPLIT")}


def test_nearest_unseen_differs_least_and_follows_the_rng() -> None:
    feasible = _set()
    wanted = {"template": "direct", "TILE": 8, "VEC": 8, "KIND": "plain", "DEPTH": 0}
    found = {feasible.nearest_unseen(wanted, np.random.default_rng(seed)) for seed in range(20)}
    assert len(found) > 1
    for index in found:
        assert sum(feasible.params(index)[name] != value for name, value in wanted.items()) == 1
    again = [feasible.nearest_unseen(wanted, np.random.default_rng(7)) for _ in range(2)]
    assert again[0] == again[1]
    feasible.unseen[:] = False
    with pytest.raises(IndexError):
        feasible.nearest_unseen(wanted, np.random.default_rng(0))


def test_unknown_sampler() -> None:
    with pytest.raises(
        UnknownName, match="unknown sampler 'nope'; known: densities, exhaustive, gp, local, random, tpe"
    ):
        sampler_named("nope")


@pytest.mark.parametrize("name", sorted(SAMPLERS))
@pytest.mark.parametrize("two", [False, True], ids=["one-template", "two-templates"])
class TestEverySampler:
    """Holds for each sampler, with one template and with several."""

    def _search(self, name: str, two: bool, stored: list[int] | None = None, seed: int = 0) -> Search:
        feasible = _set(two)
        return Search(feasible, sampler_named(name), _stored(feasible, stored or []), seed)

    def test_300_trials_without_a_repeat(self, name: str, two: bool) -> None:
        tried = _drive(self._search(name, two), 300 if not two else 40, batch=3)
        assert len(tried) == len(set(tried))
        assert len(tried) == min(300 if not two else 40, len(_set(two)))

    def test_exhausts_the_space_and_then_asks_nothing(self, name: str, two: bool) -> None:
        search = self._search(name, two, stored=list(range(10, len(_set(two)))))
        tried = _drive(search, 1000, batch=4)
        assert sorted(tried) == list(range(10))
        assert search.ask(1) == []
        assert search.feasible.exhausted

    def test_defaults_come_first(self, name: str, two: bool) -> None:
        search = self._search(name, two)
        asked = search.ask(1) + search.ask(2)
        assert asked[: len(search.feasible.defaults)] == search.feasible.defaults

    def test_stored_trials_are_not_asked_again(self, name: str, two: bool) -> None:
        first = _drive(self._search(name, two), 30)
        second = _drive(self._search(name, two, stored=first), 30)
        assert not set(first) & set(second)

    def test_same_seed_same_points(self, name: str, two: bool) -> None:
        runs = [_drive(self._search(name, two, seed=5), 25) for _ in range(2)]
        assert runs[0] == runs[1]

    def test_withdrawn_points_are_asked_again(self, name: str, two: bool) -> None:
        search = self._search(name, two)
        asked = search.ask(6)
        assert search.pending == set(asked)
        for index in asked:
            search.withdraw(index)
        assert search.pending == frozenset()
        assert search.feasible.unseen.all()
        assert search.ask(1) == search.feasible.defaults[:1]

    def test_what_others_finished_is_neither_asked_nor_told(self, name: str, two: bool) -> None:
        search = self._search(name, two)
        asked = search.ask(5)
        fresh = next(index for index in range(len(search.feasible)) if search.feasible.unseen[index])
        trials = _stored(search.feasible, [asked[0], asked[1], fresh])
        assert search.learn(trials, keep=asked[0]) == {asked[1]}
        assert search.learn(trials, keep=asked[0]) == set()
        assert search.pending == set(asked) - {asked[1]}
        search.tell(asked[0], 1.0)
        assert not {asked[1], fresh} & set(_drive(search, 15))

    def test_what_others_finished_keeps_its_place_in_the_history(self, name: str, two: bool) -> None:
        """A model that has observed it as under way need not be made anew."""
        search = self._search(name, two)
        asked = search.ask(6)
        for index in asked[4:]:
            search.tell(index, 2.0)
        search.learn(_stored(search.feasible, asked[1:3]))
        history = Reader(search.feasible).read(search._study)
        assert [index for index in history.points if index in asked] == asked
        under_way = [index for index, p in zip(history.points, history.pending, strict=True) if p]
        assert under_way == [asked[0], asked[3]]

    def test_a_claimed_point_is_asked_for(self, name: str, two: bool) -> None:
        search = self._search(name, two)
        assert search.claim(7)
        assert not search.claim(7)
        assert search.pending == {7}
        search.tell(7, None)
        assert 7 not in _drive(search, 15)


@pytest.mark.parametrize("name", sorted(SAMPLERS.keys() - {"exhaustive"}))
def test_another_seed_gives_other_points(name: str) -> None:
    runs = [_drive(Search(_set(), sampler_named(name), [], seed), 20) for seed in (0, 1)]
    assert runs[0] != runs[1]


def test_a_resumed_run_does_not_repeat_the_draws() -> None:
    """The number of stored trials is part of the seed: one that only restarted its generator would suggest
    the points of the first run again, and be snapped to their neighbours."""
    feasible = _set()
    fresh = Search(feasible, sampler_named("random"), [], 3).ask(10)
    other = _set()
    resumed = Search(other, sampler_named("random"), _stored(other, [0]), 3).ask(10)
    assert fresh[1:] != resumed[1:]


@pytest.mark.parametrize("own", ["gp", "densities", "local", "tpe"])
def test_it_learns(own: str) -> None:
    """On the made-up landscape it must find a better point in 60 trials than random search does on
    average.
    """
    best = {name: [] for name in (own, "random")}
    for name, seed in itertools.product(best, range(5)):
        search = Search(_set(), sampler_named(name), [], seed)
        times = [_time_ms(search.feasible.points[index]) for index in _drive(search, 60)]
        best[name].append(min(t for t in times if t is not None))
    assert np.mean(best[own]) <= np.mean(best["random"])
    assert min(best[own]) == 1.0


def test_failures_are_told_as_pruned() -> None:
    search = Search(_set(), sampler_named("random"), [], 0)
    asked = search.ask(3)
    search.tell(asked[0], None)
    search.tell(asked[1], 2.5)
    states = {trial.number: trial.state for trial in search._study.get_trials()}
    assert sorted(states.values()) == sorted([TrialState.PRUNED, TrialState.COMPLETE, TrialState.RUNNING])


def test_tpe_tells_infeasible_suggestions_as_pruned() -> None:
    """Optuna's TPE suggests combinations outside the set; they must steer it away and never be tried."""
    configs = [{"A": a, "B": b} for a, b in itertools.product(range(12), range(12)) if (a + b) % 3 == 0]
    search = Search(FeasibleSet({"t": configs}), sampler_named("tpe"), [], 0)
    for _ in range(20):
        for index in search.ask(2):
            search.tell(index, 1.0 + abs(int(search.feasible.points[index].config["A"]) - 6))
    trials = search._study.get_trials()
    outside = [t for t in trials if search.feasible.index_of(t.params) is None]
    assert outside
    assert all(t.state is TrialState.PRUNED for t in outside)
