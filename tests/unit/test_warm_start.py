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
from coldforge.tuner.search.surrogate import Surrogate
from coldforge.tuner.search.warm import expectation, liked_and_apart, share_of
from coldforge.tuner.study import Study, open_study
from coldforge.tuner.warm_start import Beginnings, earlier_winners, likeliest_sibling, sibling_named
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
        found.append(replay(space, factory, seed, 60, first).reached(1.05 * space.optimum) or 120)
    return float(np.exp(np.log(found).mean()))


# --- the sampler ---


def test_a_sibling_saves_evaluations_and_an_unrelated_study_costs_few() -> None:
    space = _space()
    cold = _evaluations(space, None)
    assert _evaluations(space, _space(area=9).times) < cold / 1.4
    assert _evaluations(space, space.times) < cold / 3
    shuffled = np.random.default_rng(0).permutation(space.times)
    for other in (shuffled, _space(area=9, kind="staged").times):  # what was best there is not here
        assert _evaluations(space, other) < 1.4 * cold


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
    assert replay(space, factory, 0, 10, first).order[0] == 1
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
        expected = expectation(encoding, _sibling(space.feasible, space.times, count).history)
        assert np.corrcoef(expected[known], np.log(space.times[known]))[0, 1] > 0.8


def test_the_first_points_are_liked_and_differ() -> None:
    space = _space()
    encoding = encode(space.feasible)
    expected = expectation(encoding, _sibling(space.feasible, space.times).history)
    chosen = liked_and_apart(encoding, expected, 3)
    assert chosen[0] == int(np.argmin(expected))
    assert (expected[chosen] <= np.quantile(expected, 0.11)).all()
    apart = (encoding.codes[chosen][:, None] != encoding.codes[chosen][None]).sum(axis=2)
    assert apart[np.triu_indices(3, 1)].min() >= 3


def test_the_share_is_what_the_times_bear_out() -> None:
    space = _space()
    encoding = encode(space.feasible)
    rng = np.random.default_rng(2)
    points = rng.permutation(np.flatnonzero(np.isfinite(space.times)))[:25].tolist()
    expected = rng.normal(size=len(encoding))
    model = Surrogate(encoding)
    values = 0.7 * expected[points] + 0.05 * rng.normal(size=25) + 3.0
    model.fit(points, values, np.arange(1), 0)
    assert share_of(model, values, expected[points]) == pytest.approx(0.7, abs=0.11)
    assert share_of(model, -values, expected[points]) == 0.0
    assert share_of(model, rng.normal(size=25), expected[points]) == 0.0


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
