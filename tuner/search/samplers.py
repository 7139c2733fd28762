# SPDX-License-Identifier: Apache-2.0
"""The samplers by name. A new one is one function here; it returns any Optuna sampler."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import optuna
from optuna.samplers import BaseSampler

from ...codegen.errors import UnknownName
from .densities import Densities, LocalSearch
from .feasible import FeasibleSet
from .guided import GaussianProcess
from .whole import InOrder, RandomOrder

SamplerFactory = Callable[[FeasibleSet, int], BaseSampler]

DEFAULT_SAMPLER = "gp"


def _tpe(feasible: FeasibleSet, seed: int) -> BaseSampler:
    # A batch is asked for before any of it is told: the constant liar keeps its members apart. With several
    # templates the parameters differ from trial to trial, which the joint densities can only follow in
    # groups.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if len(feasible.names) > 1:
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True, multivariate=True, group=True)
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


SAMPLERS: dict[str, SamplerFactory] = {
    "gp": GaussianProcess,
    "densities": Densities,
    "local": LocalSearch,
    "tpe": _tpe,
    "random": RandomOrder,
    "exhaustive": InOrder,
}


def sampler_named(name: str | None) -> SamplerFactory:
    """The factory of the sampler called ``name``; the default one when not given.

    Raises:
        UnknownName: there is none.
    """
    chosen = DEFAULT_SAMPLER if name is None else name
    if chosen not in SAMPLERS:
        raise UnknownName("sampler", chosen, list(SAMPLERS))
    return SAMPLERS[chosen]
