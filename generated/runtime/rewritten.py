# SPDX-License-Identifier: Apache-2.0
"""A module that runs a rewritten graph of another one's ``forward``, and is in all else like it."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import fx, nn

_PARTS = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "training", "replacements")
_REGISTERS = [name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set)]
"""What every module registers its parameters, submodules and hooks in."""
_CODE = "_coldforge_code"


def twin_of(module: nn.Module, **parts: Any) -> Any:
    """Another module of the same class, attributes, parameters and submodules. What is hooked to it, set on
    it or added to it is not on the first: it has registers of its own.

    Args:
        parts: attributes that it has otherwise.
    """
    twin = object.__new__(type(module))
    held = dict(vars(module))
    held |= {name: copy.copy(held[name]) for name in _REGISTERS if name in held}
    vars(twin).update({**held, **parts})
    return twin


def rebuilt(module: nn.Module, graph: fx.Graph) -> nn.Module:
    """A module whose ``forward`` is the graph, on the very submodules, parameters and buffers of the old one,
    so that its state dict has the same names in the same order. It has the old one's attributes and methods
    too, and passes for one of its class. A container of a fixed way of running, or a graph, becomes a graph
    module.
    """
    for node in graph.nodes:  # an annotation that is a text cannot be pickled
        node.type = None if isinstance(node.type, str) else node.type
    if isinstance(module, fx.GraphModule | nn.Sequential):
        return _graph_module(module, graph)
    code = graph.python_code("self")
    twin = twin_of(module)
    other = object.__new__(_derived(type(module), code.src, dict(code.globals)))
    vars(other).update(vars(twin))
    return other


def _derived(kind: type[nn.Module], source: str, names: dict[str, Any]) -> type[nn.Module]:
    """A class that is ``kind`` but for its forward.

    Args:
        source: of a function ``forward``.
        names: its globals.
    """
    kind = kind.__mro__[1] if _CODE in vars(kind) else kind  # rewritten once more
    scope = dict(names)
    exec(compile(source, "<a forward rewritten by coldforge>", "exec"), scope)  # fx wrote it
    own = {
        "forward": scope["forward"],
        _CODE: (source, names),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__reduce_ex__": _reduce,
        "__copy__": twin_of,
        "__deepcopy__": _deep_copy,
    }
    make: Any = type(kind)
    return make(kind.__name__, (kind,), own)


def _deep_copy(module: nn.Module, memo: dict[int, Any]) -> Any:
    twin = object.__new__(type(module))
    memo[id(module)] = twin
    vars(twin).update(copy.deepcopy(vars(module), memo))
    return twin


@dataclass(frozen=True)
class _Imported:
    """A module of Python among the globals: pickle takes no modules."""

    name: str


def _reduce(module: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """For pickle: the class is made again where the module is loaded."""
    kind = type(module)
    source, names = vars(kind)[_CODE]
    known = {n: _Imported(v.__name__) if isinstance(v, ModuleType) else v for n, v in names.items()}
    return _unpickled, (kind.__mro__[1], source, known), vars(module)


def _unpickled(kind: type[nn.Module], source: str, known: dict[str, Any]) -> Any:
    found = {n: importlib.import_module(v.name) if isinstance(v, _Imported) else v for n, v in known.items()}
    return object.__new__(_derived(kind, source, found))


class Rewritten(fx.GraphModule):
    """A graph module that stays what it is when it is copied or pickled: those of fx then have all buffers in
    their state dict, or lose what the graph does not read.
    """

    def __copy__(self) -> Rewritten:
        return _with_parts(super().__copy__(), {n: copy.copy(part) for n, part in _parts(self).items()})

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


def _graph_module(module: nn.Module, graph: fx.Graph) -> nn.Module:
    result = Rewritten(module, graph, type(module).__name__)
    # Plain tensors that the forward reads are held, but belong to no state dict.
    plain = {n: t for n, t in result._buffers.items() if n not in module._buffers}
    result._modules, result._parameters = dict(module._modules), dict(module._parameters)
    result._buffers = {**module._buffers, **plain}
    result._non_persistent_buffers_set = {*module._non_persistent_buffers_set, *plain}
    result.training = module.training
    return result
