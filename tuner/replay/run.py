# SPDX-License-Identifier: Apache-2.0
"""One run of a sampler against a recorded space.

An evaluation is one distinct config; failed ones count. What a sampler suggests outside of the space costs
nothing and is told as PRUNED; what it suggests again is answered from what is known, and counted apart. The
sampler sees what was evaluated and nothing else of the record.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from ..search import SamplerFactory
from ..search.asktell import quiet_study, suggested
from .recorded import Recorded

_MOST_ASKS = 50
"""Times the budget: a sampler that suggests nothing new any more is stopped there."""


@dataclass(frozen=True)
class Run:
    """What became of one run.

    Attributes:
        times: float64 [evaluations], in order; NaN where the config failed.
        repeats: suggestions of configs that had been evaluated.
        outside: suggestions that are no config of the space.
        ask_s: processor time that the sampler took, all of its asks together.
        order: which configs were evaluated, by index.
    """

    times: np.ndarray
    repeats: int
    outside: int
    ask_s: float
    order: tuple[int, ...] = ()

    @property
    def asks(self) -> int:
        """How often the sampler was asked."""
        return len(self.times) + self.repeats + self.outside

    def reached(self, limit: float) -> int | None:
        """After how many evaluations one took at most `limit`; None: none did."""
        good = np.flatnonzero(self.times <= limit)
        return int(good[0]) + 1 if good.size else None

    def best(self, evaluations: int) -> float | None:
        """The least time of the first so many; None when all of them failed."""
        found = self.times[:evaluations]
        found = found[np.isfinite(found)]
        return float(found.min()) if found.size else None


def replay(
    recorded: Recorded,
    factory: SamplerFactory,
    seed: int,
    budget: int,
    first: Sequence[int] = (),
    until: float = 0.0,
) -> Run:
    """Runs a sampler until `budget` configs were evaluated, or all, or one took no longer than `until`.

    Args:
        recorded: the space; its set's mask is reset.
        seed: of the sampler; a run with the same one is the same.
        first: configs, by index, that are evaluated before the sampler is asked.
        until: a time, in the unit of the space's.
    """
    feasible = recorded.feasible
    feasible.unseen[:] = True
    study = quiet_study(factory(feasible, int(np.random.SeedSequence(seed).generate_state(1)[0])))
    wanted = min(budget, len(feasible))
    order = list(dict.fromkeys(first))[:wanted]
    for index in order:
        feasible.unseen[index] = False
        study.add_trial(_known(recorded, index))
    repeats = outside = 0
    spent = 0.0
    for _ in range(_MOST_ASKS * wanted):
        if len(order) == wanted or (order and recorded.times[order[-1]] <= until):
            break
        began = time.process_time()
        trial = study.ask()
        index = feasible.index_of(suggested(trial, feasible))
        spent += time.process_time() - began
        if index is None:
            outside += 1
            study.tell(trial, state=TrialState.PRUNED)
            continue
        if feasible.unseen[index]:
            feasible.unseen[index] = False
            order.append(index)
        else:
            repeats += 1
        _tell(study, trial, float(recorded.times[index]))
    return Run(recorded.times[order], repeats, outside, spent, tuple(order))


def _known(recorded: Recorded, index: int) -> FrozenTrial:
    """A trial that needs no asking."""
    time_ms, feasible = float(recorded.times[index]), recorded.feasible
    failed = np.isnan(time_ms)
    return create_trial(
        state=TrialState.PRUNED if failed else TrialState.COMPLETE,
        value=None if failed else time_ms,
        params=feasible.params(index),
        distributions=feasible.distributions_of(index),
    )


def _tell(study: optuna.Study, trial: optuna.Trial, time_ms: float) -> None:
    if np.isnan(time_ms):
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, time_ms)
