# SPDX-License-Identifier: Apache-2.0
"""Who won: contestants that were timed in the same rounds, the leader, those that may be as fast, and the
rule by which one of these is chosen.

Two contestants are compared by the median of their ratios, round by round: what a round did to both cancels.
The leader is the one that the others beat by the least, most often by nothing; one that another surely beats
leads only where each is surely beaten by some other. The others are compared with the leader. One counts as
slower when the 99% bootstrap interval of that median, corrected after Holm for the number of comparisons,
lies above 1; else it is tied with the leader. Few independent rounds cannot say so at that level, however far
apart the times are of which they consist, unless that is very far: then the interval is made to reach 1 (see
`intervals.MedianBootstrap.interval_about`). A leader with which nobody is tied is declared the winner.
Otherwise the tied ones are named, and among those within `NEAR` of the best ratio the one is chosen that
needs the fewest registers, then the one with the smallest code, then the one tried first: on a CPU, whose
compiler reports no registers, the smallest code decides. A tie whose ratio is further away is named and not
chosen: that its interval is wide says little for it. The best ratio is the leader's own, 1, unless one that
is tied with it has a lower one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .intervals import Interval, MedianBootstrap, median_interval, paired, ratio_bootstrap

LEVEL = 0.99
"""Of all the intervals together that declare a winner."""
NEAR = 1.005
"""Up to how many times the best ratio the rule may choose."""
RULE = "fewer registers, then smaller code, then the earlier trial"

LEADER, TIED, SLOWER = "leader", "tied", "slower"

Turns = Mapping[int, float]
"""Samples in ms by round."""


@dataclass(frozen=True)
class Ratio:
    """One contestant's time as a multiple of the leader's.

    Attributes:
        median: Of the ratios of the rounds that both have.
        ci95: Its 95% interval.
        level: Of the interval that decides, corrected for the number of comparisons.
        deciding: That interval: the contestant is slower just where it lies above 1.
        p: The level at which an interval just excludes 1, taken from 1.
        too_few_rounds: Whether it would lie above 1, were there more independent rounds like these.
    """

    median: float
    ci95: Interval
    level: float
    deciding: Interval
    p: float
    too_few_rounds: bool = False

    def to_dict(self) -> dict[str, object]:
        """Plain JSON."""
        deciding = {"level": self.level, "interval": self.deciding.to_list(), "p": self.p}
        deciding |= {"too_few_rounds": True} if self.too_few_rounds else {}
        return {"ratio": self.median, "ratio_ci95": self.ci95.to_list(), "ratio_deciding": deciding}


def reconciled(row: Mapping[str, Any]) -> dict[str, Any]:
    """A stored finalist whose deciding interval says what its standing says. An older version stored it as it
    was where few rounds decided: above 1, though tied."""
    deciding = row.get("ratio_deciding")
    if not deciding or row.get("standing") != TIED or not deciding["interval"]:
        return dict(row)
    if deciding["interval"][0] <= 1 or deciding["p"] < 1 - deciding["level"]:
        return dict(row)
    reaching = {**deciding, "interval": [1.0, *deciding["interval"][1:]], "too_few_rounds": True}
    return {**row, "ratio_deciding": reaching}


def too_few_rounds(row: Mapping[str, Any]) -> bool:
    """Whether a finalist, as `Ratio.to_dict` left it, is tied for its few independent rounds alone."""
    return row.get("standing") == TIED and bool((row.get("ratio_deciding") or {}).get("too_few_rounds"))


@dataclass(frozen=True)
class Place:
    """Where one contestant ended.

    Attributes:
        time_ms: The median of its samples, and its 95% interval.
        standing: `LEADER`, `TIED` or `SLOWER`.
        ratio: To the leader; None for the leader, and for one that has no round with it.
    """

    time_ms: float
    ci95_ms: Interval
    standing: str
    ratio: Ratio | None = None


@dataclass(frozen=True)
class Ranking:
    """All of them.

    Attributes:
        places: In the order given.
        leader: Index of the fastest.
        tied: Indices of those that may be as fast, the nearest first; the leader is not among them.
        near: Those of them within `NEAR` of the best.
        paired: Whether they were timed in the same rounds.
        leader_near: Whether the leader is within `NEAR` of the best too.
    """

    places: tuple[Place, ...]
    leader: int
    tied: tuple[int, ...]
    near: tuple[int, ...]
    paired: bool = True
    leader_near: bool = True

    @property
    def declared(self) -> bool:
        """Whether the leader is surely the fastest."""
        return self.paired and not self.tied

    def chosen(self, cost: Sequence[tuple[int, ...]]) -> int:
        """The index of the one to take: the cheapest of those that are as fast as the best for all one can
        tell.

        Args:
            cost: For each contestant what the rule compares, in its order.
        """
        leader = (self.leader,) if self.leader_near else ()
        return min((*leader, *self.near), key=lambda index: cost[index])


def rank(contestants: Sequence[Turns], level: float = LEVEL) -> Ranking:
    """Ranks contestants of `measure.in_rounds`.

    Args:
        contestants: Samples of each by round, at least one; the leader is sought among them.
        level: See `LEVEL`.

    Raises:
        ValueError: There is no contestant, or one has no samples.
    """
    leader, found, levels, slower = _led(contestants, level)
    places = []
    for index, samples in enumerate(contestants):
        values = list(samples.values())
        bootstrap, ratio, standing = found.get(index), None, LEADER
        if index != leader:
            standing = SLOWER if index in slower else TIED
        if bootstrap is not None:
            ratio = _ratio(bootstrap, levels[index])
        places.append(Place(float(np.median(values)), median_interval(values), standing, ratio))
    ratios = {i: r.median for i, place in enumerate(places) if (r := place.ratio) and i not in slower}
    unknown = [i for i, place in enumerate(places) if place.standing == TIED and place.ratio is None]
    tied = (*sorted(ratios, key=lambda i: ratios[i]), *unknown)
    furthest = NEAR * min(1.0, *ratios.values()) if ratios else NEAR
    near = tuple(i for i in tied if ratios.get(i, np.inf) <= furthest)
    return Ranking(tuple(places), leader, tied, near, leader_near=furthest >= 1)


def rank_apart(times: Sequence[Interval], medians: Sequence[float]) -> Ranking:
    """Ranks contestants that have no rounds in common: nobody is declared, and who is not slower by intervals
    that do not meet is tied.

    Args:
        times: The interval of each one's median.
        medians: In ms.
    """
    leader = min(range(len(medians)), key=lambda index: medians[index])
    places = []
    for index, (interval, median) in enumerate(zip(times, medians, strict=True)):
        standing = SLOWER if interval.low > times[leader].high else TIED
        places.append(Place(median, interval, LEADER if index == leader else standing))
    others = [index for index in range(len(medians)) if index != leader]
    tied = sorted((i for i in others if places[i].standing == TIED), key=lambda i: medians[i])
    near = tuple(i for i in tied if medians[i] <= NEAR * medians[leader])
    return Ranking(tuple(places), leader, tuple(tied), near, paired=False)


def _led(
    contestants: Sequence[Turns], level: float
) -> tuple[int, dict[int, MedianBootstrap | None], dict[int, float], set[int]]:
    """The leader; each other's ratios to it, None where they have no round in common; and `_holm` of these.

    Among medians that are hardly apart the least beaten one may still lose each round by a hair to another:
    then the next is asked. Contestants can beat one another in a circle, so that each is surely beaten: then
    the least beaten leads, and as who beats it is tied with it nobody is declared.
    """
    first = None
    for leader in _least_beaten(contestants):
        found = {i: _against(c, contestants[leader]) for i, c in enumerate(contestants) if i != leader}
        levels, slower = _holm({i: b for i, b in found.items() if b is not None}, level)
        answer = leader, found, levels, slower
        first = first or answer
        if not any(b and b.interval_about(1.0, levels[i]).high < 1 for i, b in found.items()):
            return answer
    if first is None:
        raise ValueError("no contestants")
    return first


def _least_beaten(contestants: Sequence[Turns]) -> list[int]:
    """All of them, by how much the one that beats each the most does so.

    Contestants are compared two by two and not with a middle of each round: of an odd number the median of a
    round is one of themselves, so that in noise the quotient of each is 1 in the middle, of a slower one too.
    """
    if not all(contestants):
        raise ValueError("no samples")
    worst = [0.0] * len(contestants)
    for first, second in itertools.combinations(range(len(contestants)), 2):
        lost = _lost(contestants[first], contestants[second])
        worst[first], worst[second] = max(worst[first], lost), max(worst[second], -lost)
    # Of nobody beaten at all, which ties of a coarse clock make, the one with the least median.
    medians = [float(np.median(list(samples.values()))) for samples in contestants]
    return sorted(range(len(contestants)), key=lambda index: (worst[index], medians[index]))


def _lost(samples: Turns, other: Turns) -> float:
    """By how much one is slower than another, as the logarithm of a ratio: in the rounds of both, or by all
    that each has where they have none in common."""
    both = paired(samples, other)
    if both[0]:
        return float(np.median(np.log(both[0]) - np.log(both[1])))
    return math.log(np.median(list(samples.values())) / np.median(list(other.values())))


def _against(samples: Turns, leader: Turns) -> MedianBootstrap | None:
    both = paired(samples, leader)
    return ratio_bootstrap(*both) if both[0] else None


def _ratio(found: MedianBootstrap, level: float) -> Ratio:
    deciding = found.interval_about(1.0, level)
    too_few = found.median > 1 and found.too_few_about(1.0, level)
    return Ratio(found.median, found.interval_about(1.0), level, deciding, found.p_value(1.0), too_few)


def _holm(found: Mapping[int, MedianBootstrap], level: float) -> tuple[dict[int, float], set[int]]:
    """The level of each comparison, and which of them say that the contestant is slower.

    The surest is judged first, at 1 - (1 - level) / comparisons, the next as one of the comparisons that are
    left, and so on until one fails; then all that are left fail, at that one's level. One whose ratio is no
    more than 1 cannot be slower, however sure its ratio is: it comes last, where it fails nobody else.
    """
    order = sorted(found, key=lambda index: (found[index].median <= 1, found[index].p_value(1.0)))
    levels, slower, failed = {}, set[int](), 0.0
    for position, index in enumerate(order):
        own = failed or 1 - (1 - level) / (len(order) - position)
        levels[index] = own
        if failed or found[index].p_value(1.0) >= 1 - own or found[index].median <= 1:
            failed = own
        else:
            slower.add(index)
    return levels, slower
