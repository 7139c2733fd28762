# SPDX-License-Identifier: Apache-2.0
"""The feasible set of a study, enumerated once, and a mask of what was already tried.

A *point* is a template with one of its configs; the set spans all templates of the study. As a sampler sees
it, a point is a dict of categorical parameters: ``template`` and the template's own parameters. Templates
share a parameter's name where it means the same, so the choices of a name are the union over the
templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

Value = int | str
Params = dict[str, Any]

TEMPLATE = "template"
_ABSENT = -1


@dataclass(frozen=True)
class Point:
    """One thing to compile and time.

    Attributes:
        template: name of the template.
        config: value of each of its parameters, in the order of its space.
    """

    template: str
    config: Mapping[str, Value]

    @property
    def params(self) -> Params:
        """The point as the sampler and the storage hold it."""
        return {TEMPLATE: self.template, **self.config}

    @property
    def key(self) -> str:
        """A readable name, unique in the study."""
        return f"{self.template}:" + ",".join(f"{name}={value}" for name, value in self.config.items())


def point_of(params: Mapping[str, Any]) -> Point:
    """The inverse of `Point.params`."""
    return Point(str(params[TEMPLATE]), {name: value for name, value in params.items() if name != TEMPLATE})


class FeasibleSet:
    """All points of a study, in a fixed order, each seen or unseen.

    Attributes:
        points: the points; everything else refers to them by index.
        distributions: parameter name -> its categorical distribution (the union over the templates).
        names: template -> its parameter names.
        unseen: bool array over the points, True for those never suggested.
        defaults: index of each template's default config, where that is feasible.
    """

    def __init__(
        self,
        configs: Mapping[str, Sequence[Mapping[str, Value]]],
        defaults: Mapping[str, Mapping[str, Value]] | None = None,
    ) -> None:
        """Builds the set.

        Args:
            configs: template -> its feasible configs, in the order of its space.
            defaults: template -> its default config.
        """
        self.points = [Point(name, dict(config)) for name, found in configs.items() for config in found]
        self.names = {name: tuple(found[0]) for name, found in configs.items() if found}
        self.distributions = _distributions(self.points)
        self._codes_by_value: dict[str, dict[Any, int]] = {
            name: {value: code for code, value in enumerate(distribution.choices)}
            for name, distribution in self.distributions.items()
        }
        self._codes = self._encode_all()
        self._index = {codes.tobytes(): index for index, codes in enumerate(self._codes)}
        self.unseen = np.ones(len(self.points), dtype=bool)
        wanted = [Point(name, dict(config)) for name, config in (defaults or {}).items()]
        found = [self.index_of(point.params) for point in wanted]
        self.defaults = [index for index in found if index is not None]

    def __len__(self) -> int:
        return len(self.points)

    @property
    def exhausted(self) -> bool:
        """Whether every point was suggested."""
        return not self.unseen.any()

    def index_of(self, params: Mapping[str, Any]) -> int | None:
        """The index of the point with these parameters, or None if they are not feasible."""
        if not self.distributions.keys() >= params.keys():
            return None
        return self._index.get(self._encode(params).tobytes())

    def index_of_key(self, key: str) -> int | None:
        """The index of the point that `Point.key` calls so; None where there is none."""
        return self._by_key.get(key)

    @cached_property
    def _by_key(self) -> dict[str, int]:
        return {point.key: index for index, point in enumerate(self.points)}

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Parameter name -> which of its choices each point has, -1 where it has none."""
        return dict(zip(self.distributions, self._codes.T, strict=True))

    def params(self, index: int) -> Params:
        """The parameters of a point."""
        return self.points[index].params

    def distributions_of(self, index: int) -> dict[str, BaseDistribution]:
        """The distributions of the parameters that a point has."""
        return {name: self.distributions[name] for name in self.params(index)}

    def nearest_unseen(self, params: Mapping[str, Any], rng: np.random.Generator) -> int:
        """The unseen point that differs from ``params`` in the fewest parameters; ties are drawn from
        ``rng``.

        Args:
            params: any combination of known values, feasible or not.

        Raises:
            IndexError: everything was seen.
        """
        candidates = np.flatnonzero(self.unseen)
        if candidates.size == 0:
            raise IndexError("every feasible config was tried")
        distance = (self._codes[candidates] != self._encode(params)).sum(axis=1)
        return int(rng.choice(candidates[distance == distance.min()]))

    def _encode_all(self) -> np.ndarray:
        lookups = [(name, self._codes_by_value[name]) for name in self.distributions if name != TEMPLATE]
        templates = self._codes_by_value[TEMPLATE]
        rows = [
            [templates[p.template], *(codes.get(p.config.get(name), _ABSENT) for name, codes in lookups)]
            for p in self.points
        ]
        return np.array(rows, dtype=np.int32).reshape(len(self.points), len(self.distributions))

    def _encode(self, params: Mapping[str, Any]) -> np.ndarray:
        """The codes of any parameters; what no point has is ``_ABSENT``."""
        absent: dict[Any, int] = {}
        codes = [
            self._codes_by_value.get(name, absent).get(params.get(name), _ABSENT)
            for name in self.distributions
        ]
        return np.array(codes, dtype=np.int32)


def _distributions(points: Sequence[Point]) -> dict[str, CategoricalDistribution]:
    choices: dict[str, dict[Any, None]] = {TEMPLATE: {}}
    for point in points:
        choices[TEMPLATE][point.template] = None
        for name, value in point.config.items():
            choices.setdefault(name, {})[value] = None
    # In an order of their own: a study refuses a parameter whose choices come in another one.
    ordered = {name: sorted(values, key=choice_order) for name, values in choices.items()}
    return {name: CategoricalDistribution(values) for name, values in ordered.items()}


def choice_order(value: Value) -> tuple[bool, Value]:
    """The sort key of a parameter's values: numbers, then words."""
    return (isinstance(value, str), value)
