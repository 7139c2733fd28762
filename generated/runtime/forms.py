# SPDX-License-Identifier: Apache-2.0
"""The ways in which PyTorch programs write a step, as one form: a word and its arguments by name.

``torch.div(v, 2)``, ``v / 2`` and ``v.div(2)`` are the word ``div`` with ``value=2``; ``nn.ReLU6()(v)`` is
``clamp`` with ``min=0, max=6``. Words are those of operators' chains, and of the layers they begin with.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn


@dataclass(frozen=True)
class Held:
    """A tensor of a model, by its dotted name."""

    path: str


@dataclass(frozen=True)
class Form:
    """One step.

    Attributes:
        word: what it does.
        arguments: all but the value that it is done to.
    """

    word: str
    arguments: Mapping[str, Any]


_NONE: dict[str, Any] = {}
_LAYER = {"weight": None, "bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_TRANSPOSED = {"weight": None, "bias": None, "stride": 1, "padding": 0, "output_padding": 0} | {
    "groups": 1,
    "dilation": 1,
}
# Word -> its arguments in PyTorch's order, with their defaults.
_PARAMETERS: dict[str, dict[str, Any]] = {
    **{f"conv{n}d": _LAYER for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _TRANSPOSED for n in (1, 2, 3)},
    "linear": {"weight": None, "bias": None},
    **{word: {"value": None} for word in ("add", "sub", "mul", "div", "min", "max")},
    "clamp": {"min": None, "max": None},
    "hardtanh": {"min_val": -1.0, "max_val": 1.0, "inplace": False},
    "leaky_relu": {"negative_slope": 0.01, "inplace": False},
    "elu": {"alpha": 1.0, "inplace": False},
    "gelu": {"approximate": "none"},
    "softplus": {"beta": 1.0, "threshold": 20.0},
    **{word: {"inplace": False} for word in ("relu", "relu6", "silu", "mish", "hardswish", "hardsigmoid")},
    **dict.fromkeys(("sigmoid", "tanh"), _NONE),
    **{word: {"dim": None, "keepdim": False} for word in ("mean", "sum", "logsumexp", "amax", "amin")},
    "adaptive_avg_pool2d": {"output_size": None},
}
CONVOLUTIONS = {f"conv{t}{n}d": n for n in (1, 2, 3) for t in ("", "_transpose")}
"""Word of a layer -> dimensions of its pixels."""
RANKS = {word: n + 2 for word, n in CONVOLUTIONS.items()}
"""Word of a layer -> dimensions of its result."""

_BINARY = {
    operator.add: "add",
    operator.iadd: "add",
    operator.sub: "sub",
    operator.isub: "sub",
    operator.mul: "mul",
    operator.imul: "mul",
    operator.truediv: "div",
    operator.itruediv: "div",
}
_IN_PLACE = {operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.setitem}
_NAMES = {"subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div"} | {
    "minimum": "min",
    "maximum": "max",
    "clip": "clamp",
}
_COMMUTES = {"add", "mul", "min", "max"}
_MODULES: dict[type[nn.Module], str] = {
    nn.Conv1d: "conv1d",
    nn.Conv2d: "conv2d",
    nn.Conv3d: "conv3d",
    nn.ConvTranspose1d: "conv_transpose1d",
    nn.ConvTranspose2d: "conv_transpose2d",
    nn.ConvTranspose3d: "conv_transpose3d",
    nn.Linear: "linear",
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.LeakyReLU: "leaky_relu",
    nn.ELU: "elu",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
    nn.Mish: "mish",
    nn.Hardswish: "hardswish",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Hardtanh: "hardtanh",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.Softplus: "softplus",
    nn.AdaptiveAvgPool2d: "adaptive_avg_pool2d",
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def form_of(node: fx.Node, value: fx.Node | None, modules: Mapping[str, nn.Module]) -> Form | None:
    """The node as a step on ``value``; on its first argument when None. None where it is no known step.

    Args:
        modules: those that the graph calls, by name.
    """
    if node.op == "call_module":
        given = [*node.args, *node.kwargs.values()]  # a second one is the size of a transposed convolution
        if len(given) != 1 or set(node.kwargs) - {"input"} or (value is not None and given[0] is not value):
            return None
        return _module_form(str(node.target), modules[str(node.target)])
    word = _word(node)
    if word is None or word not in _PARAMETERS:
        return None
    first, rest = (node.args[0], list(node.args[1:])) if node.args else (None, [])
    named = dict(node.kwargs)
    if first is None and "input" in named:
        first = named.pop("input")
    if value is not None and first is not value:
        if word not in _COMMUTES or len(rest) != 1 or rest[0] is not value:
            return None
        rest = [first]
    if "other" in named and "value" in _PARAMETERS[word]:
        named["value"] = named.pop("other")
    return _plain(word, rest, named)


def changes_in_place(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether the node writes into what it is given, as far as PyTorch's names and options tell."""
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    inplace = (name.endswith("_") and not name.endswith("__")) or node.target in _IN_PLACE
    return inplace or bool(node.kwargs.get("inplace")) or "out" in node.kwargs


def _word(node: fx.Node) -> str | None:
    if node.op == "call_method":
        name = str(node.target).rstrip("_")
    elif node.op == "call_function" and node.target in _BINARY:
        return _BINARY[node.target]  # type: ignore[index]
    elif node.op == "call_function" and _is_torch(node.target):
        name = node.target.__name__.rstrip("_")  # type: ignore[union-attr]
    else:
        return None
    return None if name in ("min", "max") else _NAMES.get(name, name)  # these two reduce as well


def _is_torch(target: Any) -> bool:
    """Whether a function is PyTorch's own of its name."""
    name = getattr(target, "__name__", "")
    return any(getattr(place, name, None) is target for place in (torch, F, torch.special)) if name else False


def calls_its_class_alone(module: nn.Module) -> bool:
    """Whether a call of the module is its class's ``forward`` alone: no hooks, and none set on it."""
    return "forward" not in vars(module) and not any(getattr(module, hooks, None) for hooks in _HOOKS)


def why_no_step(module: nn.Module, words: Collection[str]) -> str:
    """Why a layer, whose kind is one of the words, is no step; empty where it is one, or of another kind."""
    kind = next((known for known in type(module).__mro__ if known in _MODULES), None)
    if kind is None or _MODULES[kind] not in words or _module_form("", module) is not None:
        return ""
    if not calls_its_class_alone(module):
        return f"this {kind.__name__} has hooks, or a forward that was set on it"
    if type(module) is not kind:
        return f"it is a {kind.__name__} of a class of its own ({type(module).__name__})"
    return f"this {kind.__name__} pads otherwise than with zeros"


_PURE = {
    "getattr",
    "getitem",
    "size",
    "dim",
    "numel",
    "view",
    "reshape",
    "flatten",
    "permute",
    "transpose",
    "cat",
}


def is_known(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether the node is known to change nothing but its result, but for what `changes_in_place` tells."""
    if node.op in ("get_attr", "placeholder", "output"):
        return True
    if node.op == "call_module":
        module = modules[str(node.target)]
        return type(module).__module__.startswith("torch.nn.") and calls_its_class_alone(module)
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        return node.target in _BINARY or _is_torch(node.target) or name in _PURE
    return isinstance(getattr(torch.Tensor, str(node.target), None), Callable)


def _module_form(path: str, module: nn.Module) -> Form | None:
    """The step of a layer. One that does more, or of a class of its own, may do anything."""
    word = _MODULES.get(type(module))
    if word is None or not calls_its_class_alone(module):
        return None
    if getattr(module, "padding_mode", "zeros") != "zeros":
        return None
    named = {}
    for name in _PARAMETERS[word]:
        value = getattr(module, name, None)
        named[name] = Held(f"{path}.{name}") if isinstance(value, torch.Tensor) else value
    return _plain(word, [], named)


def _plain(word: str, rest: Sequence[Any], named: Mapping[str, Any]) -> Form | None:
    """The step with every argument, under the one word of those that mean the same."""
    parameters = _PARAMETERS[word]
    if len(rest) > len(parameters) or set(named) - set(parameters):
        return None
    given = {**parameters, **dict(zip(parameters, rest, strict=False)), **named}
    given.pop("inplace", None)
    rewrite = _REWRITES.get(word)
    form = rewrite(given) if rewrite else Form(word, given)
    if form is None or form.word not in CONVOLUTIONS:
        return form
    count = CONVOLUTIONS[form.word]
    sizes = {n: (v,) * count if isinstance(v, int) and n != "groups" else v for n, v in given.items()}
    return Form(form.word, sizes)


def _clamp(given: Mapping[str, Any]) -> Form | None:
    low, high = given["min"], given["max"]
    if low is None or high is None:
        return Form("min", {"value": high}) if low is None else Form("max", {"value": low})
    return Form("clamp", {"min": low, "max": high})


def _pooled(given: Mapping[str, Any]) -> Form | None:
    whole = given["output_size"] in (1, (1, 1), [1, 1])
    return Form("mean", {"dim": (2, 3), "keepdim": True}) if whole else None


def _reduced(word: str) -> Callable[[Mapping[str, Any]], Form | None]:
    def form(given: Mapping[str, Any]) -> Form | None:
        dims = given["dim"]
        dims = (dims,) if isinstance(dims, int) else dims
        if not isinstance(dims, list | tuple):
            return None
        return Form(word, {"dim": tuple(dims), "keepdim": given["keepdim"]})

    return form


def _gelu(given: Mapping[str, Any]) -> Form | None:
    word = {"none": "gelu", "tanh": "gelu_tanh"}.get(given["approximate"])
    return Form(word, {}) if word else None


_REWRITES: dict[str, Callable[[Mapping[str, Any]], Form | None]] = {
    "clamp": _clamp,
    "relu6": lambda given: Form("clamp", {"min": 0.0, "max": 6.0}),
    "hardtanh": lambda given: Form("clamp", {"min": given["min_val"], "max": given["max_val"]}),
    "gelu": _gelu,
    "adaptive_avg_pool2d": _pooled,
    **{word: _reduced(word) for word in ("mean", "sum", "logsumexp", "amax", "amin")},
}
