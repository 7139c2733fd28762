# SPDX-License-Identifier: Apache-2.0
"""A module that runs a rewritten graph of another one's ``forward``, and is in all else like it."""

from __future__ import annotations

import copy
from typing import Any

from torch import fx, nn

_PARTS = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "training", "replacements")


class Rewritten(fx.GraphModule):
    """A graph module that stays what it is when it is copied or pickled: those of fx then have all buffers in
    their state dict.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Rewritten:
        twin: Any = super().__deepcopy__(memo)
        return _with_parts(twin, copy.deepcopy(_parts(self), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        make, given = super().__reduce__()
        return _loaded, (make, given, _parts(self))


def _parts(module: nn.Module) -> dict[str, Any]:
    return {name: vars(module)[name] for name in _PARTS if name in vars(module)}


def _with_parts(module: Any, parts: dict[str, Any]) -> Any:
    vars(module).update(parts)
    return module


def _loaded(make: Any, given: tuple[Any, ...], parts: dict[str, Any]) -> Rewritten:
    plain = make(*given)
    return _with_parts(Rewritten(plain, plain.graph, type(plain).__name__), parts)


def rebuilt(module: nn.Module, graph: fx.Graph) -> nn.Module:
    """A module that runs the graph on the very submodules, parameters and buffers of the old one, so that its
    state dict has the same names in the same order, those that the graph does not read among them.
    """
    for node in graph.nodes:  # an annotation that is a text cannot be pickled
        node.type = None if isinstance(node.type, str) else node.type
    result = Rewritten(module, graph, type(module).__name__)
    # Plain tensors that the forward reads are held, but belong to no state dict.
    plain = {n: t for n, t in result._buffers.items() if n not in module._buffers}
    result._modules, result._parameters = dict(module._modules), dict(module._parameters)
    result._buffers = {**module._buffers, **plain}
    result._non_persistent_buffers_set = {*module._non_persistent_buffers_set, *plain}
    result.training = module.training
    return result
