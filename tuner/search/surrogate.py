# SPDX-License-Identifier: Apache-2.0
"""A Gaussian process over the points of a feasible set, in numpy.

The kernel is exp(-sum of w_i d_i), the product of one factor a feature: d_i is the distance of two points in
one number of the encoding, or whether they differ in one parameter. Each has a weight of its own, found by
the marginal likelihood. It is rough (Matern 1/2 along each feature), as performance over tuning parameters
is, and it shares what it learns between points that have some parameters in common.

With the weights fixed, one more observation costs a matrix-vector product: what the predictions need of the
kernel is kept as its triangular solution against the observed points, and grows by a column.
"""

from __future__ import annotations

import numpy as np

from .encoding import Encoding

_TYPICAL_EXPONENT = 3.0
"""Of two points that are as far apart as can be, before anything is learned."""
_TYPICAL_NOISE = 1e-2
_LEAST_NOISE = 1e-5
_PRIOR_WIDTH = 1.5
_STEP = 0.25


class Surrogate:
    """Predicts the objective of `candidates` from observations of any points.

    Attributes:
        observed: the points observed so far, in order.
        candidates: the points that predictions are for.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._numbers, self._codes = encoding.numbers, encoding.codes
        features = self._numbers.shape[1] + self._codes.shape[1]
        self._typical = np.log(np.full(features + 1, _TYPICAL_EXPONENT / max(1, features)))
        self._typical[-1] = np.log(_TYPICAL_NOISE)
        self._weights = self._typical.copy()  # logarithms; the last one is the noise's share
        self.observed: list[int] = []
        self.candidates = np.arange(0)
        self._restart(0)

    def fit(self, observed: list[int], values: np.ndarray, candidates: np.ndarray, steps: int) -> None:
        """Finds the weights that make `values` likely, beginning at those found before.

        Args:
            observed: points; they replace those observed so far.
            values: of each; may be constant, which teaches nothing.
            candidates: points to predict from now on.
            steps: of the ascent, each costs len(observed)^3.
        """
        if len(observed) > 1 and np.ptp(values) > 0:
            self._weights = self._ascend(np.array(observed), values - values.mean(), steps)
        self.candidates = candidates
        self._restart(len(observed))
        for index in observed:
            self.observe(index)

    def observe(self, index: int) -> None:
        """Adds a point; its value is not needed before `predict`."""
        count = len(self.observed)
        if count == len(self._inverse):
            self._grow()
        row = self._inverse[:count, :count] @ self._kernel(index, np.array(self.observed, dtype=int))
        scale = np.sqrt(max(1e-8, 1.0 + np.exp(self._weights[-1]) - row @ row))
        solved = self._solved[:, :count] @ row.astype(np.float32)
        column = (self._kernel(index, self.candidates) - solved) / np.float32(scale)
        self._solved[:, count] = column
        self._variance = np.maximum(self._variance - column**2, 1e-9)
        self._inverse[count, :count] = -(row @ self._inverse[:count, :count]) / scale
        self._inverse[count, count] = 1.0 / scale
        self.observed.append(index)

    def predict(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at each candidate.

        Args:
            values: of the observed points, in their order.
        """
        count = len(self.observed)
        mean = values.mean()
        whitened = self._inverse[:count, :count] @ (values - mean)
        size = whitened @ whitened / count
        expected = mean + self._solved[:, :count] @ whitened.astype(np.float32)
        return expected.astype(float), np.sqrt(max(size, 1e-12) * self._variance.astype(float))

    def _restart(self, room: int) -> None:
        self.observed = []
        room = max(32, room + room // 2)
        self._inverse = np.zeros((room, room))  # of the Cholesky factor of the observed points' kernel
        self._solved = np.zeros((len(self.candidates), room), dtype=np.float32)
        self._variance = np.ones(len(self.candidates), dtype=np.float32)

    def _grow(self) -> None:
        room, more = len(self._inverse), len(self._inverse)
        self._inverse = np.pad(self._inverse, ((0, more), (0, more)))
        self._solved = np.concatenate([self._solved, np.zeros((len(self._solved), room), np.float32)], axis=1)

    def _kernel(self, index: int, others: np.ndarray) -> np.ndarray:
        weights = np.exp(self._weights[:-1]).astype(np.float32)
        apart = np.abs(self._numbers[others] - self._numbers[index])
        differ = self._codes[others] != self._codes[index]
        split = self._numbers.shape[1]
        return np.exp(-(apart @ weights[:split] + differ @ weights[split:]))

    def _ascend(self, observed: np.ndarray, values: np.ndarray, steps: int) -> np.ndarray:
        """The best weights on the way of some steps of Adam on the posterior of the weights' logarithms."""
        numbers, codes = self._numbers[observed].T, self._codes[observed].T
        distances = np.concatenate(
            [np.abs(numbers[:, :, None] - numbers[:, None, :]), codes[:, :, None] != codes[:, None, :]]
        ).reshape(len(numbers) + len(codes), -1)
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
