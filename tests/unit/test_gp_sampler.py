# SPDX-License-Identifier: Apache-2.0
"""The sampler that a Gaussian process guides, and what it is made of; what holds for every sampler is in
test_search."""

from __future__ import annotations

import itertools
import math

import coldforge.tuner.search.guided as guided
import numpy as np
import pytest
from coldforge.tuner.search import FeasibleSet, Search, sampler_named
from coldforge.tuner.search.densities import density_scores, near_the_best
from coldforge.tuner.search.encoding import encode
from coldforge.tuner.search.guided import improvement
from coldforge.tuner.search.history import History
from coldforge.tuner.search.start import spread_points
from coldforge.tuner.search.surrogate import Surrogate
from optuna.trial import FrozenTrial, TrialState, create_trial

SIZES, KINDS = (8, 16, 24, 32, 48, 64), ("packed", "plain")


def _grid() -> FeasibleSet:
    combinations = itertools.product(SIZES, SIZES, (1, 2, 4, 8), KINDS)
    return FeasibleSet({"t": [{"X": x, "Y": y, "V": v, "KIND": k} for x, y, v, k in combinations if x >= v]})


def _time_ms(feasible: FeasibleSet, index: int) -> float | None:
    config = feasible.points[index].config
    x, y, v = (int(config[name]) for name in "XYV")
    if x * y > 2048:
        return None
    return 1.0 + abs(math.log2(x * y) - 9) + 0.3 * abs(v - 4) + (config["KIND"] == "plain")


def _drive(search: Search, trials: int, ahead: int = 1) -> list[int]:
    """Asks and tells, with `ahead` points under way."""
    tried: list[int] = []
    under_way: list[int] = []
    while len(tried) < trials:
        under_way += search.ask(ahead - len(under_way))
        if not under_way:
            break
        index = under_way.pop(0)
        search.tell(index, _time_ms(search.feasible, index))
        tried.append(index)
    for index in under_way:
        search.withdraw(index)
    return tried


def _trial(feasible: FeasibleSet, index: int, value: float | None) -> FrozenTrial:
    state = TrialState.PRUNED if value is None else TrialState.COMPLETE
    of = {"params": feasible.params(index), "distributions": feasible.distributions_of(index)}
    return create_trial(state=state, value=value, **of)


def _history(points: list[int], times: list[float], pending: list[bool] | None = None) -> History:
    return History(points, np.array(times), np.array(pending or [False] * len(points)))


@pytest.mark.parametrize("ahead", [1, 9])
def test_it_finds_the_best_soon(ahead: int) -> None:
    """Few of some 280 configs are best; random search has found one of them after 40 in half of the runs."""
    found = []
    for seed in range(5):
        search = Search(_grid(), sampler_named("gp"), [], seed)
        tried = _drive(search, 40, ahead)
        times = [_time_ms(search.feasible, index) for index in tried]
        found.append(min(t for t in times if t is not None))
        assert len(set(tried)) == 40
    assert found == [1.0] * 5


def test_a_resumed_run_uses_what_is_stored_and_tries_other_points() -> None:
    feasible = _grid()
    first = _drive(Search(feasible, sampler_named("gp"), [], 3), 30)
    stored = [_trial(feasible, index, _time_ms(feasible, index)) for index in first]
    runs = []
    for _ in range(2):
        again = Search(_grid(), sampler_named("gp"), stored, 3)
        runs.append(_drive(again, 10))
    assert runs[0] == runs[1]
    assert not set(first) & set(runs[0])
    # It goes on where the model says, not with spread points.
    times = [_time_ms(feasible, index) or math.inf for index in runs[0]]
    usual = np.median([_time_ms(feasible, index) or math.inf for index in range(len(feasible))])
    assert np.median(times) < 0.9 * usual


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 1.0, 0.0], ids=str)
def test_what_teaches_nothing_does_not_stop_it(value: float | None) -> None:
    """All failed, all of no number, or all the same."""
    feasible = FeasibleSet({"t": [{"A": a, "B": b} for a in range(6) for b in range(7)]})
    stored = [_trial(feasible, index, None if value != value else value) for index in range(12)]
    search = Search(feasible, sampler_named("gp"), stored, 0)
    tried = []
    while asked := search.ask(3):
        tried += asked
        for index in asked:
            search.tell(index, None if value is None or value != value else value)
    assert sorted(tried) == list(range(12, 42))


@pytest.mark.parametrize(
    "configs", [[{"A": 1}], [{"A": 1}, {"A": 2}], [{"A": "x", "B": 1}, {"A": "y", "B": 1}]]
)
@pytest.mark.parametrize("name", ["gp", "densities", "local"])
def test_the_smallest_sets(name: str, configs: list[dict[str, int | str]]) -> None:
    search = Search(FeasibleSet({"t": configs}), sampler_named(name), [], 0)
    assert sorted(search.ask(5)) == list(range(len(configs)))
    assert search.ask(1) == []
    for index in range(len(configs)):
        search.withdraw(index)
    assert sorted(search.ask(5)) == list(range(len(configs)))


def test_many_under_way_are_apart() -> None:
    """With nothing told in between, what is under way is expected to be as predicted: the next points are
    not all neighbours of one another."""
    search = Search(_grid(), sampler_named("gp"), [], 1)
    _drive(search, 20)
    asked = search.ask(16)
    assert len(set(asked)) == 16
    codes = encode(search.feasible).codes[asked]
    apart = (codes[:, None] != codes[None]).sum(axis=2)[np.triu_indices(16, 1)]
    assert apart.mean() > 1.5


def test_withdrawn_points_are_forgotten() -> None:
    search = Search(_grid(), sampler_named("gp"), [], 1)
    tried = _drive(search, 15)
    asked = search.ask(4)
    for index in asked[:2]:
        search.withdraw(index)
    for index in asked[2:]:
        search.tell(index, 2.0)
    rest = _drive(search, 1000)
    assert sorted(tried + asked[2:] + rest) == list(range(len(_grid())))


def test_large_sets_and_many_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a large set is looked at, and beyond some number of trials the densities take over; neither
    repeats a point or leaves one out."""
    monkeypatch.setattr(guided, "LARGE", 100)
    monkeypatch.setattr(guided, "MOST_CANDIDATES", 60)
    monkeypatch.setattr(guided, "MOST_TRIALS", 150)
    search = Search(_grid(), sampler_named("gp"), [], 0)
    tried = _drive(search, 1000)
    assert sorted(tried) == list(range(len(_grid())))
    times = [_time_ms(search.feasible, index) or math.inf for index in tried]
    assert times.index(1.0) < 60


def test_the_encoding_has_the_scales_of_numbers_and_only_the_sameness_of_words() -> None:
    feasible = _grid()
    found = encode(feasible)
    assert found.codes.shape == (len(feasible), 4)
    x, y, v, kind = (trait for trait in found.traits if trait.categorical)
    # Rank, trailing zeros and logarithm of six numbers; four have no trailing zeros of interest.
    assert [trait.distances for trait in (x, y, v, kind)] == [4, 4, 3, 1]
    assert len(found.traits) == 4 + 3
    assert all(0 <= trait.scales.min(initial=0) <= trait.scales.max(initial=0) <= 1 for trait in found.traits)
    product = found.traits[4]
    area = [int(point.config["X"]) * int(point.config["Y"]) for point in feasible.points]
    same = product.each_apart[0][product.levels[0], product.levels] == 0
    assert same.tolist() == [value == area[0] for value in area]


def test_what_a_template_lacks_is_a_value_of_its_own() -> None:
    feasible = FeasibleSet(
        {
            "a": [{"X": x, "Y": y} for x in (2, 4, 8) for y in (2, 4, 8)],
            "b": [{"X": 2, "Z": z} for z in (4, 8, 16)],
        }
    )
    found = encode(feasible)
    one, other = (next(i for i, p in enumerate(feasible.points) if p.template == t) for t in "ab")
    apart = [trait.each_apart[-1][trait.levels[one], trait.levels[other]] for trait in found.traits]
    assert apart[: found.codes.shape[1]].count(1) == 3  # template, Y, Z
    assert np.isfinite(np.concatenate([trait.each_apart.ravel() for trait in found.traits])).all()


def test_spread_points_cover_each_parameter() -> None:
    encoding = encode(_grid())
    points = spread_points(encoding, 12, np.random.default_rng(0))
    assert len(set(points)) == 12
    for parameter, choices in enumerate(encoding.choices):
        assert len(set(encoding.codes[points, parameter])) >= min(choices, 5)


def test_the_surrogate_grows_as_if_it_were_made_anew() -> None:
    encoding = encode(_grid())
    rng = np.random.default_rng(0)
    points = rng.permutation(len(encoding))[:60].tolist()
    values = rng.normal(size=60)
    every = np.arange(len(encoding))
    grown, anew = Surrogate(encoding), Surrogate(encoding)
    grown.fit(points[:20], values[:20], every, 5)
    for index in points[20:]:
        grown.observe(index)
    anew.fit(points[:20], values[:20], every, 5)
    anew.fit(points, values, every, 0)
    for one, other in zip(grown.predict(values), anew.predict(values), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


def test_the_slope_is_that_of_the_loss() -> None:
    encoding = encode(_grid())
    model = Surrogate(encoding)
    points = np.random.default_rng(1).permutation(len(encoding))[:25]
    values = np.random.default_rng(2).normal(size=25)
    each = [t.each_apart[:, t.levels[points][:, None], t.levels[points]] for t in encoding.traits]
    distances = np.concatenate([found.reshape(len(found), -1) for found in each])
    at = np.log(np.linspace(0.05, 0.6, len(distances) + 1))
    _, slope = model._loss(at, distances, values)
    for place in range(len(at)):
        step = np.zeros_like(at)
        step[place] = 1e-3
        rise = model._loss(at + step, distances, values)[0] - model._loss(at - step, distances, values)[0]
        assert slope[place] == pytest.approx(rise / 2e-3, rel=0.02, abs=0.02)


def test_the_surrogate_learns_which_parameter_matters() -> None:
    encoding = encode(_grid())
    observed = np.random.default_rng(0).permutation(len(encoding))[:80]
    truth = encoding.codes[:, 2] ** 2.0
    model = Surrogate(encoding)
    model.fit(observed.tolist(), truth[observed], np.arange(len(encoding)), 40)
    expected, deviation = model.predict(truth[observed])
    assert np.abs(expected - truth).mean() < 0.15 * truth.std()
    assert deviation[observed].mean() < np.delete(deviation, observed).mean()


def test_improvement_is_the_expectation_and_orders_even_hopeless_points() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.normal(1.0, 0.5, size=400_000)
    found = improvement(np.array([1.0]), np.array([0.5]), 0.8)
    assert found[0] == pytest.approx(np.maximum(0.8 - drawn, 0).mean(), rel=0.02)
    hopeless = improvement(np.array([200.0, 100.0, 1e6]), np.array([0.1, 0.1, 0.1]), 0.0)
    assert hopeless[1] > hopeless[0] >= hopeless[2] >= 0


def test_the_objective_orders_times_and_counts_failures_as_the_slowest() -> None:
    times = [1.0, 2.0, 1000.0, math.nan, 4.0, math.nan]
    history = _history(list(range(6)), times, [False] * 5 + [True])
    values = history.objective({5: 0.25})
    assert values[0] < values[1] < values[4] < values[2] == values[3]
    assert values[1] - values[0] == pytest.approx(math.log(2))
    assert values[2] - values[4] < math.log(1000 / 4) / 2  # the tail is compressed
    assert values[5] == 0.25
    assert history.objective({})[5] == pytest.approx(math.log(4))
    assert _history([1, 2], [math.nan] * 2).objective({}).tolist() == [0, 0]


def test_densities_favour_what_the_good_have_in_common() -> None:
    feasible = _grid()
    encoding = encode(feasible)
    points = np.random.default_rng(0).permutation(len(feasible))[:100].tolist()
    times = [1.0 + int(feasible.points[index].config["V"]) for index in points]
    scores = density_scores(encoding, _history(points, times), np.log(times))
    best = {feasible.points[index].config["V"] for index in np.argsort(scores)[-5:]}
    assert best == {1}


def test_near_the_best_goes_on_to_the_next_when_all_was_seen() -> None:
    encoding = encode(_grid())
    history = _history([0, 50, 100, 150], [1.0, 2.0, 3.0, 4.0])
    values = np.log(history.times)
    unseen = np.ones(len(encoding), dtype=bool)
    near = near_the_best(encoding, history, values, unseen)
    assert set(near) == set(np.concatenate([encoding.neighbours(index) for index in (0, 50, 100)]))
    unseen[near] = False
    assert set(near_the_best(encoding, history, values, unseen)) <= set(encoding.neighbours(150))
    unseen[:] = False
    assert near_the_best(encoding, history, values, unseen).size == 0


def test_beside_another_search_the_weights_are_found_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one search asks for decides when its weights are found anew, or a quarter more by all of them."""
    at: list[int] = []
    ascend = Surrogate._ascend

    def counted(model: Surrogate, points: np.ndarray, values: np.ndarray, steps: int) -> np.ndarray:
        at.append(len(points))
        return ascend(model, points, values, steps)

    monkeypatch.setattr(Surrogate, "_ascend", counted)

    def fits(others: int) -> list[int]:
        """While so many trials of others come with each of its own."""
        at.clear()
        search = Search(_grid(), sampler_named("gp"), [], seed=1)
        while (tried := len(search._study.trials)) < 120:
            _drive(search, 1)
            unseen = np.flatnonzero(search.feasible.unseen)[:others]
            search.learn([_trial(search.feasible, int(i), 50.0 + tried) for i in unseen])
        return [*at]

    alone, beside_one, beside_many = fits(0), fits(1), fits(7)
    growth = [later / sooner for sooner, later in itertools.pairwise(alone) if sooner > 30]
    assert all(1.09 < share < 1.16 for share in growth)
    assert len(beside_one) < 0.75 * len(alone)
    assert len(beside_many) <= len(beside_one)
    growth = [later / sooner for sooner, later in itertools.pairwise(beside_many) if sooner > 30]
    assert all(share > 1.2 for share in growth)
    assert len(beside_many) > 5
