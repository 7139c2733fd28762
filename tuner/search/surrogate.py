# SPDX-License-Identifier: Apache-2.0
"""A Gaussian process over the points of a feasible set, in numpy.

The kernel is exp(-sum of w_i d_i), a product of one factor for each distance d_i of two points' traits. Each
has a weight of its own, found by the marginal likelihood. It is rough (Matern 1/2 along each scale), as
performance over tuning parameters is, and what it learns it shares between points that have some parameters
in common.

With the weights fixed, one more observation costs a matrix-vector product: the kernel between observed points
and candidates is kept multiplied by the inverse of the observed points' Cholesky factor, and grows by a row.
"""

from __future__ import annotations

import numpy as np
from threadpoolctl import ThreadpoolController

from .encoding import Encoding

_TYPICAL_EXPONENT = 3.0
"""Of two points that are as far apart as can be, before anything is learned."""
_TYPICAL_NOISE = 1e-2
_LEAST_NOISE = 1e-5
_PRIOR_WIDTH = 1.5
_STEP = 0.25
_BLOCK = 1 << 16
"""Entries of the kernel that are worked out at a time."""
_PAIRS = 1 << 12
"""Pairs of points whose distances are."""


class Surrogate:
    """Predicts the objective of `candidates` from observations of any points.

    Attributes:
        observed: the points observed so far, in order.
        candidates: the points that predictions are for.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._traits = encoding.traits
        distances = sum(trait.distances for trait in self._traits)
        typical = np.full(distances + 1, _TYPICAL_EXPONENT / max(1, distances))
        typical[-1] = _TYPICAL_NOISE
        self._typical = np.log(typical)
        self._weights = self._typical.copy()  # logarithms; the last one is the noise's share
        # The matrices are small, and other processes want the cores: compilers, a kernel that is timed.
        self._threads = ThreadpoolController()
        self.fit([], np.zeros(0), np.arange(0), 0)

    def fit(self, observed: list[int], values: np.ndarray, candidates: np.ndarray, steps: int) -> None:
        """Finds the weights that make `values` likely, beginning at those found before.

        Args:
            observed: points; they replace those observed so far.
            values: of each; may be constant, which teaches nothing.
            candidates: points to predict from now on.
            steps: of the ascent, each costs len(observed)^3.
        """
        self.observed, self.candidates = list(observed), candidates
        points = np.array(observed, dtype=int)
        with self._threads.limit(limits=1, user_api="blas"):
            if steps and len(points) > 1 and np.ptp(values) > 0:
                self._weights = self._ascend(points, values - values.mean(), steps)
            self._tables = self._weighted()
            self._levels = [trait.levels[candidates] for trait in self._traits]
            self._restart(points)

    def observe(self, index: int) -> None:
        """Adds a point; its value is not needed before `predict`."""
        count = len(self.observed)
        if count == len(self._inverse):
            self._inverse = np.pad(self._inverse, ((0, count), (0, count)))
            self._solved = np.concatenate([self._solved, np.zeros_like(self._solved)])
        with self._threads.limit(limits=1, user_api="blas"):
            known = self._kernel_among(np.array([index]), np.array(self.observed, dtype=int))[0]
            row = self._inverse[:count, :count] @ known
            scale = np.sqrt(max(1e-8, 1.0 + np.exp(self._weights[-1]) - row @ row))
            solved = row.astype(np.float32) @ self._solved[:count]
            new = (self._kernel(np.array([index]))[0] - solved) / np.float32(scale)
            self._inverse[count, :count] = -(row @ self._inverse[:count, :count]) / scale
        self._solved[count] = new
        self._variance -= new**2
        self._inverse[count, count] = 1.0 / scale
        self.observed.append(index)

    def predict(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each candidate.

        Args:
            values: of the observed points, in their order.
        """
        count = len(self.observed)
        mean = values.mean()
        with self._threads.limit(limits=1, user_api="blas"):
            whitened = self._inverse[:count, :count] @ (values - mean)
            expected = mean + whitened.astype(np.float32) @ self._solved[:count]
        size = max(whitened @ whitened / count, 1e-12)
        return expected.astype(float), np.sqrt(size * np.maximum(self._variance, 1e-9).astype(float))

    def misfit(self, values: np.ndarray) -> float:
        """Logarithm of the signal's size (a variance) that makes the values of the observed points most
        likely: with the weights as they are, the less the likelier."""
        count = len(self.observed)
        with self._threads.limit(limits=1, user_api="blas"):
            whitened = self._inverse[:count, :count] @ (values - values.mean())
        return float(np.log(max(whitened @ whitened / count, 1e-12)))

    def left_out(self, values: np.ndarray) -> np.ndarray:
        """What the other observed points lead to expect of each of them (Rasmussen and Williams, 5.12).

        Args:
            values: of the observed points, in their order.
        """
        count = len(self.observed)
        with self._threads.limit(limits=1, user_api="blas"):
            inverse = self._inverse[:count, :count].T @ self._inverse[:count, :count]
        return values - inverse @ (values - values.mean()) / np.diag(inverse)

    def _restart(self, points: np.ndarray) -> None:
        count, room = len(points), max(32, len(points) + len(points) // 2)
        self._inverse = np.zeros((room, room))  # of the Cholesky factor
        self._solved = np.zeros((room, len(self.candidates)), dtype=np.float32)
        self._variance = np.ones(len(self.candidates), dtype=np.float32)
        if count:
            own = self._kernel_among(points, points).astype(float)
            own[np.diag_indices(count)] = 1.0 + np.exp(self._weights[-1])
            self._inverse[:count, :count] = np.linalg.inv(np.linalg.cholesky(own))
            inverse = self._inverse[:count, :count].astype(np.float32)
            np.matmul(inverse, self._kernel(points), out=self._solved[:count])
            self._variance -= (self._solved[:count] ** 2).sum(axis=0)

    def _weighted(self) -> list[np.ndarray]:
        """For each trait, the exponent that two of its values bring, float32 [values, values]."""
        weights, tables = np.exp(self._weights).astype(np.float32), []
        first = 0
        for trait in self._traits:
            tables.append(trait.apart(weights[first : first + trait.distances]))
            first += trait.distances
        return tables

    def _kernel(self, points: np.ndarray) -> np.ndarray:
        """float32 [points, candidates]."""
        return self._kernel_of(points, self._levels, len(self.candidates))

    def _kernel_among(self, points: np.ndarray, others: np.ndarray) -> np.ndarray:
        """float32 [points, others]."""
        return self._kernel_of(points, [trait.levels[others] for trait in self._traits], len(others))

    def _kernel_of(self, points: np.ndarray, levels: list[np.ndarray], count: int) -> np.ndarray:
        """float32 [points, count]: the kernel between points and others.

        Args:
            levels: of the others, for each trait.
        """
        exponent = np.zeros((len(points), count), dtype=np.float32)
        tables = [t[trait.levels[points]] for trait, t in zip(self._traits, self._tables, strict=True)]
        step = max(1, _BLOCK // max(1, len(points)))  # a part of the columns at a time, which a cache holds
        for first in range(0, count, step):
            part = exponent[:, first : first + step]
            room = np.empty(part.shape, dtype=np.float32)
            for table, level in zip(tables, levels, strict=True):
                np.take(table, level[first : first + step], axis=1, out=room, mode="clip")
                part -= room
        return np.exp(exponent, out=exponent)

    def _ascend(self, points: np.ndarray, values: np.ndarray, steps: int) -> np.ndarray:
        """The best weights on the way of some steps of Adam on the posterior of the weights' logarithms."""
        distances = self._distances(points)
        at, best, lowest = self._weights.copy(), self._weights, np.inf
        first, second = np.zeros_like(at), np.zeros_like(at)
        for step in range(1, steps + 1):
            loss, slope = self._loss(at, distances, values)
            if loss < lowest:
                lowest, best = loss, at.copy()
            first = 0.8 * first + 0.2 * slope
            second = 0.9 * second + 0.1 * slope**2
            at = at - _STEP * (first / (1 - 0.8**step)) / (np.sqrt(second / (1 - 0.9**step)) + 1e-8)
            at[-1] = np.clip(at[-1], np.log(_LEAST_NOISE), 0.0)
        return best

    def _distances(self, points: np.ndarray) -> np.ndarray:
        """float32 [distances, pairs of points], those of a pair beside each other: all the distances of all
        pairs, some rows of the pairs at a time."""
        count, each = len(points), [apart for trait in self._traits for apart in trait.each_apart]
        levels = [trait.levels[points] for trait in self._traits for _ in range(trait.distances)]
        found = np.empty((count, count, len(each)), dtype=np.float32)
        step = max(1, _PAIRS // count)
        for first in range(0, count, step):
            rows = slice(first, first + step)
            part = np.empty((len(each), len(points[rows]), count), dtype=np.float32)
            for place, (apart, level) in enumerate(zip(each, levels, strict=True)):
                np.take(apart[level[rows]], level, axis=1, out=part[place], mode="clip")
            found[rows] = part.transpose(1, 2, 0)
        return found.reshape(-1, len(each)).T

    def _loss(self, at: np.ndarray, distances: np.ndarray, values: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the logarithm of the posterior, the signal's size profiled out, and its slope."""
        count = len(values)
        weights, noise = np.exp(at[:-1]), np.exp(at[-1])
        kernel = np.exp(-(weights.astype(np.float32) @ distances).reshape(count, count).astype(float))
        inverse = np.linalg.inv(kernel + noise * np.eye(count))
        solved = inverse @ values
        size = max(values @ solved / count, 1e-12)
        prior = (at - self._typical) / _PRIOR_WIDTH
        loss = 0.5 * (count * np.log(size) - np.linalg.slogdet(inverse)[1] + prior @ prior)
        outer = 0.5 * (inverse - np.outer(solved, solved) / size)
        slope = np.empty_like(at)
        slope[:-1] = -weights * (distances @ (outer * kernel).astype(np.float32).ravel())
        slope[-1] = noise * np.trace(outer)
        return float(loss), slope + prior / _PRIOR_WIDTH
