# SPDX-License-Identifier: Apache-2.0
"""Expressions of a declaration as C++, with everything already known computed.

A launch expression reads the config, the specialisation and the device beside the run-time sizes. Only
the sizes are unknown when a kernel is frozen; folding the rest leaves text that a person can read, and no
words in the C++.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from ..errors import DeclarationError
from ..expr import Value, parse


def fold_to_cpp(text: str, known: Mapping[str, Value], late: Iterable[str]) -> str:
    """``text`` as a C++ expression of type ``int64_t`` over the names in ``late``.

    Args:
        text: an expression.
        known: names with their values.
        late: names that only the C++ knows; they stay names.

    Raises:
        DeclarationError: another name, or something without a meaning in whole numbers.
    """
    tree = _fold(parse(text).tree, known, text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    unknown = names - set(late) - _function_names(tree)
    if unknown:
        raise DeclarationError(f"expression {text!r}: unknown name {min(unknown)!r}")
    if isinstance(tree, ast.Constant) and not isinstance(tree.value, int):
        raise DeclarationError(f"expression {text!r}: expected a whole number, got {tree.value!r}")
    return parse(ast.unparse(tree)).to_cpp()


def depends_on(text: str, names: Iterable[str]) -> bool:
    """Whether the expression reads one of ``names``."""
    return not parse(text).names.isdisjoint(names)


def _function_names(tree: ast.expr) -> set[str]:
    return {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def _names(node: ast.expr) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names - _function_names(node)


def _literal(value: Value) -> ast.expr:
    if isinstance(value, bool | str) or value >= 0:
        return ast.Constant(value)
    return ast.UnaryOp(ast.USub(), ast.Constant(-value))


def _fold(node: ast.expr, known: Mapping[str, Value], text: str) -> ast.expr:
    """The node with each subtree that reads only known names replaced by its value."""
    names = _names(node)
    if names <= known.keys():
        return _literal(parse(ast.unparse(node)).evaluate(known))
    match node:
        case ast.IfExp(test=test, body=body, orelse=orelse):
            decided = _fold(test, known, text)
            if isinstance(decided, ast.Constant):
                return _fold(body if decided.value else orelse, known, text)
            return ast.IfExp(decided, _fold(body, known, text), _fold(orelse, known, text))
        case ast.BinOp(left=a, op=o, right=b):
            return ast.BinOp(_fold(a, known, text), o, _fold(b, known, text))
        case ast.UnaryOp(op=o, operand=a):
            return ast.UnaryOp(o, _fold(a, known, text))
        case ast.BoolOp(op=o, values=values):
            return ast.BoolOp(o, [_fold(v, known, text) for v in values])
        case ast.Call(func=function, args=arguments):
            return ast.Call(function, [_fold(a, known, text) for a in arguments], [])
        case ast.Compare():
            return _fold_comparison(node, known, text)
    return node


def _fold_comparison(node: ast.Compare, known: Mapping[str, Value], text: str) -> ast.expr:
    """``a < b < c`` as ``a < b and b < c``; ``a in (b, c)`` as ``a == b or a == c``: C++ has neither."""
    sides = [_fold(node.left, known, text)]
    parts: list[ast.expr] = []
    for comparison, right in zip(node.ops, node.comparators, strict=True):
        left = sides[-1]
        if isinstance(comparison, ast.In | ast.NotIn) and isinstance(right, ast.Tuple | ast.List):
            equal: list[ast.expr] = [
                ast.Compare(left, [ast.Eq()], [_fold(e, known, text)]) for e in right.elts
            ]
            found = ast.BoolOp(ast.Or(), equal) if len(equal) > 1 else equal[0]
            parts.append(found if isinstance(comparison, ast.In) else ast.UnaryOp(ast.Not(), found))
            continue
        sides.append(_fold(right, known, text))
        parts.append(ast.Compare(left, [comparison], [sides[-1]]))
    return parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts)
