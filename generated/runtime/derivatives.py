# SPDX-License-Identifier: Apache-2.0
"""Gradients without a second forward: where the derivative of the chain follows from its result.

The result of ``leaky_relu`` has the sign of what went into it, a division by a number has the same derivative
everywhere, and PyTorch's backward of a convolution reads only its inputs. So nothing is computed again, and
nothing but the inputs and the result is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .forms import CONVOLUTIONS
from .patterns import Name, linear_forms

if TYPE_CHECKING:
    from .frozen import FrozenOp

_aten = torch.ops.aten


def _leaky_relu(grad: Tensor, result: Tensor, given: Mapping[str, Any]) -> Tensor | None:
    slope = given["negative_slope"]
    return _aten.leaky_relu_backward(grad, result, slope, True) if slope > 0 else None


# Word of the last step -> (gradient, result, arguments) -> the gradient of what it was done to; None where
# the result does not tell.
_FROM_RESULT: dict[str, Callable[[Tensor, Tensor, Mapping[str, Any]], Tensor | None]] = {
    "relu": lambda grad, result, _: _aten.threshold_backward(grad, result, 0),
    "leaky_relu": _leaky_relu,
    "sigmoid": lambda grad, result, _: _aten.sigmoid_backward(grad, result),
    "tanh": lambda grad, result, _: _aten.tanh_backward(grad, result),
}
_PIECEWISE = {"relu", "leaky_relu"}
_ANYWHERE = {"add", "sub", "mul", "div"}
"""Steps whose derivative is the same for every value."""


@dataclass(frozen=True)
class Layer:
    """The linear part of an operator, as the one layer of PyTorch that it is.

    Attributes:
        dimensions: of its pixels.
        transposed: whether it is a transposed convolution.
        arguments: PyTorch's name -> the operator's name, or a constant.
        reads_result: whether the chain's gradient reads the result.
        piecewise: whether it reads nothing but the result's sign.
    """

    dimensions: int
    transposed: bool
    arguments: Mapping[str, Any]
    reads_result: bool
    piecewise: bool


def layer_of(op: FrozenOp) -> Layer | None:
    """How the operator's gradient is found without a second forward; None where it takes one."""
    if any(step.op not in _ANYWHERE for step in op.chain[:-1]):
        return None
    last = op.chain[-1].op if op.chain else "add"
    if last not in _ANYWHERE and last not in _FROM_RESULT:
        return None
    try:
        forms = linear_forms(op)
    except ValueError:
        return None
    if len(forms) != 1 or forms[0].word not in CONVOLUTIONS:
        return None
    word = forms[0].word
    if any(isinstance(value, str) for value in forms[0].arguments.values()):  # padding="same"
        return None
    return Layer(
        CONVOLUTIONS[word], "transpose" in word, forms[0].arguments, last in _FROM_RESULT, last in _PIECEWISE
    )


def from_result(
    op: FrozenOp,
    layer: Layer,
    grad: Tensor,
    result: Tensor | None,
    given: Mapping[str, Any],
    needed: Sequence[bool],
) -> list[Tensor | None] | None:
    """The gradients of the tensors; None where it takes a second forward after all.

    Args:
        result: the operator's; None where the layer does not read it.
        given: the operator's arguments by name.
        needed: for each tensor.
    """
    wanted = [name for name, n in zip(op.tensors, needed, strict=True) if n]
    found: dict[str, Tensor] = {}
    for step in reversed(op.chain):
        arguments = {n: given[v] if isinstance(v, str) else v for n, v in step.arguments.items()}
        moved = _through(step.op, grad, result, arguments)
        if step.broadcast and isinstance(arguments["value"], Tensor):
            name = str(step.arguments["value"])
            if name in wanted:
                own = -grad if step.op == "sub" else grad
                axes = [axis for axis, size in enumerate(step.broadcast) if size == 1]
                own = own.sum(axes).reshape(arguments["value"].shape)
                found[name] = found[name] + own if name in found else own  # it may stand in several steps
        if moved is None:
            return None
        grad = moved
    found |= _convolution(layer, grad, op.tensors[0], given, wanted)
    return [found[name] if n else None for name, n in zip(op.tensors, needed, strict=True)]


def _through(word: str, grad: Tensor, result: Tensor | None, arguments: Mapping[str, Any]) -> Tensor | None:
    """The gradient before a step, from the one behind it."""
    if word in _FROM_RESULT:
        return None if result is None else _FROM_RESULT[word](grad, result, arguments)
    if word in ("add", "sub"):
        return grad
    value = arguments["value"]
    if isinstance(value, Tensor):  # its own gradient reads what it was multiplied with
        return None
    return grad if value is None else grad * value if word == "mul" else grad / value


def _convolution(
    layer: Layer, grad: Tensor, data: str, given: Mapping[str, Any], wanted: Sequence[str]
) -> dict[str, Tensor]:
    """PyTorch's own backward of the layer."""
    arguments = layer.arguments
    values = {n: given[v.name] if isinstance(v, Name) else v for n, v in arguments.items()}
    names = [data, *(getattr(arguments[n], "name", "") for n in ("weight", "bias"))]
    mask = [name in wanted for name in names]
    channels = grad.shape[1]
    grads = _aten.convolution_backward(
        grad,
        given[data],
        values["weight"],
        [channels] if mask[2] else None,
        list(values["stride"]),
        list(values["padding"]),
        list(values["dilation"]),
        layer.transposed,
        list(values.get("output_padding", (0,) * layer.dimensions)),
        values["groups"],
        mask,
    )
    return {name: g for name, g, m in zip(names, grads, mask, strict=True) if m}
