# SPDX-License-Identifier: Apache-2.0
"""Small ragged shapes on which a package checks its own builds: odd sizes, under one tile, batch 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..catalogue import Catalogue
from ..chain import roles_of
from ..errors import InputError
from ..problem import Problem
from ..steps import PIXELS
from .winner import Winner

# Sizes for the run-time dimensions, the first of them (the batch) kept small; grown where a window does
# not fit.
_BATCH = (1, 3, 2, 1)
_EXTENTS = (7, 19, 33, 70, 5, 41)
_GROWTH = 8
_TRIES = 40
# Where a family sums whole images, one that is long enough for the main loop of every part of it.
_LARGE = (67, 130)


def problem_of(winner: Winner, catalogue: Catalogue) -> Problem:
    """The problem that the winner was tuned for, as declared now.

    Raises:
        InputError: the operator is not declared, or its declaration refuses the shape.
    """
    operator = catalogue.operator(winner.operator)
    absent = [name for name in operator.optional_tensors if not winner.specialisation.get(f"has_{name}", 1)]
    return catalogue.problem_from_dict(
        {
            "operator": winner.operator,
            "dims": dict(winner.workload),
            "dtype": winner.dtype,
            "absent": absent,
            "scalars": dict(operator.scalars),
            "workload": winner.workload_name,
            "precision": winner.precision,
        }
    )


def check_shapes(problem: Problem) -> list[dict[str, list[int] | None]]:
    """Tensor shapes by name (None: absent) of the specialisation's ragged problems."""
    count = len(_EXTENTS)
    extents = [(batch, [_EXTENTS[(i + k) % count] for k in range(count)]) for i, batch in enumerate(_BATCH)]
    if _sums_images(problem):
        extents.append((1, [*_LARGE, *_EXTENTS]))
    shapes: list[dict[str, list[int] | None]] = []
    for batch, sizes in extents:
        ragged = _fitting(problem, sizes, batch)
        if ragged is not None:
            shapes.append(_shapes_of(ragged))
    shapes = shapes or [_shapes_of(problem)]  # no build goes unchecked
    return [s for i, s in enumerate(shapes) if s not in shapes[:i]]


def _shapes_of(problem: Problem) -> dict[str, list[int] | None]:
    return {t.name: list(t.shape) if t.present else None for t in problem.tensors}


def _sums_images(problem: Problem) -> bool:
    """Whether the family's output has one pixel, whatever the image."""
    family = problem.operator.family
    roles = roles_of(family)
    return all(e.text.strip() == "1" for e, r in zip(family.output.shape, roles, strict=True) if r == PIXELS)


def _fitting(problem: Problem, extents: Sequence[int], batch: int) -> Problem | None:
    """The first of a row of growing shapes that the family accepts."""
    names = problem.operator.family.run_time
    first, rest = names[:1], names[1:]
    for step in range(_TRIES):
        grown = {name: extent + _GROWTH * step for name, extent in zip(rest, extents, strict=False)}
        try:
            return problem.with_dims(**dict.fromkeys(first, batch), **grown)
        except InputError:
            continue
    return None


def attribute_arguments(problem: Problem) -> Mapping[str, Any]:
    """The attributes as the op takes them: pairs as lists."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in problem.attributes().items()}
