# SPDX-License-Identifier: Apache-2.0
"""Samplers that choose a whole unseen point of the feasible set, rather than one parameter after another."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from .feasible import FeasibleSet


class WholePointSampler(BaseSampler):
    """Base class. A subclass decides in `choose`; it must return an index whose ``feasible.unseen`` is True.

    ``choose`` is called once per ask, never when everything was seen, by one thread. Trials that were asked
    for and not yet told are RUNNING in ``study``.
    """

    def __init__(self, feasible: FeasibleSet) -> None:
        self.feasible = feasible

    @abstractmethod
    def choose(self, study: Study) -> int:
        """The index of the point to try next."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters of all templates."""
        return dict(self.feasible.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the chosen point."""
        return dict(self.feasible.params(self.choose(study)))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never reached for the parameters of a chosen point.

        Raises:
            ValueError: a parameter that the chosen point does not have was asked for.
        """
        raise ValueError(f"parameter {param_name!r} does not belong to the chosen template")


class RandomOrder(WholePointSampler):
    """Uniform over the unseen points."""

    def __init__(self, feasible: FeasibleSet, seed: int) -> None:
        super().__init__(feasible)
        self._rng = np.random.default_rng(seed)

    def choose(self, study: Study) -> int:
        """A uniform draw."""
        return int(self._rng.choice(np.flatnonzero(self.feasible.unseen)))


class InOrder(WholePointSampler):
    """The unseen points in the order of the space, until none is left; the seed changes nothing."""

    def __init__(self, feasible: FeasibleSet, seed: int) -> None:
        super().__init__(feasible)

    def choose(self, study: Study) -> int:
        """The first unseen point."""
        return int(np.flatnonzero(self.feasible.unseen)[0])
