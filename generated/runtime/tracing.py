# SPDX-License-Identifier: Apache-2.0
"""A module's ``forward`` as a graph, or why it cannot be one without changing what it means."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from .module import FrozenModule


class Untraceable(Exception):
    """A forward that no graph stands for; the message says why."""


def trace(module: nn.Module, functions: Sequence[Callable[..., Any]]) -> fx.Graph:
    """The module's forward, the same in training and in evaluation.

    Args:
        functions: of the package; a forward that calls one keeps the call.

    Raises:
        Untraceable: it branches on its inputs or on ``self.training``, sets a mode, has hooks, or fails.
    """
    if any(
        getattr(module, hooks, None) for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    ):
        raise Untraceable("it has hooks")
    with _flags_kept(module):
        graphs = [_traced(module.train(mode), functions) for mode in (True, False)]
    if graphs[0].python_code("self").src != graphs[1].python_code("self").src:
        raise Untraceable("its forward depends on self.training")
    return graphs[0]


@contextlib.contextmanager
def _flags_kept(module: nn.Module) -> Iterator[None]:
    flags = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in flags:
            part.training = training


def _traced(module: nn.Module, functions: Sequence[Callable[..., Any]]) -> fx.Graph:
    try:
        return _Tracer(functions).trace(module)
    except Untraceable:
        raise
    except Exception as error:  # a forward may do anything with what is no tensor
        first = str(error).splitlines() or [""]
        raise Untraceable(f"its forward cannot be traced: {type(error).__name__}: {first[0]}") from None


def _modes() -> tuple[bool, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )


class _Tracer(fx.Tracer):
    """Stops where the graph would lose something: a mode that the forward sets is not part of it."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        super().__init__(autowrap_functions=tuple(functions))
        self.modes = _modes()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Frozen modules and those with hooks are called, as PyTorch's own."""
        hooked = bool(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks)
        return isinstance(m, FrozenModule) or hooked or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *arguments: Any, **named: Any) -> fx.Node:
        """A node of the graph."""
        if _modes() != self.modes:
            raise Untraceable("its forward sets autocast or whether gradients are taken")
        return super().create_node(*arguments, **named)
