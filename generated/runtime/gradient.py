# SPDX-License-Identifier: Apache-2.0
"""The backward of a frozen operator: PyTorch's own formulas, on the tensors of the call and its result.

Where the derivative of the chain follows from its result (`derivatives`), nothing is computed again. Else
the reference is, and is differentiated. Both are made of PyTorch's operators, so they can be differentiated
once more, and compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .derivatives import from_result
from .fallback import own_precision

if TYPE_CHECKING:
    from .frozen import FrozenOp


def gradients(
    op: FrozenOp, grad: Tensor, result: Tensor | None, arguments: Sequence[Any], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of the tensors, None for those that are not needed.

    Args:
        grad: of the output, of its shape.
        result: the output, where ``op.layer`` reads it.
        arguments: tensors, scalars, attributes.
        needed: for each tensor.
    """
    if op.layer is not None:
        with own_precision(grad):
            found = from_result(op.layer, grad, result, arguments, needed)
        if found is not None:
            return found
    return _again(op, grad, *op.split(arguments), needed)


def _again(
    op: FrozenOp,
    grad: Tensor,
    tensors: Sequence[Tensor | None],
    scalars: Sequence[Any],
    attributes: Sequence[Any],
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """The same by computing the reference again."""
    attributes = [tuple(a) if isinstance(a, list) else a for a in attributes]
    again = torch.is_grad_enabled()  # the backward of this backward will be asked for
    with torch.enable_grad(), own_precision(grad):
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


class Differentiable(torch.autograd.Function):
    """The frozen operator with its gradient, for calls that nothing traces: an op with a gradient registered
    in Python was seen to take ten times as long to call.
    """

    @staticmethod
    def forward(ctx: Any, op: FrozenOp, *arguments: Any) -> Tensor:
        """Runs the plain op on tensors, scalars, attributes and the precision."""
        ctx.op, ctx.kept = op, None
        output = op.overload(*arguments)
        if op.layer is not None and op.layer.reads_result and not _hooked():
            # PyTorch's own activations read what went into them, so that programs change what comes out in
            # place. A saved output would make that an error; an alias knows whether it happened.
            ctx.kept = output.detach()
            ctx.version = ctx.kept._version
        keep(ctx, op, arguments, output if ctx.kept is None else None)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of the tensors."""
        op, kept, ctx.kept = ctx.op, ctx.kept, None  # the graph may live longer than what it saved
        usable = kept is not None and kept._version == ctx.version
        if usable and torch.is_grad_enabled() and op.layer is not None and not op.layer.piecewise:
            usable = False  # the gradient of this gradient goes through the result
        return (None, *backward(ctx, op, ctx.needs_input_grad[1:], grads[0], kept if usable else None))


def _hooked() -> bool:
    """Whether something looks after all tensors that are saved, as checkpoints do: nothing may be kept
    beside."""
    top = getattr(getattr(torch._C, "_autograd", None), "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def keep(ctx: Any, op: FrozenOp, arguments: Sequence[Any], output: Tensor | None) -> None:
    """Saves what the backward reads; no output where it is kept otherwise."""
    count = len(op.tensors)
    reads_result = op.layer is not None and op.layer.reads_result
    ctx.save_for_backward(*arguments[:count], output if reads_result else None)
    ctx.rest = tuple(arguments[count:])


def backward(
    ctx: Any, op: FrozenOp, needed: Sequence[bool], grad: Tensor, kept: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """The gradients of all arguments of a call, None for what is no tensor.

    Args:
        kept: the result, where it was not saved and is as it was.
    """
    *tensors, result = ctx.saved_tensors
    result = kept if result is None else result
    found = gradients(op, grad, result, [*tensors, *ctx.rest[:-1]], needed[: len(op.tensors)])
    return (*found, *[None] * len(ctx.rest))
