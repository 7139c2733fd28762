# SPDX-License-Identifier: Apache-2.0
"""Timing: one variant against the best so far, and several side by side. `tune` and `bench` use the same
code.

A search asks for many times, so a variant that is surely hopeless is left after a few samples. Where the
order of candidates matters they are timed in turns, round by round, so that drift of clocks and load falls
on all alike; what the rounds say is for `intervals` and `ranking`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .devices.base import Call, Device

INPUT_SETS = 2
"""Sets of inputs (and of outputs, where the caller gives them) that timed calls rotate among."""
LEAST_ROUNDS, MOST_ROUNDS = 41, 301
PATIENCE_MS, FEWEST_ROUNDS = 20_000.0, 11
"""Least rounds are held whatever the budget says, but not beyond that much time; the fewest are."""
WARM_CALLS = 5
SLOW, LEAST_SLOW_ROUNDS = 20.0, 5
"""One that takes this many times as long as the first contestant joins few of the rounds, at least these."""


@dataclass(frozen=True)
class Policy:
    """How much time a measurement may take.

    Attributes:
        screen: Calls, one by one and the first included, after which a variant may be given up.
        hopeless: Given up when the fastest of these takes this many times the best time so far.
        warmup: Samples that are dropped before any is kept.
        least, most: Limits on the number of samples.
        budget_ms: Sampling ends when the samples' sum reaches this, or earlier when the median is known:
        known, roughly: How far the ends of its 95% interval may lie apart for that, as shares of it: where
            the variant may be the best, and where it takes more than `near` times the best time.
        near: See there.
    """

    screen: int = 3
    hopeless: float = 3.0
    warmup: int = 2
    least: int = 11
    most: int = 200
    budget_ms: float = 30.0
    known: float = 0.01
    roughly: float = 0.04
    near: float = 1.3


_PORTION = 10
"""Samples taken between two looks at how well the median is known."""


@dataclass(frozen=True)
class Timing:
    """Samples of one variant.

    Attributes:
        samples_ms: In the order taken.
        given_up: Whether screening ended it: the time is then a rough one, fit to tell that it is slow.
    """

    samples_ms: tuple[float, ...]
    given_up: bool = False

    @property
    def time_ms(self) -> float:
        """The median."""
        return statistics.median(self.samples_ms)


def time_variant(
    device: Device, calls: Sequence[Call], best_ms: float | None, policy: Policy | None = None
) -> Timing:
    """Times one variant.

    Args:
        device: Where it runs.
        calls: The variant bound to several sets of inputs, taken in rotation.
        best_ms: The best time so far, for screening; None to measure in full.
        policy: How long to measure; the default one when not given.
    """
    policy = policy or Policy()
    cold = device.cold_headline
    first: list[float] = []
    for index in range(policy.screen):
        first += device.sample_ms([calls[index % len(calls)]], 1, cold=cold)
        if best_ms is None or first[-1] <= policy.hopeless * best_ms:
            break
    else:
        return Timing(tuple(first), given_up=True)
    samples = device.sample_ms(calls, policy.warmup + policy.least, cold=cold)[policy.warmup :]
    while len(samples) < policy.most and (left := policy.budget_ms - sum(samples)) > 0:
        middle = statistics.median(samples)
        near = best_ms is None or middle <= policy.near * best_ms
        if _spread_of_median(samples) <= (policy.known if near else policy.roughly) * middle:
            break
        fit = math.ceil(left / max(middle, 1e-6))
        samples += device.sample_ms(calls, min(_PORTION, policy.most - len(samples), fit), cold=cold)
    return Timing(tuple(samples))


def _spread_of_median(samples: Sequence[float]) -> float:
    """The width of the median's 95% interval, from the order of the samples: whatever their distribution."""
    ordered, count = sorted(samples), len(samples)
    cut = max(0, int((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[count - 1 - cut] - ordered[cut]


def in_rounds(
    device: Device,
    contestants: Sequence[Sequence[Call]],
    *,
    budget_ms: float = 1000.0,
    seed: int = 0,
    slow: float = SLOW,
) -> list[dict[int, float]]:
    """Times several contestants in turns: each round takes one sample of each, in an order drawn anew, on one
    of the sets of inputs.

    Those that take more than ``slow`` times as long as the first get half of the budget together: they join
    only some of the rounds, spread over all of them, so that the others' rounds are not used up by them.

    Args:
        device: Where they run.
        contestants: For each the calls that are taken in rotation, one a round.
        budget_ms: What the rounds may take together; LEAST_ROUNDS are held whatever it says, unless
            PATIENCE_MS says no.
        seed: Of the orders.
        slow: See above; infinite: each joins every round.

    Returns:
        For each contestant its samples by round; those of two are paired over the rounds that both have.
    """
    if not contestants:
        return []
    cold = device.cold_headline
    device.settle()
    once_ms, best_ms = [], []
    for calls in contestants:
        warm = device.sample_ms(calls, 3, cold=False)
        once_ms += device.sample_ms(calls, 1, cold=cold)
        best_ms.append(min(*warm, once_ms[-1]))
    late = {index for index, ms in enumerate(best_ms) if ms > slow * best_ms[0]}
    share_ms = budget_ms / 2 if late else budget_ms
    rounds = _count(
        share_ms, [ms for i, ms in enumerate(once_ms) if i not in late], LEAST_ROUNDS, MOST_ROUNDS
    )
    few = _count(share_ms, [once_ms[i] for i in late], LEAST_SLOW_ROUNDS, rounds)
    with_late = {index * rounds // few for index in range(few)}
    order = np.random.default_rng(seed)
    samples: list[dict[int, float]] = [{} for _ in contestants]
    for turn in range(rounds):
        for index in order.permutation(len(contestants)).tolist():
            # Asked anew each time: on a busy machine a quick one may at first look slow.
            if turn in with_late or best_ms[index] <= slow * best_ms[0]:
                calls = contestants[index]
                sample = device.sample_ms([calls[turn % len(calls)]], 1, cold=cold)[0]
                samples[index][turn] = sample
                best_ms[index] = min(best_ms[index], sample)
    return samples


def warm_ms(device: Device, calls: Sequence[Call]) -> float | None:
    """The median time with a warm cache, where the headline is that with a cold one."""
    if not device.cold_headline:
        return None
    return statistics.median(device.sample_ms(calls, WARM_CALLS, cold=False))


def _count(budget_ms: float, once_ms: Sequence[float], least: int, most: int) -> int:
    """How many rounds of these times fit the budget."""
    round_ms = max(sum(once_ms), 1e-6)
    bearable = max(FEWEST_ROUNDS, int(PATIENCE_MS / round_ms))
    return min(max(int(budget_ms / round_ms), min(least, bearable)), most)
