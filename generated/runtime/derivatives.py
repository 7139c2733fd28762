# SPDX-License-Identifier: Apache-2.0
"""Gradients without a second forward: where the derivative of the chain follows from its result.

The result of ``leaky_relu`` has the sign of what went into it, a division by a number has the same derivative
everywhere, and PyTorch's backward of a convolution reads only its inputs. So nothing is computed again, and
nothing but the inputs and the result is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .chain import Step
from .forms import CONVOLUTIONS
from .patterns import Name, linear_forms

if TYPE_CHECKING:
    from .frozen import FrozenOp

_aten = torch.ops.aten

Arguments = Sequence[Any]
"""Of a call: tensors, scalars, attributes."""
Reader = Callable[[Arguments], Any]
Through = Callable[[Tensor, Tensor | None, Any], Tensor | None]
"""(gradient, result, what the step reads) -> the gradient before the step; None where these do not tell."""


def _of_result(formula: Callable[[Tensor, Tensor], Tensor]) -> Through:
    return lambda grad, result, _: None if result is None else formula(grad, result)


def _leaky_relu(grad: Tensor, result: Tensor | None, slope: Any) -> Tensor | None:
    if result is None or not slope > 0:
        return None
    return _aten.leaky_relu_backward.default(grad, result, slope, True)


# Word of the last step -> its backward.
_FROM_RESULT: dict[str, Through] = {
    "relu": _of_result(lambda grad, result: _aten.threshold_backward.default(grad, result, 0)),
    "leaky_relu": _leaky_relu,
    "sigmoid": _of_result(lambda grad, result: _aten.sigmoid_backward.default(grad, result)),
    "tanh": _of_result(lambda grad, result: _aten.tanh_backward.default(grad, result)),
}
_PIECEWISE = {"relu", "leaky_relu"}


def _scaled(grad: Tensor, _: Tensor | None, value: Any) -> Tensor | None:
    if isinstance(value, Tensor):  # its own gradient reads what it was multiplied with
        return None
    return grad if value is None else grad * value


def _divided(grad: Tensor, _: Tensor | None, value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return None
    return grad if value is None else grad / value


# Steps whose derivative is the same for every value.
_ANYWHERE: dict[str, Through] = {
    "add": lambda grad, *_: grad,
    "sub": lambda grad, *_: grad,
    "mul": _scaled,
    "div": _divided,
}


@dataclass(frozen=True)
class Backward:
    """The backward of one step, found once for all calls.

    Attributes:
        through: its formula.
        reads: what the formula reads beside gradient and result.
        vector: the number, among the tensors, of the channel vector that the step adds; None where it adds
            none.
        negative: whether it subtracts it.
        axes: what its gradient sums.
    """

    through: Through
    reads: Reader
    vector: int | None
    negative: bool
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """The linear part of an operator, as the one layer of PyTorch that it is.

    Attributes:
        transposed: whether it is a transposed convolution.
        steps: of the chain, the last first.
        weight, bias: their numbers among the tensors, of which the data is the first; None: no such tensor.
        stride, padding, dilation, output_padding, groups: the layer's.
        reads_result: whether the chain's gradient reads the result.
        piecewise: whether it reads nothing but the result's sign.
    """

    transposed: bool
    steps: tuple[Backward, ...]
    weight: int
    bias: int | None
    stride: Reader
    padding: Reader
    dilation: Reader
    output_padding: Reader
    groups: Reader
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
    word, arguments = forms[0].word, forms[0].arguments
    if any(isinstance(value, str) for value in arguments.values()):  # padding="same"
        return None
    tensors, count = list(op.tensors), CONVOLUTIONS[word]
    bias = arguments["bias"]
    return Layer(
        transposed="transpose" in word,
        steps=tuple(_backward(op, step) for step in reversed(op.chain)),
        weight=tensors.index(arguments["weight"].name),
        bias=tensors.index(bias.name) if isinstance(bias, Name) else None,
        stride=_sizes(op, arguments["stride"], count),
        padding=_sizes(op, arguments["padding"], count),
        dilation=_sizes(op, arguments["dilation"], count),
        output_padding=_sizes(op, arguments.get("output_padding", 0), count),
        groups=_reader(op, arguments["groups"]),
        reads_result=last in _FROM_RESULT,
        piecewise=last in _PIECEWISE,
    )


def _reader(op: FrozenOp, value: Any) -> Reader:
    """What takes a value from a call's arguments, where it is not the same in every call."""
    if not isinstance(value, Name):
        return lambda _: value
    at = [*op.tensors, *op.scalars, *op.attributes].index(value.name)
    return lambda arguments: arguments[at]


def _sizes(op: FrozenOp, value: Any, count: int) -> Reader:
    """The same of one number for each dimension, or one for all."""
    read = _reader(op, value)

    def sizes(arguments: Arguments) -> Sequence[int]:
        found = read(arguments)
        return (found,) * count if isinstance(found, int) else found

    return sizes


def _backward(op: FrozenOp, step: Step) -> Backward:
    value = next(iter(step.arguments.values()), None)  # none of these steps reads two
    vector = list(op.tensors).index(value) if step.broadcast and isinstance(value, str) else None
    axes = tuple(axis for axis, size in enumerate(step.broadcast) if size == 1)
    through = _FROM_RESULT[step.op] if step.op in _FROM_RESULT else _ANYWHERE[step.op]
    reads = _reader(op, Name(value) if isinstance(value, str) else value)
    return Backward(through, reads, vector, step.op == "sub", axes)


def from_result(
    layer: Layer, grad: Tensor, result: Tensor | None, arguments: Arguments, needed: Sequence[bool]
) -> list[Tensor | None] | None:
    """The gradients of the tensors; None where it takes a second forward after all.

    Args:
        result: the operator's; None where the layer does not read it.
        needed: for each tensor.
    """
    found: list[Tensor | None] = [None] * len(needed)
    for step in layer.steps:
        at = step.vector
        if at is not None and needed[at]:
            own = (-grad if step.negative else grad).sum(step.axes).reshape(arguments[at].shape)
            before = found[at]
            found[at] = own if before is None else before + own  # it may stand in several steps
        moved = step.through(grad, result, step.reads(arguments))
        if moved is None:
            return None
        grad = moved
    bias = layer.bias
    mask = [needed[0], needed[layer.weight], bias is not None and needed[bias]]
    grads = _aten.convolution_backward.default(
        grad,
        arguments[0],
        arguments[layer.weight],
        [grad.shape[1]] if mask[2] else None,
        layer.stride(arguments),
        layer.padding(arguments),
        layer.dilation(arguments),
        layer.transposed,
        layer.output_padding(arguments),
        layer.groups(arguments),
        mask,
    )
    found[0], found[layer.weight] = grads[0], grads[1]
    if bias is not None:
        found[bias] = grads[2]
    return found
