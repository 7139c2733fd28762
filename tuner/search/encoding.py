# SPDX-License-Identifier: Apache-2.0
"""A feasible set as numbers that a model can learn from.

Parameters stay categorical: 32, 64 and 128 may be alike where 48 is not. Beside a parameter's value as such
stand its rank, its logarithm, its alignment (trailing zero bits), and the logarithms of products of two
parameters, since a block of 32 x 4 threads has much in common with one of 64 x 2.
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
_NOTHING = 0.5  # what a number of [0, 1] is where the point's template lacks the parameter


@dataclass(frozen=True)
class Encoding:
    """The points of a set by their number.

    Attributes:
        codes: int32 [points, parameters]; which of its choices a parameter has, -1 where it has none.
            Parameters with one choice are left out.
        numbers: float32 [points, features], each feature within [0, 1].
    """

    codes: np.ndarray
    numbers: np.ndarray

    def neighbours(self, index: int) -> np.ndarray:
        """The points that differ from this one in one parameter."""
        return np.flatnonzero((self.codes != self.codes[index]).sum(axis=1) == 1)

    @cached_property
    def places(self) -> np.ndarray:
        """float64 [points, parameters]: where a choice stands among the parameter's, in the middle of its
        share of [0, 1]."""
        return (self.codes + 0.5) / self.levels

    @cached_property
    def levels(self) -> np.ndarray:
        """How many choices each parameter has."""
        return self.codes.max(axis=0, initial=0) + 1


def encode(feasible: FeasibleSet) -> Encoding:
    """Encodes all points of the set."""
    kept, features, logs = [], [], []
    for name, codes in feasible.columns.items():
        choices = feasible.distributions[name].choices
        if len(choices) + bool((codes < 0).any()) < 2:
            continue
        kept.append(codes)
        if not all(isinstance(value, int | float) for value in choices):
            continue
        features.append(_spread(codes, range(len(choices))))
        if len(choices) > 4 and all(isinstance(value, int) for value in choices):
            features.append(_spread(codes, [_trailing_zeros(int(value)) for value in choices]))
        if len(choices) > 2 and min(choices) > 0:
            logs.append((codes, np.array([math.log2(value) for value in choices])))
    features += [_spread(codes, values) for codes, values in logs]
    most = sorted(logs, key=lambda log: -len(log[1]))[:_MOST_PRODUCTS_OF]
    for (codes, values), (others, their) in itertools.combinations(most, 2):
        both = (codes >= 0) & (others >= 0)
        features.append(_within_one(values[codes] + their[others], both))
    used = [feature for feature in features if np.ptp(feature) > 0]
    return Encoding(_columns(kept, len(feasible), np.int32), _columns(used, len(feasible), np.float32))


def _columns(found: Sequence[np.ndarray], rows: int, kind: Any) -> np.ndarray:
    return np.array(found, dtype=kind).reshape(len(found), rows).T.copy()


def _spread(codes: np.ndarray, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The choices' values by point."""
    return _within_one(np.array(values, dtype=float)[codes], codes >= 0)


def _within_one(found: np.ndarray, there: np.ndarray) -> np.ndarray:
    low, width = found[there].min(), np.ptp(found[there])
    return np.where(there, (found - low) / (width or 1.0), _NOTHING)


def _trailing_zeros(value: int) -> int:
    return (value & -value).bit_length() - 1 if value else 0
