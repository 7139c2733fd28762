# SPDX-License-Identifier: Apache-2.0
"""What PyTorch is told of an operator beside its kernels: shapes, autocast, vmap, gradients.

Three ops of the package's namespace stand behind each operator:

* ``<op>``: the frozen kernels, in C++. It has no gradient: one registered in Python was seen to add 4 to
  11 us to every call, whether a gradient is needed or not.
* ``<op>_autograd``: the same with a gradient. The wrapper calls it where one is needed and the call is
  traced; an eager call takes `gradient.Differentiable`.
* ``<op>_reference``: the answer in PyTorch, called by the first where no kernel fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import fallback, gradient
from .namespace import NAMESPACE

if TYPE_CHECKING:
    from .frozen import FrozenOp

_libraries: list[Any] = []  # registrations last as long as these objects


def register(op: FrozenOp) -> None:
    """Registers an operator whose extension is loaded, and gives it its overloads."""
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    _libraries.append(library)
    plain, own, reference = op.name, f"{op.name}_autograd", f"{op.name}_reference"
    kernel = _overload(plain)
    schema = str(kernel._schema).removeprefix(f"{NAMESPACE}::{plain}")
    library.define(own + schema)
    library.impl(own, lambda *a, **k: kernel(*a, **k), "CompositeExplicitAutograd")
    library.impl(reference, lambda *a: fallback.answer(op, *a), "CompositeExplicitAutograd")
    for name in (plain, own, reference):
        torch.library.register_fake(f"{NAMESPACE}::{name}", _fake(op), lib=library)
    for name in (plain, own):
        overload = _overload(name)
        for device in ("cpu", "cuda"):
            library.impl(name, _autocast(op, overload, device), f"Autocast{device.upper()}")
        torch.library.register_vmap(f"{NAMESPACE}::{name}", _vmap(overload), lib=library)
    torch.library.register_autograd(
        f"{NAMESPACE}::{own}",
        lambda ctx, grad: gradient.backward(ctx, op, ctx.needs_input_grad, grad),
        setup_context=lambda ctx, inputs, output: gradient.keep(ctx, op, inputs, output),
        lib=library,
    )
    op.overload, op.traced = kernel, _overload(own)


def _overload(name: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _fake(op: FrozenOp) -> Callable[..., Tensor]:
    def fake(*arguments: Any, **named: Any) -> Tensor:
        tensors, _, attributes = op.split(op.positional(arguments, named))
        return tensors[0].new_empty(op.output_shape(op.sizes(*tensors, *attributes)))

    return fake


def _autocast(op: FrozenOp, overload: Any, device: str) -> Callable[..., Tensor]:
    """Under autocast tensors may come in several dtypes, from layers that lower the precision and layers that
    do not. A frozen kernel answers in the widest of them: never in a lower precision than it was given.
    """

    def autocast(*arguments: Any, **named: Any) -> Tensor:
        tensors, rest = arguments[: len(op.tensors)], arguments[len(op.tensors) :]
        with torch.autocast(device, enabled=False):
            return overload(*fallback.widened(tensors), *rest, **named)

    return autocast


def _vmap(overload: Any) -> Callable[..., tuple[Tensor, int]]:
    """One call for each element: what a call reads and writes along an axis only its operator knows."""

    def vmap(info: Any, in_dims: Sequence[Any], *arguments: Any, **named: Any) -> tuple[Tensor, int]:
        # The dimension of an argument that is a list is a list of None.
        pairs = [
            (a, dim if isinstance(dim, int) else None) for a, dim in zip(arguments, in_dims, strict=True)
        ]
        outputs = [
            overload(*(a if dim is None else a.select(dim, i) for a, dim in pairs), **named)
            for i in range(info.batch_size)
        ]
        if not outputs:  # an element of zeros tells their shape
            one = overload(
                *(a if d is None else a.new_zeros(a.shape[:d] + a.shape[d + 1 :]) for a, d in pairs), **named
            )
            return one.new_empty((0, *one.shape)), 0
        return torch.stack(outputs), 0

    return vmap
