# SPDX-License-Identifier: Apache-2.0
"""Tensor types (``--dtype``) and error classes (``--precision``): two words kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import UnknownName

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DType:
    """The element type of an operator's tensors.

    Attributes:
        name: the short name used in keys and on the command line.
        c_name: the type in kernel source.
        bytes: size of one element.
        torch_name: the attribute of ``torch``.
        eps: unit roundoff (half the spacing at 1).
    """

    name: str
    c_name: str
    bytes: int
    torch_name: str
    eps: float

    @property
    def torch(self) -> torch.dtype:
        """The ``torch.dtype``. Imports torch on first use."""
        import torch

        return getattr(torch, self.torch_name)


DTYPES = {
    "fp32": DType("fp32", "float", 4, "float32", 2.0**-24),
    "fp16": DType("fp16", "__half", 2, "float16", 2.0**-11),
    "bf16": DType("bf16", "__nv_bfloat16", 2, "bfloat16", 2.0**-8),
}

# Error class -> unit roundoff of the products' operands: what "correct arithmetic of this class" means.
PRECISIONS = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}


def dtype_named(name: str) -> DType:
    """The dtype called ``name``.

    Raises:
        UnknownName: there is none.
    """
    if name not in DTYPES:
        raise UnknownName("dtype", name, list(DTYPES))
    return DTYPES[name]


def precision_named(name: str | None, dtype: DType) -> str:
    """The error class called ``name``; the dtype's own class when not given.

    Raises:
        UnknownName: there is none.
    """
    if name is None:
        return dtype.name
    if name not in PRECISIONS:
        raise UnknownName("precision", name, list(PRECISIONS))
    return name
