# SPDX-License-Identifier: Apache-2.0
"""Joules a launch: a call repeated long enough for the device's own meter, the mean power over that time, and
the time that one launch took of it.

A repetition keeps the caches warm, on rotating inputs: nothing could be flushed between launches without its
energy counting too. What the device takes while it idles is part of the power, so of two kernels that work as
hard the faster takes less. A GPU's counter is that of the whole board, a CPU's that of all its packages with
whatever else runs on them.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .devices.base import Call, Device
    from .devices.meters import Meter

ROUNDS = 11
"""Rounds of readings when finals are decided by energy: as few as can tell one of nine from the leader."""
BATCH_MS, MOST_BATCHED = 20.0, 4096
"""Launches are enqueued in batches of so much time, and at most so many; each is waited for."""
_POLL_S = 0.002
_SAMPLE_S = 0.01
_FEWEST_TICKS = 5


@dataclass(frozen=True)
class Span:
    """How long a repetition lasts.

    Attributes:
        least_s, ticks: Until it lasted so long and the meter told something new so many times;
        most_s: but not longer than this, where few are enough.
    """

    least_s: float = 0.5
    ticks: int = 20
    most_s: float = 4.0


@dataclass(frozen=True)
class Reading:
    """One repetition.

    Attributes:
        joules: A launch's.
        power_w: The mean.
        launch_s: A launch's share of the time.
        source: What was read.
    """

    joules: float
    power_w: float
    launch_s: float
    source: str


def read_energy(device: Device, calls: Sequence[Call], span: Span | None = None) -> Reading | None:
    """One reading of a call's energy.

    Args:
        device: Where it runs.
        calls: One a set of inputs, taken in rotation.
        span: How long to repeat them.

    Returns:
        None where the device tells no energy, or told nothing new while it worked.

    Raises:
        DeviceFault: A call faulted.
    """
    meter, span = device.meter(), span or Span()
    if meter is None:
        return None
    once_ms = statistics.median(device.sample_ms(calls, 3, cold=False))
    wanted = math.ceil(BATCH_MS / max(once_ms, 1e-6))
    batch, launches = device.batch(calls, max(len(calls), min(wanted, MOST_BATCHED)))

    def work(enough: Callable[[float], bool]) -> tuple[int, float]:
        """Batches until that is enough seconds; how many, and the seconds."""
        began, done = time.perf_counter(), 0
        while not enough(time.perf_counter() - began) or not done:
            batch()
            device.synchronize()
            done += 1
        return done, time.perf_counter() - began

    work(lambda seconds: seconds >= meter.ahead_s)
    with _Watch(meter) as watch:
        done, seconds = work(
            lambda s: s >= span.most_s or (s >= span.least_s and len(watch.seen) > span.ticks)
        )
    power_w = mean_power_w(watch.seen, counts=meter.counts)
    if power_w is None:
        return None
    launch_s = seconds / (done * launches)
    return Reading(power_w * launch_s, power_w, launch_s, meter.source)


def energy_in_rounds(
    device: Device,
    contestants: Sequence[Sequence[Call]],
    rounds: int,
    *,
    span: Span | None = None,
    seed: int = 0,
) -> list[list[Reading]]:
    """Readings of several contestants in turns, each once a round, in an order drawn anew: what a warming
    board adds falls on all alike.

    Returns:
        Of each contestant one a round; none at all where the device tells no energy, or once failed to.
    """
    order = np.random.default_rng(seed)
    found: list[list[Reading]] = [[] for _ in contestants]
    for _ in range(rounds):
        for index in order.permutation(len(contestants)).tolist():
            reading = read_energy(device, contestants[index], span)
            if reading is None:
                return [[] for _ in contestants]
            found[index].append(reading)
    return found


def details(readings: Sequence[Reading]) -> dict[str, Any]:
    """Readings of one contestant as plain JSON: energy_j (a launch's, the median), energy_samples_j, power_w,
    energy_launch_ms (a launch's time in the repetition) and energy_source. Empty without any."""
    if not readings:
        return {}
    return {
        "energy_j": statistics.median(reading.joules for reading in readings),
        "energy_samples_j": [reading.joules for reading in readings],
        "energy_power_w": statistics.median(reading.power_w for reading in readings),
        "energy_launch_ms": 1e3 * statistics.median(reading.launch_s for reading in readings),
        "energy_source": readings[0].source,
    }


def mean_power_w(seen: Sequence[tuple[float, float]], *, counts: bool) -> float | None:
    """The mean power of what a meter told.

    Args:
        seen: Seconds and what was read then: each new value of a counter of joules, at the moment when it was
            new; or watts at regular times.
        counts: Whether they are joules.

    Returns:
        None when it is too little to tell.
    """
    if len(seen) <= _FEWEST_TICKS:
        return None
    if not counts:
        return statistics.fmean(value for _, value in seen)
    (began, first), (ended, last) = seen[0], seen[-1]
    # From one new value to another: when the counter is a step behind, it is so at both.
    return (last - first) / (ended - began) if last > first else None


class _Watch:
    """Reads a meter in a thread while the caller's keeps the device at work.

    Attributes:
        seen: See `mean_power_w`.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter, self._over = meter, threading.Event()
        self.seen: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        counts, last = self._meter.counts, None
        while not self._over.wait(_POLL_S if counts else _SAMPLE_S):
            try:
                value = self._meter.read()
            except (OSError, ValueError):
                return  # what was seen is too little, or enough
            if not counts or (last is not None and value != last):
                self.seen.append((time.perf_counter(), value))
            last = value
