# SPDX-License-Identifier: Apache-2.0
"""A feasible set as numbers that a model can learn from.

Parameters stay categorical: 32, 64 and 128 may be alike where 48 is not. Beside whether two points have a
parameter's value in common stand its rank, its logarithm, its alignment (trailing zero bits), and the
logarithms of products of two parameters, since a block of 32 x 4 threads has much in common with one of
64 x 2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .feasible import FeasibleSet

_MOST_PRODUCTS_OF = 9
_NOTHING = 0.5  # where on a scale a point is whose template lacks the parameter


@dataclass(frozen=True)
class Trait:
    """One thing in which points differ: a parameter, or a product of two.

    Attributes:
        levels: int32 [points], which of its values a point has.
        scales: float32 [scales, values], the values on scales within [0, 1]; none for words.
        categorical: whether having different values counts as such, too.
    """

    levels: np.ndarray
    scales: np.ndarray
    categorical: bool

    @property
    def distances(self) -> int:
        """How many distances it has: one a scale, and one for being different."""
        return len(self.scales) + self.categorical

    def apart(self, weights: np.ndarray) -> np.ndarray:
        """float32 [values, values]: the weighted sum of its distances."""
        return np.tensordot(weights, self.each_apart, axes=1)

    @cached_property
    def each_apart(self) -> np.ndarray:
        """float32 [distances, values, values]: the distances of its values from each other."""
        found = np.abs(self.scales[:, :, None] - self.scales[:, None, :])
        if not self.categorical:
            return found
        differ = 1 - np.eye(self.scales.shape[1], dtype=np.float32)
        return np.concatenate([found, differ[None]])


@dataclass(frozen=True)
class Encoding:
    """The points of a set by their traits.

    Attributes:
        codes: int32 [points, parameters]; which of its choices a parameter has, -1 where it has none.
            Parameters with one choice are left out.
        traits: the parameters in that order, then products.
    """

    codes: np.ndarray
    traits: tuple[Trait, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def neighbours(self, index: int) -> np.ndarray:
        """The points that differ from this one in one parameter."""
        return np.flatnonzero((self.codes != self.codes[index]).sum(axis=1) == 1)

    @cached_property
    def places(self) -> np.ndarray:
        """float64 [points, parameters]: where a choice stands among the parameter's, in the middle of its
        share of [0, 1]."""
        return (self.codes + 0.5) / self.choices

    @cached_property
    def choices(self) -> np.ndarray:
        """How many choices each parameter has."""
        return self.codes.max(axis=0, initial=0) + 1


def encode(feasible: FeasibleSet) -> Encoding:
    """Encodes all points of the set."""
    columns, traits, logs = [], [], []
    for name, codes in feasible.columns.items():
        choices: tuple[Any, ...] = feasible.distributions[name].choices
        if len(choices) + bool((codes < 0).any()) < 2:
            continue
        scales = _scales(choices)
        columns.append(codes)
        levels = np.where(codes < 0, len(choices), codes)  # one more for having none
        traits.append(Trait(levels, _padded(scales, len(choices)), categorical=True))
        if len(choices) > 2 and _numbers(choices) and min(choices) > 0:
            logs.append((codes, np.array([math.log2(value) for value in choices])))
    most = sorted(logs, key=lambda log: -len(log[1]))[:_MOST_PRODUCTS_OF]
    pairs = itertools.combinations(most, 2)
    traits += [_product(*a, *b) for a, b in pairs if ((a[0] >= 0) & (b[0] >= 0)).any()]
    shape = (len(columns), len(feasible))
    return Encoding(np.array(columns, dtype=np.int32).reshape(shape).T.copy(), tuple(traits))


def _numbers(choices: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) for value in choices)


def _scales(choices: Sequence[Any]) -> list[np.ndarray]:
    """A parameter's choices on the scales that they have."""
    if not _numbers(choices) or len(choices) < 2:
        return []
    found = [np.arange(len(choices))]
    if len(choices) > 4 and all(isinstance(value, int) for value in choices):
        found.append(np.array([_trailing_zeros(value) for value in choices]))
    if len(choices) > 2 and min(choices) > 0:
        found.append(np.array([math.log2(value) for value in choices]))
    return [_within_one(scale) for scale in found if np.ptp(scale) > 0]


def _padded(scales: list[np.ndarray], choices: int) -> np.ndarray:
    found = [np.append(scale, _NOTHING) for scale in scales]
    return np.array(found, dtype=np.float32).reshape(len(scales), choices + 1)


def _product(codes: np.ndarray, logs: np.ndarray, others: np.ndarray, their: np.ndarray) -> Trait:
    both = (codes >= 0) & (others >= 0)
    values = np.round(np.where(both, logs[codes] + their[others], np.inf), 6)
    distinct, levels = np.unique(values, return_inverse=True)
    known = np.isfinite(distinct)
    scale = np.full(len(distinct), _NOTHING, dtype=np.float32)
    scale[known] = _within_one(distinct[known])
    return Trait(levels.astype(np.int32).ravel(), scale[None], categorical=False)


def _within_one(scale: np.ndarray) -> np.ndarray:
    return (scale - scale.min()) / (np.ptp(scale) or 1.0)


def _trailing_zeros(value: int) -> int:
    return (value & -value).bit_length() - 1 if value else 0
