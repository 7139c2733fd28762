# SPDX-License-Identifier: Apache-2.0
"""What an operator looks like in a model, derived from its reference and its chain, and where it is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx, nn
from torch.fx.proxy import GraphAppendingTracer

from .forms import RANKS, Form, Held, form_of

if TYPE_CHECKING:
    from .frozen import FrozenOp


@dataclass(frozen=True)
class Name:
    """An argument of the operator, where a step reads it."""

    name: str


@dataclass(frozen=True)
class PatternStep:
    """One step that a model must have.

    Attributes:
        form: its arguments are numbers, or names of the operator's arguments.
        vector: the channel vector that it reads; a step of an absent one is left out.
        broadcast: the shape to which the vector is brought.
    """

    form: Form
    vector: str = ""
    broadcast: tuple[int, ...] = ()


@dataclass
class Match:
    """An operator found in a graph.

    Attributes:
        nodes: the steps, in order.
        bound: argument of the operator -> a number, a tuple, a node, a held tensor, or None.
        broadcast: channel vector -> the shape to which the operator brings it.
    """

    nodes: list[fx.Node]
    bound: dict[str, Any] = field(default_factory=dict)
    broadcast: dict[str, tuple[int, ...]] = field(default_factory=dict)


def steps_of(op: FrozenOp) -> list[PatternStep]:
    """The steps of an operator in order.

    Raises:
        ValueError: its reference is not a chain of steps that PyTorch's layers have words for.
    """
    steps = [PatternStep(form) for form in linear_forms(op)]
    for step in op.chain:
        if step.axes:
            steps.append(PatternStep(Form(step.op, {"dim": tuple(step.axes), "keepdim": step.keepdim})))
            continue
        names = {*op.scalars, *op.tensors}
        given = {n: Name(v) if isinstance(v, str) and v in names else v for n, v in step.arguments.items()}
        vector = next((v for v in step.arguments.values() if v in op.tensors), "")
        form = Form(step.op, given)
        if step.op == "hardtanh":
            form = Form("clamp", {"min": given["min_val"], "max": given["max_val"]})
        steps.append(PatternStep(form, str(vector), tuple(step.broadcast)))
    return steps


def linear_forms(op: FrozenOp) -> list[Form]:
    """The family's reference as steps, found by calling it with stand-ins for its arguments.

    Raises:
        ValueError: it is something else.
    """
    graph = _traced(op)
    value, forms = None, []
    for node in graph.nodes:
        if node.op == "placeholder":
            value = value or node
            continue
        if node.op == "output":
            break
        form = form_of(node, value, {})
        if form is None or any(isinstance(v, fx.Node) and v.op != "placeholder" for v in _nodes(form)):
            raise ValueError(f"its reference has a step that no layer is: {node.format_node()}")
        named = {n: Name(str(v.target)) if isinstance(v, fx.Node) else v for n, v in form.arguments.items()}
        forms.append(Form(form.word, named))
        value = node
    if not forms:
        raise ValueError("its reference has no step")
    return forms


def _nodes(form: Form) -> Sequence[Any]:
    return list(form.arguments.values())


def _traced(op: FrozenOp) -> fx.Graph:
    # Not by a tracer: that one changes torch.nn for every thread as long as it traces.
    graph = fx.Graph()
    tracer = GraphAppendingTracer(graph)
    names = [*op.tensors[: op.own_tensor_count], *op.attributes]
    try:
        result: Any = op.linear(*(fx.Proxy(graph.placeholder(name), tracer) for name in names))
        graph.output(result.node)
    except Exception as error:  # whatever a reference of somebody's own does with what is no tensor
        raise ValueError(f"its reference cannot be traced: {type(error).__name__}: {error}") from None
    return graph


class Matcher:
    """Looks for one operator.

    Args:
        op: the operator.
        modules: those that the graph calls, by name.
        tensor_of: a node or a held tensor -> the tensor that it is in every call; None when it is computed
            from the inputs.
    """

    def __init__(
        self,
        op: FrozenOp,
        modules: Mapping[str, nn.Module],
        tensor_of: Callable[[Any], Tensor | None],
    ) -> None:
        self.op, self.modules, self.tensor_of = op, modules, tensor_of
        self.steps = steps_of(op)

    def begins(self, node: fx.Node) -> bool:
        """Whether the node is the operator's first step, whatever follows."""
        form = form_of(node, None, self.modules)
        return form is not None and form.word == self.steps[0].form.word

    def match(self, node: fx.Node) -> Match | str:
        """The operator that begins at the node, or why it does not."""
        self.reason = ""
        found = self._from(0, node, None, Match([]), None)
        return found or self.reason

    def _from(
        self, index: int, node: fx.Node | None, value: fx.Node | None, match: Match, rank: int | None
    ) -> Match | None:
        """The rest of the steps, from ``index`` on, of which ``node`` should be the first."""
        if index == len(self.steps):
            return self._complete(match)
        step = self.steps[index]
        form = None if node is None else form_of(node, value, self.modules)
        if node is not None and form is not None:
            bound = self._bind(step, form, dict(match.bound), rank)
            if isinstance(bound, dict):
                grown = Match([*match.nodes, node], bound, {**match.broadcast})
                if step.vector:
                    grown.broadcast[step.vector] = step.broadcast
                found = self._from(
                    index + 1, _only_user(node), node, grown, RANKS.get(form.word, _after(form, rank))
                )
                if found:
                    return found
            elif not self.reason or index:
                self.reason = bound
        else:
            self.reason = self.reason or self._expected(step, node, value)
        return self._without(index, node, value, match, rank, form)

    def _without(
        self,
        index: int,
        node: fx.Node | None,
        value: fx.Node | None,
        match: Match,
        rank: int | None,
        form: Form | None,
    ) -> Match | None:
        """The same where the step's channel vector is absent, or where a layer without a bias is followed by
        one."""
        step = self.steps[index]
        if step.vector and step.vector in self.op.optional:
            skipped = Match(match.nodes, {**match.bound, step.vector: None}, match.broadcast)
            found = self._from(index + 1, node, value, skipped, rank)
            if found:
                return found
        before = self.steps[index - 1].form.arguments.get("bias") if index else None
        if node is None or form is None or form.word != "add" or not isinstance(before, Name) or rank is None:
            return None
        if match.bound.get(before.name, self) is not None:
            return None
        shape = (1, -1, *[1] * (rank - 2))
        if not self._is_vector(form.arguments["value"], shape):
            return None
        grown = Match(
            [*match.nodes, node],
            {**match.bound, before.name: form.arguments["value"]},
            {**match.broadcast, before.name: shape},
        )
        return self._from(index, _only_user(node), node, grown, rank)

    def _bind(
        self, step: PatternStep, form: Form, bound: dict[str, Any], rank: int | None
    ) -> dict[str, Any] | str:
        """The arguments of the operator that the step gives, or why it is another one."""
        if form.word != step.form.word:
            return f"{form.word} follows where {self.op.name} has {step.form.word}"
        for name, wanted in step.form.arguments.items():
            given = form.arguments[name]
            if name == "dim" and rank is not None:
                given = tuple(sorted(d % rank for d in given))
            why = self._bind_one(wanted, given, bound, step)
            if why:
                return f"{form.word}: {name} {why}"
        return bound

    def _bind_one(self, wanted: Any, given: Any, bound: dict[str, Any], step: PatternStep) -> str:
        if not isinstance(wanted, Name):
            return "" if _same(wanted, given) else f"is {given!r}, not {wanted!r}"
        name = wanted.name
        if name in self.op.tensors:
            if given is None:
                fits = name in self.op.optional
            elif step.vector == name:
                fits = self._is_vector(given, step.broadcast)
            else:
                fits = self.tensor_of(given) is not None
            why = "is missing or computed in the call, or no vector of the channels"
        elif name in self.op.scalars:
            fits = isinstance(given, int | float) and not isinstance(given, bool)
            why = f"is no number but {given!r}"
        else:
            given = tuple(given) if isinstance(given, list) else given
            numbers = given if isinstance(given, tuple) else (given,)
            fits = all(isinstance(n, int) for n in numbers)
            fits = fits and isinstance(given, tuple) == isinstance(self.op.attributes[name], tuple)
            why = f"is {given!r}"
        if not fits or (name in bound and bound[name] is not given and not _same(bound[name], given)):
            return why
        bound[name] = given
        return ""

    def _is_vector(self, given: Any, broadcast: Sequence[int]) -> bool:
        """Whether a tensor of the model changes along the channels alone."""
        tensor = self.tensor_of(given)
        if tensor is None or tensor.dim() > len(broadcast):
            return False
        shape = (*[1] * (len(broadcast) - tensor.dim()), *tensor.shape)
        return all(have == 1 or want == -1 for have, want in zip(shape, broadcast, strict=True))

    def _complete(self, match: Match) -> Match | None:
        for name in self.op.tensors[1:]:
            match.bound.setdefault(name, None)
            if match.bound[name] is None and name not in self.op.optional:
                return None
        for name, default in {**self.op.scalars, **self.op.attributes}.items():
            match.bound.setdefault(name, default)
        return match

    def _expected(self, step: PatternStep, node: fx.Node | None, value: fx.Node | None) -> str:
        if node is None:
            uses = 0 if value is None else len(value.users)
            what = f"its result is read {uses} times" if uses != 1 else "nothing follows"
        else:
            what = f"{node.op.removeprefix('call_')} {_title(node)} follows"
        return f"{what} where {self.op.name} has {step.form.word}"


def _title(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op != "output" else None


def _after(form: Form, rank: int | None) -> int | None:
    """The dimensions of a step's result."""
    if rank is None or "dim" not in form.arguments or form.arguments["keepdim"]:
        return rank
    return rank - len(form.arguments["dim"])


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    plain = isinstance(a, int | float | str | Held) and isinstance(b, int | float | str | Held)
    return plain and a == b
