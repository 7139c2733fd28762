# SPDX-License-Identifier: Apache-2.0
"""The expression language of the YAML declarations: integer arithmetic, comparisons, a few functions,
nothing else.

The text is parsed by Python's ``ast`` and checked node by node; it is never given to ``eval``, so a
declaration cannot
call, import or reach anything. The same tree prints as C++ (``to_cpp``), so that a launch grid is written
once and means
the same in the tuner and in a frozen extension.
"""

from __future__ import annotations

import ast
import operator as op
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .errors import DeclarationError

Value = int | float | str | bool
Evaluator = Callable[[Mapping[str, Value]], Value]
MAX_TEXT = 2000
MAX_DEPTH = 100
"""How deep a tree may be: a sum of so many terms. Evaluating and printing recurse."""
MAX_MAGNITUDE = 2**63 - 1
# The text stands in generated Python, within double quotes too: none of these may end what it stands in.
_FOREIGN_SIGNS = frozenset('#"\\')


def ceil_div(a: int, b: int) -> int:
    """The smallest integer not under ``a / b``."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The smallest multiple of ``b`` not under ``a``."""
    return ceil_div(a, b) * b


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "ceil_div": ceil_div,
    "round_up": round_up,
}
_ARITY = {"ceil_div": (2, 2), "round_up": (2, 2), "abs": (1, 1), "min": (2, 8), "max": (2, 8)}
_BINARY = {
    ast.Add: (op.add, "+"),
    ast.Sub: (op.sub, "-"),
    ast.Mult: (op.mul, "*"),
    ast.Div: (op.truediv, None),
}
_INTEGER = {ast.FloorDiv: (op.floordiv, "floor_div"), ast.Mod: (op.mod, "floor_mod")}
# Nodes that only say what another one is.
_MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
_COMPARE = {
    ast.Eq: (op.eq, "=="),
    ast.NotEq: (op.ne, "!="),
    ast.Lt: (op.lt, "<"),
    ast.LtE: (op.le, "<="),
    ast.Gt: (op.gt, ">"),
    ast.GtE: (op.ge, ">="),
}


@dataclass(frozen=True)
class Expr:
    """A parsed expression.

    Attributes:
        text: what was parsed.
        tree: the checked syntax tree, for printing.
        names: the names it reads.
        evaluator: the tree as a closure.
    """

    text: str
    tree: ast.expr
    names: frozenset[str]
    evaluator: Evaluator = field(compare=False, repr=False)

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        """The value under ``env``.

        Raises:
            DeclarationError: an unknown name, a division by zero, mixed types, or a result past 64 bits.
        """
        try:
            value = self.evaluator(env)
        except KeyError as error:
            raise DeclarationError(f"{_at(self.text)}: unknown name {error.args[0]!r}") from None
        except (TypeError, ValueError, ZeroDivisionError, OverflowError, RecursionError) as error:
            raise DeclarationError(f"{_at(self.text)}: {error}") from None
        if isinstance(value, int | float) and not abs(value) <= MAX_MAGNITUDE:
            raise DeclarationError(f"{_at(self.text)}: the result does not fit in 64 bits")
        return value

    def to_cpp(self) -> str:
        """The expression as C++ over ``int64_t`` names, with ``coldforge::ceil_div`` and friends.

        Raises:
            DeclarationError: it uses something that has no integer meaning in C++ (``/``, strings, ``in``).
        """
        return _to_cpp(self.tree, self.text)


@lru_cache(maxsize=4096)
def parse(text: str) -> Expr:
    """Parses ``text``.

    Raises:
        DeclarationError: it is no expression of the language.
    """
    if not isinstance(text, str) or not text.strip():
        raise DeclarationError(f"expected an expression, got {text!r}")
    text = text.strip()
    if len(text) > MAX_TEXT:
        raise DeclarationError(f"an expression of {len(text)} characters; at most {MAX_TEXT} are allowed")
    # Python would take letters of other alphabets for those that look like them (NFKC).
    if not text.isascii() or not text.isprintable() or not _FOREIGN_SIGNS.isdisjoint(text):
        raise DeclarationError(f'malformed expression {_shown(text)!r}: one line of ASCII without # " and \\')
    tree = _tree(text)
    if _deeper_than(tree, MAX_DEPTH):
        raise DeclarationError(f"{_at(text)} is nested more than {MAX_DEPTH} deep")
    return Expr(text, tree, frozenset(_check(tree, text)), _compile(tree))


def _tree(text: str) -> ast.expr:
    try:
        # What Python merely warns of, as a number that runs into a word, is refused.
        with warnings.catch_warnings(action="error"):
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise DeclarationError(f"malformed expression {_shown(text)!r}") from None


def _deeper_than(tree: ast.expr, limit: int) -> bool:
    """Whether the tree has more levels of expressions than ``limit``; found level by level."""
    level: list[ast.AST] = [tree]
    for _ in range(limit):
        below = (child for node in level for child in ast.iter_child_nodes(node))
        level = [child for child in below if not isinstance(child, _MARKS)]
        if not level:
            return False
    return True


def _at(text: str) -> str:
    return f"expression {_shown(text)!r}"


def _shown(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


def evaluate(value: str | int | float | bool, env: Mapping[str, Value]) -> Value:
    """``value`` itself when it is a number, else the expression's value under ``env``."""
    return value if isinstance(value, int | float) else parse(value).evaluate(env)


def evaluate_int(value: str | int, env: Mapping[str, Value]) -> int:
    """An integer-valued ``evaluate``.

    Raises:
        DeclarationError: the result is not an integer.
    """
    result = evaluate(value, env)
    if not isinstance(result, int):
        raise DeclarationError(f"expression {value!r:.200}: expected an integer, got {result!r}")
    return int(result)


def _check(node: ast.AST, text: str) -> list[str]:
    """Refuses every node outside the language; returns the names read."""
    match node:
        case ast.Constant(value=int() | float() as value) if not abs(value) <= MAX_MAGNITUDE:
            raise DeclarationError(f"{_at(text)}: a number does not fit in 64 bits")
        case ast.Constant(value=bool() | int() | float() | str()):
            return []
        case ast.Name(id=name):
            return [name]
        case ast.BinOp(left=a, op=o, right=b) if type(o) in _BINARY or type(o) in _INTEGER:
            return _check(a, text) + _check(b, text)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=a):
            return _check(a, text)
        case ast.BoolOp(values=values):
            return [n for v in values for n in _check(v, text)]
        case ast.Compare(left=a, ops=ops, comparators=rest):
            names = _check(a, text)
            for o, b in zip(ops, rest, strict=True):
                names += _check_comparison(o, b, text)
            return names
        case ast.IfExp(test=t, body=a, orelse=b):
            return _check(t, text) + _check(a, text) + _check(b, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            low, high = _ARITY[name]
            if not low <= len(args) <= high:
                raise DeclarationError(
                    f"{_at(text)}: {name} takes {low} to {high} arguments, not {len(args)}"
                )
            return [n for a in args for n in _check(a, text)]
    raise DeclarationError(f"{_at(text)}: {_describe(node)} is not part of the expression language")


def _check_comparison(o: ast.cmpop, right: ast.expr, text: str) -> list[str]:
    if type(o) in _COMPARE:
        return _check(right, text)
    if isinstance(o, ast.In | ast.NotIn) and isinstance(right, ast.Tuple | ast.List):
        return [n for e in right.elts for n in _check(e, text)]
    raise DeclarationError(f"{_at(text)}: only == != < <= > >= and 'in (a, b)' compare")


def _describe(node: ast.AST) -> str:
    try:
        return repr(ast.unparse(node))
    except (ValueError, AttributeError):
        return type(node).__name__


def _compile(node: ast.expr) -> Evaluator:
    """A closure for a checked node: spaces evaluate each expression up to a million times."""
    match node:
        case ast.Constant(value=value):
            return lambda env: value  # type: ignore[return-value]
        case ast.Name(id=name):
            return lambda env: env[name]
        case ast.BinOp(left=a, op=o, right=b):
            return _compile_binary((_BINARY | _INTEGER)[type(o)][0], _compile(a), _compile(b))
        case ast.UnaryOp(op=ast.USub(), operand=a):
            operand = _compile(a)
            return lambda env: -_number(operand(env))
        case ast.UnaryOp(operand=a):
            operand = _compile(a)
            return lambda env: not operand(env)
        case ast.BoolOp(op=o, values=values):
            parts = [_compile(v) for v in values]
            combine = all if isinstance(o, ast.And) else any
            return lambda env: combine(part(env) for part in parts)
        case ast.Compare(left=a, ops=ops, comparators=rest):
            return _compile_comparison(_compile(a), ops, rest)
        case ast.IfExp(test=t, body=a, orelse=b):
            test, body, orelse = _compile(t), _compile(a), _compile(b)
            return lambda env: body(env) if test(env) else orelse(env)
        case ast.Call(func=ast.Name(id=name), args=args):
            function, arguments = FUNCTIONS[name], [_compile(a) for a in args]
            return lambda env: _number(function(*(_number(argument(env)) for argument in arguments)))
    raise DeclarationError(f"{_describe(node)} has no value")


def _compile_binary(function: Callable[..., Value], left: Evaluator, right: Evaluator) -> Evaluator:
    return lambda env: _number(function(_number(left(env)), _number(right(env))))


def _compile_comparison(first: Evaluator, ops: list[ast.cmpop], rest: list[ast.expr]) -> Evaluator:
    links = [_compile_link(o, node) for o, node in zip(ops, rest, strict=True)]

    def evaluate(env: Mapping[str, Value]) -> Value:
        left = first(env)
        for link in links:
            holds, left = link(left, env)
            if not holds:
                return False
        return True

    return evaluate


def _compile_link(o: ast.cmpop, node: ast.expr) -> Callable[[Value, Mapping[str, Value]], tuple[bool, Value]]:
    """One comparison of a chain: (left, env) -> (whether it holds, the value that the next one compares)."""
    if isinstance(o, ast.In | ast.NotIn):
        members = [_compile(e) for e in node.elts]  # type: ignore[attr-defined]
        wanted = isinstance(o, ast.In)
        return lambda left, env: ((left in [m(env) for m in members]) == wanted, left)
    compare, right = _COMPARE[type(o)][0], _compile(node)

    def link(left: Value, env: Mapping[str, Value]) -> tuple[bool, Value]:
        value = right(env)
        return compare(left, value), value

    return link


def _number(value: Value) -> int | float:
    """A number of 64 bits, as every operand and every result must be: C++ has no larger ones."""
    if isinstance(value, str):
        raise TypeError(f"{value!r} is text where a number is needed")
    if not -MAX_MAGNITUDE <= value <= MAX_MAGNITUDE:
        raise OverflowError("a value does not fit in 64 bits")
    return value


def _to_cpp(node: ast.expr, text: str) -> str:
    match node:
        case ast.Constant(value=bool() as value):
            return "1" if value else "0"
        case ast.Constant(value=int() as value):
            return f"INT64_C({value})"
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=a, op=o, right=b) if type(o) in _INTEGER:
            return f"coldforge::{_INTEGER[type(o)][1]}({_to_cpp(a, text)}, {_to_cpp(b, text)})"
        case ast.BinOp(left=a, op=o, right=b) if type(o) in _BINARY and _BINARY[type(o)][1]:
            return f"({_to_cpp(a, text)} {_BINARY[type(o)][1]} {_to_cpp(b, text)})"
        case ast.UnaryOp(op=ast.USub(), operand=a):
            return f"(-{_to_cpp(a, text)})"
        case ast.UnaryOp(op=ast.Not(), operand=a):
            return f"(!{_to_cpp(a, text)})"
        case ast.BoolOp(op=o, values=values):
            return (
                "("
                + (" && " if isinstance(o, ast.And) else " || ").join(_to_cpp(v, text) for v in values)
                + ")"
            )
        case ast.Compare(left=a, ops=[o], comparators=[b]) if type(o) in _COMPARE:
            return f"({_to_cpp(a, text)} {_COMPARE[type(o)][1]} {_to_cpp(b, text)})"
        case ast.IfExp(test=t, body=a, orelse=b):
            return f"({_to_cpp(t, text)} ? {_to_cpp(a, text)} : {_to_cpp(b, text)})"
        case ast.Call(func=ast.Name(id=name), args=args):
            call = _to_cpp(args[-1], text)
            if len(args) == 1:
                return f"coldforge::{name}_int({call})"
            for argument in reversed(args[:-1]):
                call = f"coldforge::{name}_int({_to_cpp(argument, text)}, {call})"
            return call
    raise DeclarationError(f"{_at(text)}: {_describe(node)} cannot be written as C++ integers")
