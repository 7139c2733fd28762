# SPDX-License-Identifier: Apache-2.0
"""Ask and tell over the feasible set: the one interface between the tuning loop and any sampler.

The sampler works on an in-memory study that is rebuilt from the stored trials at start; nothing here
touches storage, compilers or devices. What a sampler suggests is snapped to an unseen feasible point, and
that point is what it is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from .feasible import TEMPLATE, FeasibleSet, Params
from .history import ELSEWHERE
from .samplers import SamplerFactory


class Search:
    """Suggests points of a feasible set, each once.

    Attributes:
        feasible: the set; its mask is updated by every ask.
    """

    def __init__(
        self,
        feasible: FeasibleSet,
        factory: SamplerFactory,
        stored: Iterable[FrozenTrial],
        seed: int,
        salt: Sequence[int] = (),
        first: Sequence[int] = (),
    ) -> None:
        """Rebuilds the sampler's study.

        Args:
            feasible: the enumerated set.
            factory: makes the sampler.
            stored: the finished trials of the study so far.
            seed: the run's seed. The draws depend on it and on the number of stored trials, so that a
                resumed run does not repeat itself.
            salt: what tells this run from others that are under way with the same seed.
            first: points to try before the sampler is asked, after the defaults.
        """
        self.feasible = feasible
        self._first = (*feasible.defaults, *first)
        trials = list(stored)
        streams = np.random.SeedSequence([seed, len(trials), *salt]).spawn(2)
        self._rng = np.random.default_rng(streams[0])
        sampler = factory(feasible, int(streams[1].generate_state(1)[0]))
        self._study = quiet_study(sampler)
        self._pending: dict[int, int] = {}
        for trial in trials:
            index = feasible.index_of(trial.params)
            if index is not None:
                feasible.unseen[index] = False
        self._study.add_trials(trials)

    def learn(self, trials: Iterable[FrozenTrial], keep: int | None = None) -> set[int]:
        """Takes in finished trials that came from elsewhere; those known already are left out.

        Args:
            keep: a point that stays asked for whatever others did: it is being tried.

        Returns:
            Points that were asked for here and that others have finished: they are neither to be tried nor
            told.
        """
        gone = set()
        for trial in trials:
            index = self.feasible.index_of(trial.params)
            if index is None or index == keep:
                continue
            if index in self._pending:  # told where it was asked for: a model keeps what it observed
                self._study.tell(self._pending.pop(index), trial.values, state=trial.state)
                gone.add(index)
            elif self.feasible.unseen[index]:
                self._add(index, trial.state, trial.values, elsewhere=True)
        return gone

    def claim(self, index: int, *, elsewhere: bool = False) -> bool:
        """Asks for this very point; False when it was seen already.

        Args:
            elsewhere: on behalf of another search.
        """
        if not self.feasible.unseen[index]:
            return False
        self._await(index, elsewhere=elsewhere)
        return True

    @property
    def pending(self) -> frozenset[int]:
        """The points that were asked for and neither told nor withdrawn."""
        return frozenset(self._pending)

    def ask(self, count: int) -> list[int]:
        """Up to ``count`` unseen points, by index; fewer when the space runs out, none when it is exhausted.

        The default config of each template comes first, then what else is to be. Every point must be
        given to `tell` or `withdraw` later.
        """
        chosen: list[int] = []
        for index in self._first:
            if len(chosen) < count and self.feasible.unseen[index]:
                self._await(index)
                chosen.append(index)
        while len(chosen) < count and not self.feasible.exhausted:
            chosen.append(self._ask_sampler())
        return chosen

    def tell(self, index: int, time_ms: float | None) -> None:
        """Reports an asked point: its time, or None for a bad config (which the sampler sees as PRUNED)."""
        number = self._pending.pop(index)
        if time_ms is None:
            self._study.tell(number, state=TrialState.PRUNED)
        else:
            self._study.tell(number, time_ms)

    def withdraw(self, index: int) -> None:
        """Takes back an asked point that will not be tried in this run; it counts as unseen again."""
        self._study.tell(self._pending.pop(index), state=TrialState.FAIL)
        self.feasible.unseen[index] = True

    def _ask_sampler(self) -> int:
        trial = self._study.ask()
        params = suggested(trial, self.feasible)
        index = self.feasible.index_of(params)
        if index is not None and self.feasible.unseen[index]:
            self.feasible.unseen[index] = False
            self._pending[index] = trial.number
            return index
        # An infeasible suggestion teaches the sampler to stay away; a repeat teaches nothing and is ignored
        # (FAIL is what Optuna's samplers leave out of their data).
        state = TrialState.PRUNED if index is None else TrialState.FAIL
        self._study.tell(trial, state=state)
        nearest = self.feasible.nearest_unseen(params, self._rng)
        self._await(nearest)
        return nearest

    def _await(self, index: int, *, elsewhere: bool = False) -> None:
        """Adds a RUNNING trial for a point that the sampler did not suggest in these words."""
        self._pending[index] = len(self._study.get_trials(deepcopy=False))
        self._add(index, TrialState.RUNNING, None, elsewhere=elsewhere)

    def _add(self, index: int, state: TrialState, values: Sequence[float] | None, *, elsewhere: bool) -> None:
        """Adds a trial of a point, with what a sampler wants to know of it."""
        self._study.add_trial(
            create_trial(
                state=state,
                values=values,
                params=self.feasible.params(index),
                distributions=self.feasible.distributions_of(index),
                system_attrs=ELSEWHERE if elsewhere else None,
            )
        )
        self.feasible.unseen[index] = False


def quiet_study(sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    """A study in memory; Optuna tells of it what is a warning at least."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(storage=optuna.storages.InMemoryStorage(), sampler=sampler)


def suggested(trial: optuna.Trial, feasible: FeasibleSet) -> Params:
    """What the sampler suggests: a template and its parameters, feasible together or not."""
    distributions = feasible.distributions
    template = str(trial.suggest_categorical(TEMPLATE, distributions[TEMPLATE].choices))
    params: Params = {TEMPLATE: template}
    for name in feasible.names[template]:
        value = trial.suggest_categorical(name, distributions[name].choices)
        assert isinstance(value, int | float | str)
        params[name] = value
    return params
