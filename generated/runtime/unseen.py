# SPDX-License-Identifier: Apache-2.0
"""What a trace of a ``forward`` would not see: questions that a stand-in for a tensor answers otherwise than
a tensor, and answers that belong to the moment. A trace goes one way without a word; so code is looked at
before, and some questions are answered by an error.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

_NAMES = {"is_tensor", "is_inference", "environ", "getenv"}
_NONE_JUMPS = ("IF_NONE", "IF_NOT_NONE")
_KINDS = ("type", "__class__")
_ASKING = ("isinstance", "hasattr", "callable")


def functions_of(kind: type[Any]) -> list[FunctionType]:
    """The ``forward`` of a class and what it calls by name, as far as that can be told. PyTorch's own code is
    not among it."""
    found: dict[FunctionType, None] = {}
    waiting = [inspect.unwrap(getattr(kind, "forward", None) or functions_of)]
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or function in found or _is_torch(function):
            continue
        found[function] = None
        for name in {name for code in _codes(function.__code__) for name in code.co_names}:
            waiting += [getattr(kind, name, None), function.__globals__.get(name)]
    return list(found)


def _is_torch(function: FunctionType) -> bool:
    return str(function.__module__).partition(".")[0] == "torch" or function is functions_of


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and those of the functions that it makes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def of_the_moment(kind: type[Any]) -> str:
    """What a forward asks of the process it runs in, which a graph would keep; empty where nothing was
    found."""
    codes = (code for function in functions_of(kind) for code in _codes(function.__code__))
    for name in (name for code in codes for name in code.co_names):
        if name in _NAMES or (name.startswith(("is_", "are_")) and name.endswith("_enabled")):
            return f"its forward asks for {name}, which a graph would keep as it is now"
    return ""


def asked_of_arguments(kind: type[Any]) -> dict[str, str]:
    """Arguments of a ``forward`` of which its code asks what no trace can tell -> the question."""
    forward = inspect.unwrap(getattr(kind, "forward", None) or functions_of)
    if not isinstance(forward, FunctionType) or _is_torch(forward):
        return {}
    code = forward.__code__
    arguments = set(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])  # without self
    skipped = ("CACHE", "RESUME", "NOP", "PUSH_NULL", "PRECALL")
    steps = [step for step in dis.get_instructions(code) if step.opname not in skipped]
    found = {}
    for before, step, after, last in zip(
        [None, *steps], steps, [*steps[1:], None], [*steps[2:], None, None], strict=False
    ):
        if not step.opname.startswith("LOAD_FAST") or step.argval not in arguments or after is None:
            continue
        compared = after.opname.startswith("LOAD_CONST") and after.argval is None
        if after.opname.endswith(_NONE_JUMPS) or (compared and last is not None and last.opname == "IS_OP"):
            found[step.argval] = f"whether {step.argval} is None"
        if after.argval in _KINDS or (before is not None and before.argval in _KINDS):
            found[step.argval] = f"of what type {step.argval} is"
    return found


def given_names(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], kind: type[Any]) -> set[str]:
    """The arguments of a call, ``self`` not among them, whose values are of a kind."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return set()
    return {name for name, value in bound.arguments.items() if isinstance(value, kind)}


@contextlib.contextmanager
def refusing(functions: Iterable[FunctionType], stand_in: type[Any], error: Exception) -> Iterator[None]:
    """While it lasts, these functions cannot ask of what kind a stand-in is: ``isinstance`` and its like
    raise the error. Of anything else they are what they were, for other threads too.
    """

    def asking(name: str) -> Any:
        usual = getattr(builtins, name)

        def ask(value: Any, *others: Any) -> Any:
            if type(value) is stand_in:
                raise error
            return usual(value, *others)

        return ask

    own = {name: asking(name) for name in _ASKING}
    changed: list[tuple[dict[str, Any], str]] = []
    try:
        for scope in {id(f.__globals__): f.__globals__ for f in functions}.values():
            for name in _ASKING:
                if name not in scope:
                    scope[name] = own[name]
                    changed.append((scope, name))
        yield
    finally:
        for scope, name in changed:
            scope.pop(name, None)
