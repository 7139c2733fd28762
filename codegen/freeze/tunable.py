# SPDX-License-Identifier: Apache-2.0
"""In which dtypes kernels of an operator can be tuned: what a package may advise its user to do."""

from __future__ import annotations

from ..catalogue import Catalogue
from ..dtypes import DTYPES
from ..errors import ColdforgeError
from ..operator import Operator
from ..problem import make_problem
from ..target import Target, cpu_target_for, cuda_target


def tunable_dtypes(operator: Operator, known: Catalogue) -> dict[str, list[str]]:
    """Kind of target -> dtypes in which some template has a config at one of the operator's workloads."""
    return {
        kind: [dtype for dtype in DTYPES if _some(operator, known, kind, dtype)] for kind in ("cpu", "cuda")
    }


def _some(operator: Operator, known: Catalogue, kind: str, dtype: str) -> bool:
    for space in known.spaces(operator, kind):
        for arch in space.archs:
            target: Target = cuda_target(arch) if kind == "cuda" else cpu_target_for(arch)
            for workload in operator.workloads:
                try:
                    problem = make_problem(operator, workload, dtype=dtype)
                    if space.default_for(problem, target) is not None:
                        return True
                except ColdforgeError:  # a workload that is none in that dtype
                    continue
    return False
