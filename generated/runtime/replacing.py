# SPDX-License-Identifier: Apache-2.0
"""Puts frozen operators into a model: finds what they compute (torch.fx) and calls them instead."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from . import fallback, manifest, package
from .arguments import PRECISIONS
from .forms import Held, calls_its_class_alone, changes_in_place, is_known, why_no_step
from .module import FrozenModule
from .patterns import Match, Matcher
from .rewritten import rebuilt, twin_of
from .tracing import OWNER, Untraceable, trace

if TYPE_CHECKING:
    from .frozen import FrozenOp

_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Replaced:
    """A place where a frozen operator is called now.

    Attributes:
        operator: its name.
        where: what it stands for, in the model's own names.
        devices: for which there is a frozen kernel of these shapes; elsewhere PyTorch's reference answers.
    """

    operator: str
    where: tuple[str, ...]
    devices: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.operator} for {', '.join(self.where)} (frozen for {', '.join(self.devices) or 'none'})"


@dataclass(frozen=True)
class Left:
    """A place that stays as it was, with the reason."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where} stays: {self.why}"


@dataclass
class Replacements:
    """What became of a model: ``print`` shows it."""

    replaced: list[Replaced] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} replaced, {len(self.left)} left"]
        return "\n".join([*lines, *(f"  {item}" for item in (*self.replaced, *self.left))])


def replace(module: nn.Module, *, uncovered: bool = False) -> nn.Module:
    """The model with frozen operators in place of the layers and functions that compute the same.

    What an operator looks like follows from its declaration; it is found as layers of ``torch.nn``, as
    functions, as methods and as arithmetic, in one ``forward`` or over several modules. Parameters stay where
    they are, shared with ``module``: a state dict, an optimizer and ``train``/``eval`` go on as before.
    Results are equal within the error class of the kernels; gradients too.

    A ``forward`` is left alone where tracing could change its meaning: where it branches on values, on
    ``self.training`` or on whether an argument is None, sets autocast or gradients itself, makes tensors,
    draws random numbers or keeps something on the module; then its submodules are looked at one by one.

    Args:
        module: the model; it is not changed.
        uncovered: also where no frozen kernel covers the shapes, so that PyTorch's reference answers.

    Returns:
        A new module; its attribute ``replacements`` (``Replacements``) says what was replaced and what was
        not, and why. A module in whose ``forward`` something was replaced is a copy with a forward of its
        own: what it does follows no later change of the original, or of what its forward calls. It is of a
        class derived from the old one's; a ``Sequential`` is a ``fx.GraphModule`` now, unless all lies inside
        of its parts.

    Raises:
        TypeError: ``module`` is no module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    work = _Work(uncovered)
    result = work.module(module, "")
    if result is module:
        result = twin_of(module)
    result.replacements = work.report  # type: ignore[assignment]
    return result


class _Work:
    """One call of ``replace``."""

    def __init__(self, uncovered: bool) -> None:
        self.uncovered = uncovered
        self.report = Replacements()
        self.entries: Sequence[Mapping[str, Any]] = manifest.load().entries
        self.done: dict[nn.Module, nn.Module] = {}

    def module(self, module: nn.Module, path: str) -> nn.Module:
        """The module with what was found in it replaced; itself when nothing was. One that has several names
        becomes one again.
        """
        if module not in self.done:
            self.done[module] = self._module(module, path)
        return self.done[module]

    def _module(self, module: nn.Module, path: str) -> nn.Module:
        if isinstance(module, FrozenModule):
            return module
        try:
            graph = trace(module)
        except Untraceable as error:
            children = _children_of(module) if error.inside else []
            if children or path == "" or not error.inside:
                self.report.left.append(Left(path or type(module).__name__, str(error)))
            return self._children(module, children, path)
        whole = self.report
        self.report = Replacements()
        rewriting = _Graph(self, module, graph, path)
        rewriting.rewrite()
        own, self.report = self.report, whole
        if own.replaced and "" not in rewriting.owners:
            inside = self._inside(module, path, own)
            if inside is not None:
                return inside
        self.report.replaced += own.replaced
        self.report.left += own.left
        if not own.replaced:
            return module
        graph.lint()
        return rebuilt(module, graph)

    def _inside(self, module: nn.Module, path: str, own: Replacements) -> nn.Module | None:
        """The module with its submodules rewritten one by one, where that finds as much as its own graph
        does: so it stays what it is. None where it does not.
        """
        whole, done = self.report, dict(self.done)
        self.report = Replacements()
        result = self._children(module, _children_of(module), path)
        found, self.report = self.report, whole
        if len(found.replaced) < len(own.replaced):
            self.done = done
            return None
        self.report.replaced += found.replaced
        # Each place once; those of the module's own forward are no submodule's.
        left = {item.where: item for item in (*found.left, *own.left)}
        self.report.left += left.values()
        return result

    def _children(self, module: nn.Module, children: Sequence[tuple[str, nn.Module]], path: str) -> nn.Module:
        changed = {}
        for name, child in children:
            new = self.module(child, f"{path}.{name}" if path else name)
            if new is not child:
                changed[name] = new
        if not changed:
            return module
        return twin_of(module, _modules={**module._modules, **changed})


class _Graph:
    """The rewriting of one traced module."""

    def __init__(self, work: _Work, module: nn.Module, graph: fx.Graph, path: str) -> None:
        self.work, self.root, self.graph, self.path = work, module, graph, path
        self.modules = dict(module.named_modules())
        self.done: set[fx.Node] = set()
        self.owners: set[str] = set()

    def rewrite(self) -> None:
        """Replaces every place where an operator begins, the operator of most steps first."""
        matchers = list(self._matchers())
        for node in list(self.graph.nodes):
            if node in self.done or node.op in ("placeholder", "get_attr", "output"):
                continue
            if node.op == "call_module" and (why := self._not_looked_at(str(node.target), matchers)):
                self.work.report.left.append(Left(self._where(node), why))
            begins = [m for m in matchers if m.begins(node)]
            reasons = [self._try(m, node) for m in begins if node not in self.done]
            if reasons and node not in self.done:
                why = "; ".join(dict.fromkeys(reason for reason in reasons if reason))
                self.work.report.left.append(Left(self._where(node), why))

    def _not_looked_at(self, target: str, matchers: Sequence[Matcher]) -> str:
        """Why a module that is called is no step, though it may hold some or is a layer that operators begin
        with; empty where it is one, or has nothing to do with any.
        """
        module = self.modules[target]
        if not calls_its_class_alone(module) and next(module.children(), None) is not None:
            return "it is called as a whole: it has hooks, or a forward that was set on it"
        firsts = {matcher.steps[0].form.word for matcher in matchers}
        return why_no_step(module, firsts) if isinstance(module, nn.Module) else ""

    def _matchers(self) -> Iterator[Matcher]:
        found = []
        for op in package.OPERATORS.values():
            try:
                found.append(Matcher(op, self.modules, self.tensor_of))
            except ValueError as error:
                self.work.report.left.append(Left(op.name, str(error)))
        return iter(sorted(found, key=lambda m: -len(m.steps)))

    def _try(self, matcher: Matcher, node: fx.Node) -> str:
        match = matcher.match(node)
        if isinstance(match, str):
            return match
        if why := self._unfit(matcher.op, match) or self._disturbed(match):
            return why
        devices = self._devices(matcher.op, match)
        if not devices and not self.work.uncovered:
            return f"no frozen {matcher.op.name} has {self._shapes(matcher.op, match)}"
        if not devices and (name := self._lonely(match)):
            return f"{name} has one element, so how many channels it is for is not known"
        where = tuple(self._where(n) for n in match.nodes)
        self.owners.add(_common_owner(match.nodes))
        self._put(matcher.op, match)
        self.work.report.replaced.append(Replaced(matcher.op.name, where, devices))
        return ""

    def _unfit(self, op: FrozenOp, match: Match) -> str:
        """Why the operator cannot stand there, whatever is frozen; empty when it can."""
        tensors = {name: self.tensor_of(match.bound[name]) for name in op.tensors[1:]}
        dtypes = {t.dtype for t in tensors.values() if t is not None}
        if len(dtypes) > 1:
            return f"its tensors are of several dtypes: {', '.join(sorted(map(str, dtypes)))}"
        if dtypes and not dtypes & set(_DTYPES):
            return f"its tensors are of {dtypes.pop()}, and kernels compute in float32, float16 or bfloat16"
        for user in match.nodes[-1].users:
            if changes_in_place(user, self.modules) and op.layer is not None and op.layer.reads_result:
                return f"{user.name} changes its result in place, which the gradient of {op.name} reads"
        return ""

    def _disturbed(self, match: Match) -> str:
        """What between the first step and the last may change what the first one reads: the operator reads it
        where the last one stands. Empty when nothing does.
        """
        nodes = list(self.graph.nodes)
        for node in nodes[nodes.index(match.nodes[0]) : nodes.index(match.nodes[-1])]:
            known = is_known(node, self.modules) and not changes_in_place(node, self.modules)
            if node not in match.nodes and not known:
                return f"{self._where(node)}, between its steps, may change what it reads"
        return ""

    def _lonely(self, match: Match) -> str:
        """A channel vector that would be stretched over the channels; empty when there is none."""
        given = {name: self.tensor_of(match.bound[name]) for name in match.broadcast}
        return next(
            (name for name, tensor in given.items() if tensor is not None and tensor.numel() == 1), ""
        )

    def _devices(self, op: FrozenOp, match: Match) -> tuple[str, ...]:
        """What kernels of these parameters are frozen for, in the error class of their dtype."""
        weight = self.tensor_of(match.bound[op.tensors[1]]) if len(op.tensors) > 1 else None
        found = [
            str(entry["target"]["arch"])
            for entry in self.work.entries
            if entry["operator"] == op.name
            and (weight is None or entry["dtype"] == _DTYPES.get(weight.dtype))
            and PRECISIONS[entry["precision"]] <= PRECISIONS[entry["dtype"]]
            and all(list_of(match.bound[n]) == list_of(value) for n, value in entry["attributes"].items())
            and any(entry["checks"])
            and all(self._fits(op, match, n, entry["checks"][0].get(n)) for n in op.tensors[1:])
        ]
        return tuple(dict.fromkeys(found))

    def _fits(self, op: FrozenOp, match: Match, name: str, shape: Sequence[int] | None) -> bool:
        tensor = self.tensor_of(match.bound[name])
        if tensor is None or shape is None:
            return tensor is None and shape is None
        if name in match.broadcast:
            return tensor.numel() == math.prod(shape)
        return list(tensor.shape) == list(shape)

    def _shapes(self, op: FrozenOp, match: Match) -> str:
        tensors = {name: self.tensor_of(match.bound[name]) for name in op.tensors[1:]}
        said = [f"{name} {list(t.shape) if t is not None else None}" for name, t in tensors.items()]
        said += [
            f"{name} {match.bound[name]}"
            for name, usual in op.attributes.items()
            if match.bound[name] != usual
        ]
        tune = fallback.tune_command_of(op, tensors, {n: match.bound[n] for n in op.attributes})
        commands = f"{tune}, then {fallback.freeze_command(op.name)}"
        return f"{', '.join(said)}; tune one with: {commands}"

    def _put(self, op: FrozenOp, match: Match) -> None:
        """Calls the operator after the last of the matched nodes, and takes these out."""
        first, last = match.nodes[0], match.nodes[-1]
        data = first.args[0] if first.args else first.kwargs["input"]
        with self.graph.inserting_before(last):
            tensors = [data, *(self._argument(op, match, name) for name in op.tensors[1:])]
            scalars = [float(match.bound[name]) for name in op.scalars]
            attributes = {name: match.bound[name] for name in op.attributes}
            new = self.graph.call_function(op.function, (*tensors, *scalars), attributes)
        last.replace_all_uses_with(new)
        for node in reversed(match.nodes):
            self.graph.erase_node(node)
        self.done |= set(match.nodes)

    def _argument(self, op: FrozenOp, match: Match, name: str) -> fx.Node | None:
        given = match.bound[name]
        if given is None:
            return None
        tensor = self.tensor_of(given)
        node = self.graph.get_attr(given.path) if isinstance(given, Held) else given
        if name not in match.broadcast or tensor is None:
            return node
        shape = op.vector_shapes[name]
        flat = tensor.dim() == len(shape) and all(
            a == -1 or a == b for a, b in zip(shape, tensor.shape, strict=True)
        )
        return node if flat else self.graph.call_method("reshape", (node, *shape))

    def tensor_of(self, value: Any) -> Tensor | None:
        """The tensor of the model that a value is in every call."""
        if isinstance(value, Held):
            return _attribute(self.root, value.path)
        if not isinstance(value, fx.Node):
            return None
        if value.op == "get_attr":
            return _attribute(self.root, str(value.target))
        if value.op != "call_method" or value.target not in ("view", "reshape", "unsqueeze", "squeeze"):
            return None
        base = self.tensor_of(value.args[0])
        if base is None or any(isinstance(a, fx.Node) for a in value.args[1:]):
            return None
        return getattr(base, str(value.target))(*value.args[1:], **value.kwargs)

    def _where(self, node: fx.Node) -> str:
        """The node in the model's own names."""
        name = str(node.target) if node.op == "call_module" else node.name
        return f"{self.path}.{name}" if self.path else name


def list_of(value: Any) -> list[Any]:
    """One number or several, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _children_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The submodules, those of several names by each of them."""
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _common_owner(nodes: Sequence[fx.Node]) -> str:
    """The path of the innermost module in which all nodes are."""
    parts = [str(node.meta.get(OWNER, "")).split(".") for node in nodes]
    shared = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def _attribute(root: nn.Module, path: str) -> Tensor | None:
    value: Any = root
    for name in path.split("."):
        value = getattr(value, name, None)
    return value if isinstance(value, Tensor) else None
