# SPDX-License-Identifier: Apache-2.0
"""One operator of the package: its PyTorch side, and the way from a call to its frozen kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from . import fallback, package


class Reduction(Protocol):
    """A row of the package's ``reference/reductions.py``."""

    @property
    def reference(self) -> Callable[[Tensor, Sequence[int], bool], Tensor]: ...
    @property
    def roundings(self) -> int: ...
    @property
    def scale(self) -> str: ...


@dataclass(frozen=True)
class ReducingChain:
    """An epilogue that reduces the channels, in three parts.

    Attributes:
        before: (linear result, channel vectors, scalars) -> the values that are reduced.
        reduction: how, and what a kernel's result may be off by.
        axes: the axes that it reduces.
        keepdim: whether they stay, with length 1.
        after: (reduced values, channel vectors, scalars) -> the output.
    """

    before: Callable[..., Tensor]
    reduction: Reduction
    axes: Sequence[int]
    keepdim: bool
    after: Callable[..., Tensor]


@dataclass(eq=False)
class FrozenOp:
    """What the runtime knows of an operator. Every function takes its arguments in the order of the op's
    schema.

    Attributes:
        name: the operator's name.
        tensors: names of the tensor arguments; the first ``own_tensor_count`` are the family's, the rest are
            channel vectors of the epilogue.
        size_names: the sizes that a shape is given by.
        scalars: name -> default.
        attributes: name -> default, a pair as a tuple.
        linear: (family's tensors, attributes) -> the result before the epilogue.
        magnitude: same arguments -> the sum of the absolute terms; None when the family gives none.
        epilogue: (linear result, channel vectors, scalars) -> the output.
        reference: (tensors, scalars, attributes) -> the output.
        sizes: (tensors, attributes) -> every size by name.
        output_shape, reduction_length: from the sizes.
        reducing: the epilogue in parts when it reduces the channels, else None.
        overload: the registered op; None until the extension is loaded.
    """

    name: str
    tensors: Sequence[str]
    own_tensor_count: int
    size_names: Sequence[str]
    scalars: Mapping[str, float]
    attributes: Mapping[str, int | tuple[int, int]]
    linear: Callable[..., Tensor]
    magnitude: Callable[..., Tensor] | None
    epilogue: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    sizes: Callable[..., dict[str, int]]
    output_shape: Callable[[dict[str, int]], list[int]]
    reduction_length: Callable[[dict[str, int]], int]
    reducing: ReducingChain | None = None
    overload: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        package.OPERATORS[self.name] = self

    def __call__(self, *arguments: Any) -> Tensor:
        """Runs checked arguments: tensors, scalars, attributes, precision."""
        tensors = arguments[: len(self.tensors)]
        if torch.is_grad_enabled() and _needs_grad(tensors):
            return self._refer(arguments, fallback.GRADIENT)
        if not torch.compiler.is_compiling() and _has_tangent(tensors):
            return self._refer(arguments, fallback.TANGENT)
        if not package.STATE.ready:
            if not torch.compiler.is_compiling():
                package.prepare()
            elif self.overload is None:
                raise package.not_built_while_tracing(self.name)
        if self.overload is None:
            return self._refer(arguments, package.STATE.why)
        return self.overload(*arguments)

    def _refer(self, arguments: Sequence[Any], reason: str) -> Tensor:
        """Runs the reference outside of the op, so that PyTorch sees and differentiates its parts."""
        if not torch.compiler.is_compiling():
            fallback.warn(self, arguments, reason)
        return fallback.compute(self, arguments[:-1])

    def positional(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """A call of the op, however it was written, as tensors, scalars and attributes in order."""
        names = [*self.tensors, *self.scalars, *self.attributes]
        rest = [named[n] if n in named else self.attributes.get(n) for n in names[len(arguments) :]]
        return [*arguments, *rest]

    def split(self, arguments: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """(tensors, scalars, attributes) of a call's arguments."""
        tensors, scalars = len(self.tensors), len(self.scalars)
        end = tensors + scalars + len(self.attributes)
        return arguments[:tensors], arguments[tensors : tensors + scalars], arguments[tensors + scalars : end]


def _needs_grad(tensors: Sequence[Tensor | None]) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _has_tangent(tensors: Sequence[Tensor | None]) -> bool:
    # Forward mode (torch.func.jvp too) asks for no gradient, and torch.no_grad() does not end it.
    return any(tensor is not None and unpack_dual(tensor).tangent is not None for tensor in tensors)
