# SPDX-License-Identifier: Apache-2.0
"""Which parameters decide how fast a config is, as Optuna estimates it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution

from .material import Material

LEAST = 20
"""Right configs below which nothing is said."""
_TOP, _LEAST_TOP = 0.1, 5
EVALUATOR = "PED-ANOVA"


@dataclass(frozen=True)
class Importance:
    """Of one template's parameters.

    Attributes:
        shares: parameter -> its share of the importance (they sum to 1), the largest first; empty when
            nothing can be said.
        top: how many of the fastest configs were set against all of them.
        of: how many that were.
        reason: why nothing can be said; empty when something is.
    """

    shares: dict[str, float]
    top: int = 0
    of: int = 0
    reason: str = ""


def importance_of(material: Material, template: str) -> Importance:
    """Estimates how much each parameter has to do with being among the fastest tenth (at least five).

    The estimate sets the values among the fastest against those among all that were tried: a parameter
    whose values are spread alike in both has no importance. It is about what was tried, not about the whole
    space.
    """
    results = material.of_template(template)
    axes = [axis for axis in material.axes(template) if axis.varies]
    if len(results) < LEAST:
        return Importance(
            {},
            reason=f"{_count(len(results))} timed of this template; {LEAST} are the least for an estimate.",
        )
    if not axes:
        return Importance({}, reason="No parameter was tried with more than one value.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it tells of each study that it makes
    top = max(_TOP, _LEAST_TOP / len(results))
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    choices: dict[str, Any] = {axis.name: CategoricalDistribution(axis.texts) for axis in axes}
    study.add_trials(
        optuna.trial.create_trial(
            params={name: str(result.config[name]) for name in choices},
            distributions=choices,
            value=result.time_ms,
        )
        for result in results
    )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=top)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    if not sum(shares.values()) > 0:
        return Importance({}, reason="The fastest configs have the same values as all others.")
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1]))
    return Importance(ordered, top=-(-int(1e6 * top * len(results)) // 10**6), of=len(results))


def _count(number: int) -> str:
    return {0: "No config was", 1: "Only one config was"}.get(number, f"Only {number} configs were")
