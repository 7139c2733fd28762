# SPDX-License-Identifier: Apache-2.0
"""Beginning with what another study found: the sampler, which study that is, and earlier winners first."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coldforge.codegen.errors import InputError, UnknownName
from coldforge.tuner import warm_start
from coldforge.tuner.equipment import TuneOptions
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.replay.recorded import Recorded
from coldforge.tuner.replay.run import replay
from coldforge.tuner.search import SAMPLERS, FeasibleSet, Search, begun_with, sampler_named, sibling_of
from coldforge.tuner.search.encoding import encode
from coldforge.tuner.search.history import History
from coldforge.tuner.search.surrogate import Surrogate
from coldforge.tuner.search.warm import (
    Expecting,
    WarmGaussianProcess,
    borne_out,
    expectation,
    liked_and_apart,
)
from coldforge.tuner.study import Study, open_study
from coldforge.tuner.warm_start import Beginnings, earlier_winners, likeliest_sibling, sibling_named
from optuna.trial import create_trial
from pretend import Bench

SIZES, KINDS = (8, 16, 24, 32, 48, 64, 96, 128), ("packed", "plain", "staged")


def _configs() -> list[dict[str, Any]]:
    combinations = itertools.product(SIZES, SIZES, (1, 2, 4, 8), KINDS)
    return [{"X": x, "Y": y, "V": v, "KIND": k} for x, y, v, k in combinations if x >= v]


def _time_ms(config: dict[str, Any], area: int = 10, kind: str = "plain") -> float:
    """A landscape with one best area and one best kind; NaN where a config fails."""
    x, y, v = (int(config[name]) for name in "XYV")
    if x * y > 8192:
        return math.nan
    slow = abs(math.log2(x * y) - area) + 0.4 * abs(math.log2(x) - 4) + 0.3 * abs(v - 4)
    return math.exp(0.4 * slow + (0.0 if config["KIND"] == kind else 1.0))


def _space(area: int = 10, kind: str = "plain") -> Recorded:
    times = np.array([_time_ms(config, area, kind) for config in _configs()])
    return Recorded("made", FeasibleSet({"t": _configs()}), times)


def _sibling(feasible: FeasibleSet, times: np.ndarray, count: int = 120) -> Any:
    drawn = np.random.default_rng(5).permutation(len(feasible))[:count]
    return sibling_of(feasible, "other", ((feasible.params(i), float(times[i])) for i in drawn.tolist()))


def _evaluations(space: Recorded, times: np.ndarray | None, sampler: str = "gp") -> float:
    """Geometric mean of evaluations until within 5% of the best, begun with a study that saw those times."""
    found = []
    factory, first = begun_with(sampler, None if times is None else _sibling(space.feasible, times))
    for seed in range(8):
        until = 1.05 * space.optimum
        found.append(replay(space, factory, seed, 60, first, until).reached(until) or 120)
    return float(np.exp(np.log(found).mean()))


# --- the sampler ---


def test_a_sibling_saves_evaluations_and_an_unrelated_study_costs_few() -> None:
    space = _space()
    cold = _evaluations(space, None)
    assert _evaluations(space, _space(area=9).times) < cold / 1.1
    assert _evaluations(space, space.times) == 1
    assert _evaluations(space, np.random.default_rng(0).permutation(space.times)) == cold
    # What was best there is not here: a turn at the beginning, and few until that is known.
    assert _evaluations(space, _space(area=9, kind="staged").times) < 1.25 * cold


def test_samplers_that_cannot_learn_from_it_try_its_best_first() -> None:
    space = _space()
    sibling = _sibling(space.feasible, space.times)
    for name in set(SAMPLERS) - {"gp"}:
        factory, first = begun_with(name, sibling)
        assert first == sibling.best(5)
        search = Search(space.feasible, factory, [], 0, (), first)
        assert search.ask(7)[:5] == list(first)
        space.feasible.unseen[:] = True
    assert begun_with("gp", None) == (sampler_named("gp"), ())
    with pytest.raises(UnknownName, match="unknown sampler 'nope'"):
        begun_with("nope", sibling)


@pytest.mark.parametrize("times", [[1.0], [1.0, 1.0, 1.0], [math.nan, 2.0], [3.0] + [math.nan] * 30])
def test_the_least_that_a_sibling_can_say(times: list[float]) -> None:
    space = _space()
    found = ((space.feasible.params(index), time) for index, time in enumerate(times))
    factory, first = begun_with("gp", sibling_of(space.feasible, "other", found))
    done = replay(space, factory, 0, 30, first)
    assert len(set(done.order)) == 30
    assert begun_with("gp", sibling_of(space.feasible, "other", [])) == (sampler_named("gp"), ())


def test_small_sets_are_tried_to_the_end() -> None:
    space = Recorded("two", FeasibleSet({"t": [{"A": 1}, {"A": 2}]}), np.array([1.0, 2.0]))
    told = [({"template": "t", "A": a}, 3.0 - a) for a in (1, 2)]
    factory, first = begun_with("gp", sibling_of(space.feasible, "other", told))
    assert sorted(replay(space, factory, 0, 10, first).order) == [0, 1]


def test_what_is_not_legal_here_is_left_out_and_the_last_of_a_config_counts() -> None:
    feasible = FeasibleSet({"t": [{"A": a} for a in range(3)]})
    told = [(0, 5.0), (7, 1.0), (2, None), (0, 4.0), (1, -1.0)]
    sibling = sibling_of(feasible, "other", (({"template": "t", "A": a}, time) for a, time in told))
    assert sibling.points == [0, 2, 1]
    np.testing.assert_array_equal(sibling.times, [4.0, math.nan, math.nan])
    assert (sibling.timed, sibling.best(9)) == (1, (0,))


def test_what_is_expected_is_what_the_other_study_saw() -> None:
    space = _space()
    encoding, known = encode(space.feasible), np.isfinite(space.times)
    for count in (120, len(space.feasible)):  # of more points a part is learned from
        expected, explained = expectation(encoding, _sibling(space.feasible, space.times, count).history)
        assert np.corrcoef(expected[known], np.log(space.times[known]))[0, 1] > 0.8
        assert 0.7 < explained <= 1


def test_favourites_are_among_the_best_and_differ() -> None:
    space = _space()
    encoding = encode(space.feasible)
    expected, _ = expectation(encoding, _sibling(space.feasible, space.times).history)
    chosen = liked_and_apart(encoding, expected, 3)
    assert chosen[0] == int(np.argmin(expected))
    assert (expected[chosen] <= np.quantile(expected, 0.025)).all()
    apart = (encoding.codes[chosen][:, None] != encoding.codes[chosen][None]).sum(axis=2)
    assert apart[np.triu_indices(3, 1)].min() >= 2


def test_an_expectation_is_borne_out_as_a_whole_or_not() -> None:
    space = _space()
    encoding = encode(space.feasible)
    rng = np.random.default_rng(2)
    points = rng.permutation(np.flatnonzero(np.isfinite(space.times)))[:25].tolist()
    expected = rng.normal(size=len(encoding))
    model = Surrogate(encoding)
    values = expected[points] + 0.3 * rng.normal(size=25) + 3.0
    model.fit(points, values, np.arange(1), 0)
    assert borne_out(model, values, expected[points]) > 20
    for other in (values - 0.8 * expected[points], -values, rng.normal(size=25)):
        assert borne_out(model, other, expected[points]) < -5
    assert borne_out(model, values, np.full(25, 7.0)) == pytest.approx(0)


# --- what a study costs that has nothing to do with this one ---


def _reversed(space: Recorded) -> np.ndarray:
    """The slowest are the fastest."""
    known = np.isfinite(space.times)
    return np.where(known, space.times[known].max() + 1 - space.times, math.nan)


def _orders(space: Recorded, times: np.ndarray, seed: int, count: int) -> tuple[list[int], list[int]]:
    """Which points a run tries, without a study and with one that saw those times."""
    factory, first = begun_with("gp", _sibling(space.feasible, times))
    warm = replay(space, factory, seed, count, first).order
    return list(replay(space, sampler_named("gp"), seed, count).order), list(warm)


def test_one_that_cannot_predict_its_own_times_changes_nothing() -> None:
    space = _space()
    shuffled = np.random.default_rng(1).permutation(space.times)
    cold, warm = _orders(space, shuffled, 3, 40)
    assert warm == cold
    _, explained = expectation(encode(space.feasible), _sibling(space.feasible, shuffled).history)
    assert explained < 0.1


def test_left_out_values_are_predicted_from_the_others() -> None:
    space = _space()
    model = Surrogate(encode(space.feasible))
    points = list(range(0, 60, 3))
    values = np.log1p(np.arange(20.0))
    model.fit(points, values, np.arange(0), 5)
    mean = values.mean()
    for place in (0, 7, 19):
        rest = [at for at in range(20) if at != place]
        own = np.array([points[at] for at in rest])
        kernel = model._kernel_among(own, own) + np.exp(model._weights[-1]) * np.eye(19)
        across = model._kernel_among(np.array([points[place]]), own)[0]
        expected = mean + across @ np.linalg.solve(kernel, values[rest] - mean)
        assert model.left_out(values)[place] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_one_that_is_refuted_costs_its_one_turn_and_changes_nothing(seed: int) -> None:
    space = _space()
    cold, warm = _orders(space, _reversed(space), seed, 60)
    favourite = warm.pop(0)
    # When the run comes to that point by itself it knows already, and goes on with the next.
    assert warm == [index for index in cold if index != favourite][:59]


def test_one_that_is_borne_out_has_as_many_turns_and_no_more() -> None:
    space = _space()
    sampler = WarmGaussianProcess(space.feasible, 0, _sibling(space.feasible, space.times).history)
    order = replay(space, lambda feasible, seed: sampler, 0, 24).order
    # One before eight of the plain process, then as many of the other one, then by turns.
    whose = [index in sampler._others for index in order]
    assert whose == [True, *[False] * 8, *[True] * 8, *[False, True] * 3, False]
    assert set(order[:23]) <= sampler._told.keys()


def test_what_it_found_is_not_left_alone_when_the_rest_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its favourite is by far the best, and the plain process does not hear of it."""
    space = _space()
    monkeypatch.setattr(Expecting, "believes", lambda *_: False)
    favourite = 300
    times = np.where(np.arange(len(space.times)) == favourite, 1e-3, space.times)
    told = _sibling(space.feasible, times, len(times))
    sampler = WarmGaussianProcess(space.feasible, 0, told.history)
    made = Recorded("made", space.feasible, times)
    order = replay(made, lambda feasible, seed: sampler, 0, 45).order
    assert order[0] == favourite
    whose = [place for place, index in enumerate(order) if index in sampler._others]
    assert whose == [0, 10, 20, 30, 40]
    encoding = encode(space.feasible)
    for place in whose[1:]:  # a neighbour of one of the three best
        best = sorted(order[:place], key=lambda index: np.nan_to_num(times[index], nan=np.inf))[:3]
        assert best[0] == favourite
        assert any(order[place] in encoding.neighbours(index) for index in best)


def test_points_that_were_taken_back_are_the_plain_processs_when_it_asks_for_them() -> None:
    feasible = FeasibleSet({"t": [{"A": a} for a in range(12)]})
    told = sibling_of(feasible, "other", ((feasible.params(i), 12.0 - i) for i in range(12)))
    sampler = WarmGaussianProcess(feasible, 0, told.history)
    search = Search(feasible, lambda feasible, seed: sampler, [], 0)
    favourite, first = search.ask(2)
    assert favourite == 11
    search.withdraw(favourite)
    search.tell(first, 1.0)
    while asked := search.ask(1):
        search.tell(asked[0], 1.0)
    assert favourite in sampler._told
    assert favourite not in sampler._others


def test_nothing_is_judged_before_there_are_results() -> None:
    """Of what is under way nothing but guesses is known."""
    space = _space()
    sampler = WarmGaussianProcess(space.feasible, 0, _sibling(space.feasible, space.times).history)
    order = list(replay(space, lambda feasible, seed: sampler, 0, 9).order)
    unseen, expecting = space.feasible.unseen, sampler._expecting
    under_way = History(order, np.full(9, math.nan), np.ones(9, dtype=bool))
    assert not expecting.believes(under_way, unseen)
    assert expecting.believes(History(order, space.times[order], np.zeros(9, dtype=bool)), unseen)


def test_asking_ahead_it_has_its_turns_too() -> None:
    space = _space()
    sampler = WarmGaussianProcess(space.feasible, 0, _sibling(space.feasible, space.times).history)
    search = Search(space.feasible, lambda feasible, seed: sampler, [], 0)
    under_way: list[int] = []
    for _ in range(24):
        under_way += search.ask(9 - len(under_way))
        index = under_way.pop(0)
        search.tell(index, None if math.isnan(space.times[index]) else float(space.times[index]))
    assert sampler._others_turns >= 8
    for index in under_way:
        search.withdraw(index)


def test_the_plain_process_tells_its_own_trials_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They decide when its weights are found anew."""
    space = _space()
    sampler = WarmGaussianProcess(space.feasible, 0, _sibling(space.feasible, space.times).history)
    search = Search(space.feasible, lambda feasible, seed: sampler, [], 0)
    decide, theirs = sampler._plain.decide, list[int]()
    known: list[tuple[int, int]] = []

    def watched(history: History, unseen: np.ndarray) -> int:
        known.append((history.elsewhere, len(set(history.points) & set(theirs))))
        return decide(history, unseen)

    monkeypatch.setattr(sampler._plain, "decide", watched)
    for _ in range(20):
        (index,) = search.ask(1)
        search.tell(index, 1.0)
        theirs.append(int(np.flatnonzero(space.feasible.unseen)[0]))
        params, distributions = space.feasible.params(theirs[-1]), space.feasible.distributions_of(theirs[-1])
        search.learn([create_trial(value=2.0, params=params, distributions=distributions)])
    assert all(elsewhere == count for elsewhere, count in known)
    assert known[-1][0] > 5


def test_of_a_large_set_what_is_expected_to_be_best_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    space = _space()
    monkeypatch.setattr("coldforge.tuner.search.guided.LARGE", 100)
    monkeypatch.setattr("coldforge.tuner.search.guided.MOST_CANDIDATES", 40)
    monkeypatch.setattr("coldforge.tuner.search.warm.LARGE", 100)
    monkeypatch.setattr("coldforge.tuner.search.warm.MOST_CANDIDATES", 40)
    sampler = WarmGaussianProcess(space.feasible, 0, _sibling(space.feasible, space.times).history)
    order = replay(space, lambda feasible, seed: sampler, 0, 20).order
    expecting = sampler._expecting
    unseen = np.ones(len(space.feasible), dtype=bool)
    unseen[list(order[:12])] = False
    expected = np.where(unseen, expecting._expected, np.inf)
    history = History(list(order), space.times[list(order)], np.zeros(len(order), dtype=bool))
    found = expecting._candidates(history, history.objective({}), unseen)
    assert len(found) < 100
    assert set(np.argsort(expected)[:8].tolist()) <= set(found.tolist())


# --- which study ---


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def _other(bench: Bench, count: int = 12, **changes: Any) -> Study:
    """A study that differs from the bench's in some inputs, with the first configs of its space timed."""
    inputs = dataclasses.replace(bench.inputs, **changes)
    study, feasible = open_study(bench.storage, inputs), bench.plan.feasible()
    for index in range(count):
        point = feasible.points[index]
        result = TrialResult(
            TrialOutcome.OK, time_ms=9.0 - index / 2, template=point.template, config=point.config
        )
        study.record(point, result, feasible.distributions_of(index))
    study.touch()
    return study


def _win(study: Study, config: dict[str, Any], template: str = "direct") -> None:
    measured = {"time_ms": 1.0, "floor_ms": None, "error": None}
    winner = {"template": template, "config": config, "resources": {}, "measurement": measured}
    study.set_winner({"trials": 1, "final": True, "time_ms": 1.0, "winner": winner}, [])


def _target(bench: Bench, **changes: Any) -> dict[str, Any]:
    return {**bench.inputs.target, **changes}


def test_a_study_is_named_by_its_operator_or_name_and_never_itself(bench: Bench) -> None:
    plan, feasible = bench.plan, bench.plan.feasible()
    assert bench.study.name == plan.inputs().name
    with pytest.raises(UnknownName, match="unknown study"):
        sibling_named(bench.storage, plan.problem.operator.name, plan, feasible)
    with pytest.raises(InputError, match="cannot begin with itself"):
        sibling_named(bench.storage, bench.study.name, plan, feasible)
    other = _other(bench, driver="2")
    for text in (other.name, other.name[:-2], plan.problem.operator.name):
        found = sibling_named(bench.storage, text, plan, feasible)
        assert (found.name, found.timed) == (other.name, 12)


def test_studies_that_say_nothing_about_this_one_are_refused(bench: Bench) -> None:
    kind = "cpu" if bench.plan.target.kind == "cuda" else "cuda"
    foreign = _other(bench, target=_target(bench, kind=kind))
    with pytest.raises(InputError, match=f"it is of {kind}, and this one of {bench.plan.target.kind}"):
        sibling_named(bench.storage, foreign.name, bench.plan, bench.plan.feasible())
    empty = _other(bench, 0, driver="3")
    with pytest.raises(InputError, match="no config that it timed is legal here"):
        sibling_named(bench.storage, empty.name, bench.plan, bench.plan.feasible())


def test_auto_takes_the_study_that_is_most_like_this_one(bench: Bench) -> None:
    plan, feasible = bench.plan, bench.plan.feasible()
    assert likeliest_sibling(bench.storage, plan, feasible) is None
    _other(bench, operator="another", driver="1")
    _other(bench, 3, driver="2")  # too few to learn from
    assert likeliest_sibling(bench.storage, plan, feasible) is None
    far = _other(bench, target=_target(bench, device="another", arch="another"), precision="another")
    near = _other(bench, target=_target(bench, device="another"))
    same = _other(bench, driver="4")
    _other(bench, target=_target(bench, device="a third"), precision="another")
    for study in (same, near, far):
        found = likeliest_sibling(bench.storage, plan, feasible)
        assert found is not None
        if study is not far:
            assert found.name == study.name
            bench.storage.delete_study(bench.storage.get_study_id_from_name(study.name))


def test_damaged_studies_do_not_keep_from_tuning(bench: Bench) -> None:
    damaged, whole = _other(bench, driver="1"), _other(bench, precision="another")
    damaged._study.set_user_attr("winner", 7)
    damaged._study.set_user_attr("about", {**damaged.about, "target": 3})
    plan, feasible = bench.plan, bench.plan.feasible()
    found = likeliest_sibling(bench.storage, plan, feasible)
    assert found is not None
    assert found.name == whole.name
    _win(whole, dict(feasible.points[5].config))
    assert earlier_winners(bench.storage, plan, feasible) == (5,)


def test_earlier_winners_are_tried_right_after_the_defaults(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, feasible = bench.plan, bench.plan.feasible()
    chosen = [index for index in (40, 50, 60, 70) if index not in feasible.defaults]
    for place, index in enumerate(chosen):
        _win(_other(bench, driver=f"{place}"), dict(feasible.points[index].config))
    _win(_other(bench, target=_target(bench, device="another")), dict(feasible.points[80].config))
    _win(_other(bench, driver="x"), {"NO": 1})
    first = earlier_winners(bench.storage, plan, feasible)
    assert first == tuple(reversed(chosen))[:3]
    monkeypatch.setattr(warm_start, "_WINNERS", 9)
    assert earlier_winners(bench.storage, plan, feasible) == (*reversed(chosen), 80)
    assert bench.tune(trials=12, first=first) == "ok"
    tried = [feasible.index_of(trial.params) for trial in bench.study.trials()]
    begun = len(feasible.defaults)
    assert tried[begun : begun + 3] == list(first)


def test_frozen_winners_come_last(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    feasible = bench.plan.feasible()
    frozen = [feasible.points[33].params, feasible.points[44].params]
    monkeypatch.setattr(warm_start, "_frozen", lambda plan: iter(frozen))
    assert earlier_winners(bench.storage, bench.plan, feasible) == (33, 44)
    _win(_other(bench, driver="1"), dict(feasible.points[44].config))
    assert earlier_winners(bench.storage, bench.plan, feasible) == (44, 33)


def test_the_options_of_a_run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    plan, feasible = bench.plan, bench.plan.feasible()
    given = TuneOptions(trials=30)
    assert Beginnings(bench.storage, None).options(plan, feasible, given) == given
    assert capsys.readouterr().err == ""
    assert Beginnings(bench.storage, "auto").options(plan, feasible, given).sibling is None
    assert "no earlier study is like this one" in capsys.readouterr().err
    other = _other(bench, driver="1")
    for text in ("auto", other.name):
        beginnings = Beginnings(bench.storage, text)
        beginnings.check(plan, feasible)
        sibling = beginnings.options(plan, feasible, given).sibling
        assert sibling is not None
        assert sibling.name == other.name
        assert f"begins with 12 timed configs of {other.name}" in capsys.readouterr().err
    with pytest.raises(UnknownName):
        Beginnings(bench.storage, "nope").check(plan, feasible)
    assert bench.tune(trials=30, sibling=sibling) == "ok"
    assert len(set(bench.keys())) == 30
