# SPDX-License-Identifier: Apache-2.0
"""A module's ``forward`` as a graph, or why it cannot be one without changing what it means."""

from __future__ import annotations

import ctypes
import inspect
import pickle
import random
import sys
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from .forms import calls_its_class_alone
from .module import FrozenModule
from .rewritten import twin_of
from .unseen import asked_of_arguments, functions_of, given_names, of_the_moment, refusing

OWNER = "coldforge_owner"
"""In a node's ``meta``: the path of the module whose own forward it stands in."""
_LOCK = threading.RLock()
"""A trace of torch.fx changes ``torch.nn.Module`` for every thread as long as it lasts."""
_TRIES = 3
_CONSTANT = "_tensor_constant"
"""How fx names a tensor that no attribute of the module is."""
_STATE_HOOKS = (
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
_STATE_METHODS = (
    *("state_dict", "load_state_dict", "_save_to_state_dict", "_load_from_state_dict"),
    *("get_extra_state", "set_extra_state"),
)


class Untraceable(Exception):
    """A forward that no graph stands for; the message says why.

    Attributes:
        inside: whether its submodules may be looked at one by one.
    """

    def __init__(self, why: str, *, inside: bool = True) -> None:
        super().__init__(why)
        self.inside = inside


def trace(module: nn.Module) -> fx.Graph:
    """The module's forward, the same in training and in evaluation. Where it calls a frozen operator, of this
    package or of another one, the call is kept.

    Raises:
        Untraceable: it branches on its inputs or on ``self.training``, sets a mode, draws random numbers,
            makes tensors, keeps something on the module, has hooks or a state of its own, or fails.
    """
    _refuse_what_a_graph_lacks(module)
    with _LOCK:
        graphs = [_traced_as_it_is(module, mode) for mode in (True, False)]
    if graphs[0].python_code("self").src != graphs[1].python_code("self").src:
        raise Untraceable("its forward depends on self.training")
    return graphs[0]


def _refuse_what_a_graph_lacks(module: nn.Module) -> None:
    """Raises Untraceable for what a module may have that a graph of its forward has not."""
    if "forward" in vars(module):  # what stands there may hold the submodules as they are
        raise Untraceable("its forward was set on it, and is not that of its class", inside=False)
    if not calls_its_class_alone(module) or any(getattr(module, hooks, None) for hooks in _STATE_HOOKS):
        raise Untraceable("it has hooks")
    kind = type(module)
    if why := of_the_moment(kind):
        raise Untraceable(why)
    if any(getattr(kind, name, None) is not getattr(nn.Module, name, None) for name in _STATE_METHODS):
        raise Untraceable("its class keeps a state of its own in a state dict")
    if kind.__call__ is not nn.Module.__call__ and not isinstance(module, fx.GraphModule):
        raise Untraceable("a call of its class is more than its forward")
    try:
        parameters = inspect.signature(getattr(kind, "forward", nn.Module.forward)).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    for parameter in parameters:
        if parameter.default is None:
            raise Untraceable(f"its forward has {parameter.name}=None, and a graph cannot ask whether it is")
    for question in asked_of_arguments(kind).values():
        raise Untraceable(f"its forward asks {question}, which a graph cannot")


def _traced_as_it_is(module: nn.Module, training: bool) -> fx.Graph:
    """One trace that leaves no mark: neither on the module, which other threads may be calling, nor on the
    generators of random numbers.
    """
    stand_in = _stand_in(module, training)
    before = [(part, _held(part)) for part in stand_in.modules()]
    first, draws = _Generators(), True
    for _ in range(_TRIES):
        generators = _Generators()
        try:
            graph = _traced(stand_in)
            made = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
            changed = any(_changed(part, held) for part, held in before)
        except BaseException:
            if generators.moved():
                generators.set_back()
            raise
        finally:
            for part, held in before:
                _restore(part, held)
        draws = generators.moved()
        if not draws:  # what moved them before was another thread
            break
    if draws:
        first.set_back()
        raise Untraceable("its forward draws random numbers")
    if any(name.startswith(_CONSTANT) and not hasattr(module, name) for name in made):
        raise Untraceable("its forward makes tensors of its own")
    if changed:
        raise Untraceable("its forward keeps something on the module")
    return graph


def _stand_in(module: nn.Module, training: bool) -> nn.Module:
    """The module and its submodules once more, on the same parameters."""
    twins = {part: twin_of(part, training=training) for part in module.modules()}
    for twin in twins.values():
        twin._modules = {name: part and twins[part] for name, part in twin._modules.items()}
    return twins[module]


class _Generators:
    """The states of the generators of random numbers that a forward may draw from."""

    def __init__(self) -> None:
        self.numbers, self.tensors = random.getstate(), torch.get_rng_state()
        numpy = sys.modules.get("numpy")
        self.drawn, self.arrays = _bytes(self.tensors), numpy and numpy.random.get_state()

    def moved(self) -> bool:
        """Whether one of them moved on."""
        now = _Generators()
        return self._compared() != now._compared()

    def _compared(self) -> tuple[Any, ...]:
        return self.numbers, self.drawn, pickle.dumps(self.arrays)

    def set_back(self) -> None:
        """Makes them draw again what they drew since."""
        random.setstate(self.numbers)
        torch.set_rng_state(self.tensors)
        if self.arrays is not None:
            sys.modules["numpy"].random.set_state(self.arrays)


def _bytes(state: torch.Tensor) -> bytes:
    """What a generator's state is. No op reads it: there may be fake tensors about."""
    return ctypes.string_at(state.data_ptr(), state.numel())


def _held(part: nn.Module) -> dict[str, tuple[Any, Any]]:
    """What stands on a module: name -> the value, and of a container a copy of what is in it."""
    kinds = (list, dict, set)
    return {
        name: (value, next((kind(value) for kind in kinds if isinstance(value, kind)), None))
        for name, value in vars(part).items()
    }


def _content(value: Any) -> list[int]:
    """Which objects a container holds, in order."""
    return [id(item) for item in (*value, *(value.values() if isinstance(value, dict) else ()))]


def _changed(part: nn.Module, held: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """The names of what stands there otherwise than it did."""
    now = vars(part)
    names = [name for name in now if name not in held]
    for name, (value, content) in held.items():
        if now.get(name, held) is not value or (content is not None and _content(value) != _content(content)):
            names.append(name)
    return names


def _restore(part: nn.Module, held: Mapping[str, tuple[Any, Any]]) -> None:
    for name in _changed(part, held):
        if name not in held:
            del vars(part)[name]
            continue
        value, content = held[name]
        vars(part)[name] = value
        if isinstance(value, list):
            value[:] = content
        elif content is not None:
            value.clear()
            value.update(content)


def _traced(module: nn.Module) -> fx.Graph:
    kinds = {type(part) for part in module.modules()}
    functions = [function for kind in kinds for function in functions_of(kind)]
    why = Untraceable("its forward asks of what kind an input is, which a graph cannot")
    try:
        with refusing(functions, _Proxy, why):
            return _Tracer().trace(module)
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


class _Proxy(fx.Proxy):
    """A stand-in that is no key: a mapping would not find what it holds for a value."""

    def __hash__(self) -> int:
        raise Untraceable("its forward looks something up by the value of an input")


class _Tracer(fx.Tracer):
    """Stops where the graph would lose something: a mode that the forward sets is not part of it. What is
    computed from buffers is, as it is from parameters.
    """

    proxy_buffer_attributes = True

    def __init__(self) -> None:  # without arguments: unpickling a graph makes one too
        super().__init__()
        self.modes = _modes()
        self.thread = threading.get_ident()
        self.owners: list[str] = []

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a submodule; one of another thread is none of this trace."""
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        path = self.path_of_module(m)
        if self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        if why := of_the_moment(type(m)):
            raise Untraceable(why)
        given = given_names(m.forward, args, kwargs, fx.Proxy)
        for name, question in asked_of_arguments(type(m)).items():
            if name in given:
                raise Untraceable(f"its forward asks {question}, which a graph cannot")
        self.owners.append(path)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self.owners.pop()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """What a module has of that name, as a stand-in where it is traced."""
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """What stands for a node's value."""
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Frozen modules and those that do more than their class are called, as PyTorch's own."""
        called = isinstance(m, FrozenModule) or not calls_its_class_alone(m)
        return called or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *arguments: Any, **named: Any) -> fx.Node:
        """A node of the graph."""
        if _modes() != self.modes:
            raise Untraceable("its forward sets autocast or whether gradients are taken")
        node = super().create_node(*arguments, **named)
        node.meta[OWNER] = self.owners[-1] if self.owners else ""
        return node
