# SPDX-License-Identifier: Apache-2.0
"""Sums that go wrong in plain fp32, with what they come to exactly, and how far a result is from that."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy

STEPS = 3200
"""Terms of a lane. Thirty-two lanes add up a hundred thousand."""
LANES = 32
TREE = 64
"""Terms of a lane that are also added up by themselves, as a tree."""
FEW_ULPS = 3.0
"""What a compensated or exact sum may be off; see `ulps`."""
MANY_ULPS = 30.0
"""What a plain sum of a series that is ill-conditioned is off at least."""


@dataclass(frozen=True)
class Sum:
    """What terms come to.

    Attributes:
        exact: their sum, rounded once, to fp64.
        magnitude: the sum of their absolute values.
    """

    exact: float
    magnitude: float


@dataclass(frozen=True, eq=False)
class Series:
    """What a warp adds up.

    Attributes:
        terms: float32 [STEPS, LANES]: a column is what one lane adds up, from its first row to its last.
        factors: float32 [STEPS, LANES]: of products, what each term is multiplied by.
        start: of products: what a lane begins with.
        ill: whether the plain fp32 sums of most columns are off by MANY_ULPS.
    """

    terms: numpy.ndarray
    factors: numpy.ndarray | None = None
    start: float = 0.0
    ill: bool = False

    @functools.cached_property
    def exact_terms(self) -> numpy.ndarray:
        """float64 [1 + STEPS, LANES]: the start and what is added to it, with no rounding in it."""
        wide = self.terms.astype(numpy.float64)
        if self.factors is not None:
            with numpy.errstate(invalid="ignore"):  # 0 * inf
                wide = wide * self.factors
        return numpy.concatenate([numpy.full((1, LANES), numpy.float32(self.start), numpy.float64), wide])

    @functools.cached_property
    def lanes(self) -> tuple[Sum, ...]:
        """What each lane has to come to."""
        return tuple(_sum(column) for column in self.exact_terms.T)

    @functools.cached_property
    def trees(self) -> tuple[Sum, ...]:
        """What the first TREE terms of each lane come to."""
        return tuple(_sum(column) for column in self.exact_terms[: TREE + 1].T)

    @functools.cached_property
    def all_lanes(self) -> Sum:
        """What they come to together."""
        return _sum(self.exact_terms.ravel())


def _sum(terms: numpy.ndarray) -> Sum:
    """The sum of float64 terms; as IEEE has it where they are not finite."""
    if not numpy.isfinite(terms).all():
        with numpy.errstate(invalid="ignore"):
            return Sum(float(terms.sum()), math.inf)
    return Sum(math.fsum(terms.tolist()), math.fsum(abs(terms).tolist()))


def ulps(got: float, exact: float, dtype: type[numpy.floating] = numpy.float32) -> float:
    """How many units in the last place of an fp32 number a result is from what it should be: infinitely many
    where it is not finite and should be, or the other way about. What is beyond fp32 is infinite in it."""
    with numpy.errstate(over="ignore"):
        wanted = float(dtype(exact))
    if math.isnan(wanted) or math.isnan(got):
        return 0.0 if math.isnan(wanted) and math.isnan(got) else math.inf
    if math.isinf(wanted) or math.isinf(got):
        return 0.0 if wanted == got else math.inf
    return abs(got - exact) / float(numpy.spacing(numpy.float32(min(abs(exact), 1e38))))


def _like(rows: list[float], rest: float, last: list[float] | None = None) -> numpy.ndarray:
    """The same in each lane: a few terms, then one again and again, then a few."""
    last = last or []
    column = [*rows, *[rest] * (STEPS - len(rows) - len(last)), *last]
    return numpy.repeat(numpy.array(column, numpy.float32)[:, None], LANES, axis=1)


def _cancelling() -> numpy.ndarray:
    """In each lane numbers and somewhere their opposites, and small ones, which are left in the end."""
    random = numpy.random.default_rng(7)
    large = random.standard_normal((STEPS // 2 - 100, LANES)).astype(numpy.float32) * numpy.float32(1000)
    small = random.random((200, LANES), numpy.float32)
    return random.permuted(numpy.concatenate([large, -large, small]), axis=0)


def _of_all_sizes() -> numpy.ndarray:
    random = numpy.random.default_rng(8)
    return (random.random((STEPS, LANES)) * 10 ** random.uniform(-6, 0, (STEPS, LANES))).astype(numpy.float32)


def _between(first: float, last: float) -> numpy.ndarray:
    """Small ones between two."""
    terms = numpy.random.default_rng(9).random((STEPS, LANES), numpy.float32) / 16
    terms[0], terms[-1] = first, last
    return terms


def sums() -> dict[str, Series]:
    """What is added up term by term, by name."""
    inf, nan = math.inf, math.nan
    return {
        "one, then tiny ones": Series(_like([1.0], 1e-8), ill=True),
        "all alike": Series(_like([], 0.1), ill=True),
        "all alike and negative": Series(_like([], -0.7), ill=True),
        "a large one that goes again": Series(_between(1e4, -1e4), ill=True),
        "larger than all before it": Series(_like([0.3, 1e7, 3.3, -1e7], 0.5), ill=True),
        "cancelling": Series(_cancelling(), ill=True),
        "of all sizes": Series(_of_all_sizes()),
        "inf": Series(_like([1.0, inf], 0.1)),
        "-inf at the end": Series(_like([1.0], 0.1, [-inf])),
        "inf and -inf": Series(_like([inf, 1.0], 0.1, [-inf])),
        "nan": Series(_like([1.0, nan], 0.1)),
        "nan after inf": Series(_like([inf, 0.1, nan], 0.1)),
        "beyond fp32": Series(_like([3e38, 3e38], 0.1)),
    }


def products() -> dict[str, Series]:
    """What is added up as products, by name. Where the sum cancels the products are exact in fp32: what a
    product's own rounding costs, no sum brings back."""
    inf, nan = math.inf, math.nan
    ones = _like([], 1.0)
    drawn = _of_all_sizes()
    return {
        "one, then tiny ones": Series(_like([], 1e-4), _like([], 1e-4), 1.0, ill=True),
        "all alike": Series(_like([], 0.1), ones, ill=True),
        "a large start that goes again": Series(_between(0.0, -1e4), ones, 1e4, ill=True),
        "larger than all before it": Series(_like([1e4], 1e-4), ones, 0.1, ill=True),
        "signs that alternate": Series(_like([], 0.7), _like([], 1.0) * _signs(), 3e5, ill=True),
        "of all sizes": Series(drawn, drawn[::-1].copy(), 0.5),
        "inf": Series(_like([1.0, inf], 0.1), ones, 1.0),
        "-inf at the end": Series(_like([], 0.1, [inf]), -ones, 1.0),
        "inf times 0": Series(_like([inf], 0.1), _like([0.0], 1.0), 1.0),
        "inf and -inf": Series(_like([inf], 0.1, [-inf]), ones, 1.0),
        "nan": Series(_like([1.0, nan], 0.1), ones, 1.0),
        "start at inf": Series(_like([], 0.1), ones, inf),
        "start at -inf, then inf": Series(_like([inf], 0.1), ones, -inf),
        "start at nan": Series(_like([], 0.1), ones, nan),
        "a product beyond fp32": Series(_like([1e30], 0.1), _like([1e30], 1.0), 1.0),
        "a sum beyond fp32": Series(_like([3e38, 3e38], 0.1), ones, 1.0),
    }


def _signs() -> numpy.ndarray:
    """Two steps up, one down."""
    return numpy.where(numpy.arange(STEPS) % 3 == 1, -1, 1).astype(numpy.float32)[:, None]
