# SPDX-License-Identifier: Apache-2.0
"""What to try next: the feasible set, the samplers, and ask/tell between them and the tuning loop."""

from __future__ import annotations

from .asktell import Search
from .feasible import FeasibleSet, Point, point_of
from .samplers import DEFAULT_SAMPLER, SAMPLERS, SamplerFactory, sampler_named
from .sibling import Sibling, begun_with, sibling_of

__all__ = [
    "DEFAULT_SAMPLER",
    "SAMPLERS",
    "FeasibleSet",
    "Point",
    "SamplerFactory",
    "Search",
    "Sibling",
    "begun_with",
    "point_of",
    "sampler_named",
    "sibling_of",
]
