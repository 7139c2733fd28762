# SPDX-License-Identifier: Apache-2.0
"""The backward of a frozen operator: PyTorch's own formulas, on the tensors of the call and its result.

Where the chain can be undone from its result (`derivatives`), only the linear part is differentiated, and
PyTorch's backward of it needs no forward. Else the reference is computed again and differentiated. Both are
made of PyTorch's operators, so they can be differentiated once more, and compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .fallback import own_precision

if TYPE_CHECKING:
    from .frozen import FrozenOp


def gradients(
    op: FrozenOp, grad: Tensor, arguments: Sequence[Any], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of the tensors, None for those that are not needed.

    Args:
        grad: of the output, of its shape.
        arguments: tensors, scalars, attributes.
        needed: for each tensor.
    """
    tensors, scalars, attributes = op.split(arguments)
    attributes = [tuple(a) if isinstance(a, list) else a for a in attributes]
    again = torch.is_grad_enabled()  # the backward of this backward will be asked for
    with torch.enable_grad(), own_precision(tensors[0]):
        leaves = [_leaf(t, n, again) for t, n in zip(tensors, needed, strict=True)]
        output = op.reference(*leaves, *scalars, *attributes)
        wanted = [leaf for leaf, n in zip(leaves, needed, strict=True) if n and leaf is not None]
        found = iter(torch.autograd.grad(output, wanted, grad, create_graph=again, materialize_grads=True))
    return [next(found) if n else None for n in needed]


def _leaf(tensor: Tensor | None, needed: bool, again: bool) -> Tensor | None:
    """What is differentiated with respect to. An alias keeps the history that a second backward follows."""
    if tensor is None:
        return None
    if not again:
        return tensor.detach().requires_grad_(needed)
    return tensor.view_as(tensor) if tensor.requires_grad or not needed else tensor.detach().requires_grad_()
