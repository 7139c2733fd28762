# SPDX-License-Identifier: Apache-2.0
"""One operator of the package: its PyTorch side, and the way from a call to its frozen kernel."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import arguments as arguments_module
from . import build, fallback, package
from .chain import Step
from .derivatives import Layer, layer_of
from .gradient import Differentiable

_PLAIN = {Tensor, torch.nn.Parameter}
_FROZEN_DTYPES = {torch.float32, torch.float16, torch.bfloat16}
# Not public, nor is the level that ``kernel`` asks: a PyTorch without the one has no such transforms, without
# the other every call is looked at closely.
_in_transform: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


@torch.compiler.assume_constant_result
def _traced_for_a_gradient() -> bool:
    """Whether a call that is being traced stands in a transform that takes gradients or tangents: tensors do
    not tell there. Asked while tracing; PyTorch guards what it compiles by these transforms.
    """
    if getattr(forward_ad, "_current_level", -1) >= 0:
        return True
    if not _in_transform():
        return False
    try:
        from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters as active

        return any(level.key().name in ("Grad", "Jvp") for level in active())
    except (ImportError, AttributeError):  # not public: another PyTorch may have it elsewhere
        return True


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
        optional: those of the tensors that may be None.
        vector_shapes: of the tensors that have one axis longer than 1: their shape, -1 for that axis.
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
        check: (tensors, scalars, attributes, precision), as a caller wrote them -> the same, each in its one
            form, or an error that says what is wrong.
        chain: the steps of the epilogue.
        tunable: kind of target -> dtypes in which some template has a kernel; empty: not known.
        overload: the registered op; None until the extension is loaded.
        traced: the same with a gradient.
    """

    name: str
    tensors: Sequence[str]
    own_tensor_count: int
    optional: Sequence[str]
    vector_shapes: Mapping[str, tuple[int, ...]]
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
    check: Callable[..., tuple[Any, ...]]
    chain: Sequence[Step] = ()
    tunable: Mapping[str, Sequence[str]] = field(default_factory=dict)
    reducing: ReducingChain | None = None
    overload: Any = field(default=None, init=False)
    traced: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        package.OPERATORS[self.name] = self

    @functools.cached_property
    def layer(self) -> Layer | None:
        """How gradients are found without a second forward; None where they take one."""
        return layer_of(self)

    @property
    def function(self) -> Callable[..., Tensor]:
        """The operator as the package offers it."""
        return getattr(sys.modules[f"{build.PACKAGE}.operators.{self.name}"], self.name)

    def kernel(self, first: Tensor, *others: Tensor | None) -> Any:
        """The op that answers a plain call of these tensors. None where something is unusual (a subclass, a
        dtype, a device, a mode), so that ``__call__`` has to look closer; whether shapes fit, the op itself
        finds out. Every call pays for this: it is kept to a microsecond.
        """
        if self.overload is None or not package.STATE.ready:
            return None
        if getattr(forward_ad, "_current_level", 0) >= 0 or torch.compiler.is_compiling():
            return None
        if type(first) not in _PLAIN or first.dtype not in _FROZEN_DTYPES:
            return None
        on_cpu, needs_grad = first.is_cpu, first.requires_grad
        if not on_cpu and not first.is_cuda:
            return None
        for tensor in others:
            if tensor is None:
                continue
            if type(tensor) not in _PLAIN or not (tensor.is_cpu if on_cpu else tensor.is_cuda):
                return None
            needs_grad = needs_grad or tensor.requires_grad
        if not (needs_grad and torch.is_grad_enabled()):
            return self.overload
        return None if _in_transform() else self.differentiable

    def __call__(self, *arguments: Any) -> Tensor:
        """Runs checked arguments: tensors, scalars, attributes, precision."""
        tensors = arguments[: len(self.tensors)]
        compiling = torch.compiler.is_compiling()
        needs_grad = torch.is_grad_enabled() and _needs_grad(tensors)
        if not compiling and _has_tangent(tensors):
            return self._refer(arguments, fallback.TANGENT)
        if compiling and _traced_for_a_gradient():
            return self._refer(arguments, fallback.TRANSFORM)
        if needs_grad and not compiling and _in_transform():
            return self._refer(arguments, fallback.TRANSFORM)
        if not package.STATE.ready:
            if not compiling:
                package.prepare()
            elif self.overload is None:
                raise package.not_built_while_tracing(self.name)
        if self.overload is None:
            return self._refer(arguments, package.STATE.why)
        if compiling:
            return (self.traced if needs_grad else self.overload)(*arguments)
        try:
            return (self.differentiable if needs_grad else self.overload)(*arguments)
        except RuntimeError as error:
            raise fallback.cause_of(error) from None

    def differentiable(self, *arguments: Any) -> Tensor:
        """What an eager call takes that needs a gradient."""
        if arguments_module.autocasts(arguments[0]):
            count = len(self.tensors)
            arguments = (*fallback.widened(arguments[:count]), *arguments[count:])
        return Differentiable.apply(self, *arguments)  # type: ignore[return-value]

    def checks_more(self, tensor: Tensor) -> bool:
        """Whether there may be kernels now, where a call of such a tensor found none that was verified."""
        return package.check_more(self, tensor)

    cause_of = staticmethod(fallback.cause_of)

    def _refer(self, arguments: Sequence[Any], reason: str) -> Tensor:
        """Runs the reference outside of the op, so that PyTorch sees and differentiates its parts."""
        if not torch.compiler.is_compiling():
            fallback.warn(self, arguments, reason)
            if package.STATE.extension is not None:
                package.STATE.extension.forget_last()
        count = len(self.tensors)
        return fallback.compute(self, [*fallback.widened(arguments[:count]), *arguments[count:-1]])

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
    return any(
        tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
    )
