# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels executed on the CPU, without a GPU: each fault with its array, threads and line."""

from __future__ import annotations

from .build import BUILDS
from .findings import Actor, Finding, Place
from .job import Array, Call
from .run import Emulation, emulate, emulate_calls
from .variant import emulate_variant, variant_call

__all__ = [
    "BUILDS",
    "Actor",
    "Array",
    "Call",
    "Emulation",
    "Finding",
    "Place",
    "emulate",
    "emulate_calls",
    "emulate_variant",
    "variant_call",
]
