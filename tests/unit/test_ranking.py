# SPDX-License-Identifier: Apache-2.0
"""Who is declared the winner, who is tied, who is chosen among these; and the same kernel under two names,
a hundred times in each kind of noise, which must not win against itself."""

from __future__ import annotations

import numpy as np
import pytest
from coldforge.tuner.intervals import Interval
from coldforge.tuner.ranking import (
    LEADER,
    NEAR,
    SLOWER,
    TIED,
    Ranking,
    rank,
    rank_apart,
    reconciled,
    too_few_rounds,
)
from noises import NOISES, correlated

ROUNDS = 120  # what finals of nine kernels of 2 ms take
RUNS = 100
A_A = {
    **NOISES,
    "neighbours very much alike": correlated(0.9),
}


def run(random: np.random.Generator, name: str, true: list[float], rounds: int = ROUNDS) -> Ranking:
    """One interleaved run: each contestant's own noise, and a load that all share."""
    load = np.cumsum(random.normal(0, 0.02, rounds)) + (random.random(rounds) < 0.1) * 0.5
    samples = [ms * np.exp(load + A_A[name](random, rounds)) for ms in true]
    return rank([dict(enumerate(one.tolist())) for one in samples])


@pytest.mark.parametrize("name", A_A)
def test_the_same_kernel_under_two_names_is_no_winner(name: str) -> None:
    """At most 5 of 100 runs declare one. The rule says 1, of independent rounds."""
    random = np.random.default_rng(1)
    assert sum(run(random, name, [1.0, 1.0]).declared for _ in range(RUNS)) <= 5


@pytest.mark.parametrize("name", A_A)
def test_the_same_kernel_twice_among_slower_ones(name: str) -> None:
    random, false = np.random.default_rng(2), 0
    for _ in range(RUNS):
        found = run(random, name, [1.0, 1.0, 1.1, 1.3, 1.3, 1.5, 2.0, 3.0, 9.0])
        false += found.declared
        assert found.leader in (0, 1) or name == "neighbours very much alike"
    assert false <= 5


@pytest.mark.parametrize("rounds", [41, 60, 300])
def test_nor_in_other_numbers_of_rounds(rounds: int) -> None:
    random = np.random.default_rng(3)
    for name in ("normal", "heavy tails", "spikes", "neighbours alike"):
        assert sum(run(random, name, [1.0, 1.0], rounds).declared for _ in range(RUNS)) <= 5, name


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5])
def test_a_handful_of_rounds_declares_nobody(rounds: int) -> None:
    random = np.random.default_rng(rounds)
    for _ in range(200):
        samples = 1.0 + 0.01 * random.standard_normal((2, rounds))
        assert not rank([dict(enumerate(one)) for one in samples.tolist()]).declared
    alike = [dict.fromkeys(range(rounds), time) for time in (1.0, 1.0001)]  # a coarse clock
    assert not rank(alike).declared
    assert rank([alike[0], dict.fromkeys(range(rounds), 20.0)]).declared


def test_nine_equal_ones_have_no_winner() -> None:
    random = np.random.default_rng(4)
    found = [run(random, "normal", [1.0] * 9) for _ in range(RUNS)]
    assert not any(one.declared for one in found)
    assert np.mean([len(one.tied) for one in found]) > 7


@pytest.mark.parametrize("name", NOISES)
def test_a_faster_one_is_declared(name: str) -> None:
    random, declared = np.random.default_rng(5), 0
    for _ in range(20):
        found = run(random, name, [1.1, 1.0, 1.2, 1.5, 20.0])
        assert found.leader == 1
        declared += found.declared
    assert declared >= (10 if name in ("neighbours much alike", "switching") else 18)


def test_places() -> None:
    random = np.random.default_rng(6)
    found = run(random, "normal", [1.0, 1.002, 1.5])
    assert [place.standing for place in found.places] == [LEADER, TIED, SLOWER]
    assert (found.leader, found.tied, found.near, found.declared) == (0, (1,), (1,), False)
    assert found.places[0].ratio is None
    for place, true in zip(found.places[1:], (1.002, 1.5), strict=True):
        ratio = place.ratio
        assert ratio is not None
        assert ratio.ci95.low < true < ratio.ci95.high
        assert ratio.deciding.low <= ratio.ci95.low
        assert ratio.level == (0.995 if true == 1.5 else 0.99)
        assert (ratio.p < 1 - ratio.level) is (place.standing == SLOWER)
        assert set(ratio.to_dict()) == {"ratio", "ratio_ci95", "ratio_deciding"}
        assert place.ci95_ms.low <= place.time_ms <= place.ci95_ms.high


def test_what_failed_at_its_level_fails_those_behind_it() -> None:
    """Of two that are equally unsure neither passes: the second is judged at the first one's level."""
    turns = range(50)
    leader = dict.fromkeys(turns, 1.0)
    unsure = {turn: 1.01 if turn % 3 else 0.99 for turn in turns}
    found = rank([leader, unsure, dict(unsure)])
    assert found.tied == (1, 2)
    assert {place.ratio.level for place in found.places if place.ratio} == {0.995}


COST = [(40, 900, 3), (32, 950, 7), (32, 900, 9), (32, 900, 2)]


@pytest.mark.parametrize(
    ("cost", "chosen"),
    [
        (COST, 3),  # fewest registers, then the smallest code, then the earliest
        ([(32, 900, 3), (40, 1, 0), (40, 1, 0), (40, 1, 0)], 0),
        ([(0, 900, 3), (0, 800, 9), (0, 801, 1), (0, 802, 2)], 1),  # a CPU's have no registers
    ],
)
def test_ties_are_broken_by_cost(cost: list[tuple[int, ...]], chosen: int) -> None:
    same = dict.fromkeys(range(50), 1.0)
    found = rank([dict(same) for _ in cost])
    assert (found.leader, found.tied, found.declared) == (0, (1, 2, 3), False)
    assert found.chosen(cost) == chosen


def test_a_tie_that_is_far_away_is_not_chosen() -> None:
    """On a busy machine an interval may reach from half of the leader's time to eight times of it."""
    random = np.random.default_rng(7)
    leader = dict(enumerate(np.exp(random.normal(0, 2.0, 41)).tolist()))
    slow = dict(enumerate((1.5 * np.exp(random.normal(0, 2.0, 41))).tolist()))
    found = rank([slow, leader])
    assert found.leader == 1
    assert found.tied == (0,)
    place = found.places[0]
    assert place.ratio is not None
    assert place.ratio.median > NEAR
    assert found.near == ()
    assert found.chosen([(0, 1, 1), (0, 1000, 2)]) == 1


def test_one_alone_wins() -> None:
    found = rank([{0: 1.0, 1: 1.1}])
    assert found.declared
    assert found.chosen([(0, 0, 0)]) == 0
    with pytest.raises(ValueError, match="no samples"):
        rank([{0: 1.0}, {}])


def test_what_has_no_round_with_the_leader_is_not_called_slower() -> None:
    found = rank([{0: 1.0, 1: 1.0}, {2: 9.0}])
    assert found.tied == (1,)
    assert found.near == ()


def test_without_rounds_nobody_is_declared() -> None:
    times = [Interval(0.99, 1.01), Interval(1.005, 1.02), Interval(1.5, 1.6)]
    found = rank_apart(times, [1.0, 1.004, 1.55])
    assert [place.standing for place in found.places] == [LEADER, TIED, SLOWER]
    assert (found.tied, found.near, found.declared) == ((1,), (1,), False)
    assert not rank_apart([times[0], times[2]], [1.0, 1.55]).declared


def test_slower_is_just_what_the_deciding_interval_says() -> None:
    """Of few rounds and many, alike and not, far apart and near: no finalist contradicts its own figures."""
    random, seen = np.random.default_rng(8), dict.fromkeys((TIED, SLOWER, "few"), 0)
    for _ in range(400):
        rounds, others = int(random.integers(1, 60)), int(random.integers(1, 6))
        true = [1.0, *np.exp(random.choice([0.0, 0.01, 0.3, 3.0], others)).tolist()]
        found = run(random, str(random.choice(list(A_A))), true, rounds)
        for place in found.places:
            if (ratio := place.ratio) is None:
                continue
            assert (place.standing == SLOWER) == (ratio.deciding.low > 1) == (ratio.p < 1 - ratio.level)
            assert ratio.deciding.low <= ratio.ci95.low <= ratio.ci95.high <= ratio.deciding.high
            assert not ratio.too_few_rounds or (place.standing, ratio.deciding.low) == (TIED, 1.0)
            seen[place.standing] += 1
            seen["few"] += ratio.too_few_rounds
    assert min(seen.values()) > 30, seen


def test_few_rounds_are_said_to_be_few() -> None:
    """Six rounds may be worth three independent ones, which say no more than 2^-2 in a sign test."""
    rows = [1.02, 1.3, 1.9, 1.1, 1.6, 1.05]
    found = rank([dict.fromkeys(range(6), 1.0), dict(enumerate(rows))])
    place = found.places[1]
    assert place.ratio is not None
    assert (place.standing, found.declared) == (TIED, False)
    told = place.ratio.to_dict()["ratio_deciding"]
    assert told == {"level": 0.99, "interval": [1.0, 1.9], "p": 2.0**-2, "too_few_rounds": True}
    many = rank([dict.fromkeys(range(60), 1.0), dict(enumerate(rows * 10))]).places[1]
    assert many.standing == SLOWER
    assert many.ratio is not None
    assert "too_few_rounds" not in many.ratio.to_dict()["ratio_deciding"]  # type: ignore[operator]


def _in_a_circle() -> list[dict[int, float]]:
    """The second surely beats the first, which surely beats the third, which surely beats the second in the
    rounds that both have; the first is beaten by the least."""
    random = np.random.default_rng(9)
    common = set(random.choice(200, 40, replace=False).tolist())
    noise = (1 + random.uniform(-1e-3, 1e-3, 200)).tolist()
    first = dict.fromkeys(range(200), 1.0)
    second = {turn: (1.1 if turn in common else 0.98) * noise[turn] for turn in first}
    third = {turn: 0.99 if i % 5 == 0 else 1.05 * noise[turn] for i, turn in enumerate(sorted(common))}
    return [first, second, third]


def test_one_that_is_surely_no_slower_fails_nobody_else() -> None:
    """The contestants beat one another in a circle: whoever leads, somebody is surely faster."""
    found = rank(_in_a_circle())
    assert found.leader == 0
    faster, slower = (place.ratio for place in found.places[1:])
    assert faster is not None
    assert slower is not None
    assert faster.p < 1 - faster.level
    assert faster.deciding.high < 1
    assert faster.p < slower.p < 0.005
    assert [place.standing for place in found.places] == [LEADER, TIED, SLOWER]
    assert slower.deciding.low > 1
    assert not found.declared


def test_near_is_measured_from_the_best() -> None:
    """The leader, 2% slower than one that is tied with it, is not chosen however cheap it is."""
    found = rank(_in_a_circle())
    assert found.near == (1,)
    assert found.chosen([(0, 0, 0), (9, 9, 9), (0, 0, 0)]) == 1


@pytest.mark.parametrize("noise", [0.1, 0.2])
@pytest.mark.parametrize("equal", [1, 2, 3, 4, 6])
def test_a_slower_one_does_not_lead_in_noise(equal: int, noise: float) -> None:
    """Nor is it chosen, though it is the cheapest. Among three a round's median is one of them; 5% are then
    half a dozen of the ratio's standard deviations at 10% of noise, and three at 20%."""
    random, leads, chosen = np.random.default_rng(10), 0, 0
    true = np.array([1.05] + [1.0] * equal)
    for _ in range(50):
        samples = true * np.exp(random.normal(0, noise, (301, 1 + equal)))
        found = rank([dict(enumerate(one)) for one in samples.T.tolist()])
        leads += found.leader == 0
        chosen += found.chosen([(0, 0, 0)] + [(1, 0, 0)] * equal) == 0
    assert leads <= (0 if noise == 0.1 else 2)
    assert chosen <= (0 if noise == 0.1 else 3)


@pytest.mark.parametrize("count", [3, 5])
def test_equal_ones_among_an_odd_number(count: int) -> None:
    """Each leads as often as another, and hardly ever is one declared."""
    random, leads, declared = np.random.default_rng(11), [0] * count, 0
    for _ in range(RUNS):
        found = run(random, "normal", [1.0] * count, 60)
        leads[found.leader] += 1
        declared += found.declared
    assert declared <= 5
    assert min(leads) > RUNS / count / 2, leads


def test_who_is_surely_beaten_does_not_lead() -> None:
    """The first loses three of four rounds to the second by a hair. The second loses to the third by more, in
    52 of 100 rounds, which say nothing; and the third to the first."""
    random = np.random.default_rng(12)
    second, third = 1 - random.uniform(0.9e-4, 1.1e-4, 200), np.full(200, 1.1)
    second[:50], third[:50] = 2.0, 1.5
    third[50:104] = 1 - random.uniform(0.001, 0.01, 54)
    order = random.permutation(200)
    found = rank([dict(enumerate(one[order].tolist())) for one in (np.ones(200), second, third)])
    assert (found.leader, found.tied, found.declared) == (1, (2,), False)
    for place in found.places:
        assert place.ratio is None or place.ratio.deciding.high >= 1


def test_no_leader_is_surely_beaten() -> None:
    """Of some hundred finals in all kinds of noise, nobody's deciding interval lies below 1."""
    random = np.random.default_rng(13)
    for _ in range(200):
        true = np.exp(random.choice([0.0, 0.001, 0.01, 0.05], int(random.integers(2, 7)))).tolist()
        found = run(random, str(random.choice(list(A_A))), true, int(random.integers(20, 150)))
        assert all(place.ratio is None or place.ratio.deciding.high >= 1 for place in found.places)
        ratios = [1.0, *(p.ratio.median for i, p in enumerate(found.places) if p.ratio and i in found.tied)]
        chosen = found.places[found.chosen([(0, i) for i in range(len(true))])].ratio
        assert (chosen.median if chosen else 1.0) <= NEAR * min(ratios)


def test_a_tie_of_an_older_version_is_reconciled() -> None:
    deciding = {"level": 0.995, "interval": [1.398, 1.909], "p": 0.03125}
    row = {"standing": TIED, "ratio": 1.6, "ratio_deciding": deciding}
    again = reconciled(row)
    assert again["ratio_deciding"] == {**deciding, "interval": [1.0, 1.909], "too_few_rounds": True}
    assert too_few_rounds(again)
    assert not too_few_rounds(row)
    for other in ({"standing": SLOWER, "ratio_deciding": deciding}, {"standing": TIED}, {}):
        assert reconciled(other) == other
