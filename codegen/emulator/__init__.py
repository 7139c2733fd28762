# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels executed on the CPU, without a GPU: each fault with its array, threads and line.

The text that NVRTC would get is compiled by g++ (`build`), with twins of CUDA's words (native/shim), and run
thread by thread in a process of its own (native/runtime). What it cannot see: speed, registers, and what PTX
does; a word of PTX is a named wrapper with a twin, and tests compare the two on a GPU.
"""

from __future__ import annotations

from .build import BUILDS, unset_reads
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
    "unset_reads",
    "variant_call",
]
