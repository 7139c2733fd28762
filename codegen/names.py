# SPDX-License-Identifier: Apache-2.0
"""Names that a declaration cannot give: they mean something else where it is printed."""

from __future__ import annotations

import keyword

# Words of C++, and what kernels and wrappers call their own parts.
_WORDS = """
    OP Tensor args arguments ceil_div channel epilogue linear operator precision round_up self sizes torch v
    workspace
    alignas alignof asm auto bool case catch char const constexpr decltype default delete do double enum
    explicit extern false float friend goto inline int long mutable namespace new noexcept nullptr private
    protected public register short signed sizeof static struct switch template this throw true typedef typeid
    typename union unsigned using virtual void volatile
"""
RESERVED = frozenset(keyword.kwlist) | frozenset(_WORDS.split())
"""Not for values and tensors."""

# What the file of a frozen operator and its package call their own parts, and the built-in functions that
# they call.
_PACKAGE_WORDS = """
    Any FrozenModule FrozenOp OP POINTWISE REDUCTIONS ReducingChain RuntimeError Sequence Step Tensor abs
    arguments ceil_div checked epilogue family int kernels linear magnitude max min operators output_shape
    reduction_length reference replace round_up runtime sizes super torch type
"""
PACKAGE_NAMES = frozenset(keyword.kwlist) | frozenset(_PACKAGE_WORDS.split())
"""Not for operators and modules."""

FAMILY_VALUES = RESERVED | PACKAGE_NAMES | {"begin", "end"}
"""Not for a family's tensors and values: a kernel's and a wrapper's functions have them as local names."""

FAMILIES = frozenset(keyword.kwlist) | {"pointwise", "reductions"}
"""Not for families: a package has a file of the family's name beside its own."""
