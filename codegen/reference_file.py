# SPDX-License-Identifier: Apache-2.0
"""The Python file that holds a family's reference: found, checked without running it, loaded when it is
needed, called so that whatever goes wrong in it is one line.

A frozen package carries a copy of the file, so all that it may import is torch and the standard library.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import declare
from .errors import DeclarationError, InputError, ReferenceFailed

DEFAULT_MODULE = "reference"
_DEVICE_ERRORS = ("OutOfMemoryError", "AcceleratorError")  # of torch, which is not imported for their sake
_MAX_MESSAGE = 300


def split_reference(value: Any, where: str) -> tuple[str, str]:
    """``module:function`` as (module, function); a bare name is a function of ``reference.py``.

    Raises:
        DeclarationError: it is neither.
    """
    text = declare.check_text(value, where)
    module, colon, function = text.rpartition(":")
    module = module if colon else DEFAULT_MODULE
    for name in (module, function):
        if not declare.IDENTIFIER.match(name):
            raise DeclarationError(
                f"{where}: {declare.brief(text)}; it must be module:function, a function of the file "
                "module.py beside it"
            )
    return module, function


def check_functions(
    path: Path, functions: Sequence[str], tensors: Sequence[str], attributes: Sequence[str], where: str
) -> None:
    """Checks, without running the file, that it defines the functions and that each takes the call's
    arguments: the tensors first, in order, and the attributes by name.

    Raises:
        DeclarationError: the file is missing or malformed, or a function is missing or takes other arguments.
    """
    defined = {node.name: node for node in _tree(path).body if isinstance(node, ast.FunctionDef)}
    for name in functions:
        if name not in defined:
            raise DeclarationError(f"{where}: {path.name} defines no function {name!r}")
        if not defined[name].decorator_list and not _takes(defined[name].args, tensors, attributes):
            call = ", ".join([*tensors, *(["*"] if attributes else []), *attributes])
            raise DeclarationError(f"{where}: {path.name}: {name} must take the arguments ({call})")


def _takes(arguments: ast.arguments, tensors: Sequence[str], attributes: Sequence[str]) -> bool:
    """Whether a function can be called with the tensors in order and the attributes by name."""
    if arguments.posonlyargs:  # tensors are given by name too
        return False
    places = [a.arg for a in arguments.args]
    required = places[: len(places) - len(arguments.defaults)]
    required += [a.arg for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None]
    given = [*tensors, *attributes]
    by_name = set(given) <= {*places, *(a.arg for a in arguments.kwonlyargs)} or arguments.kwarg is not None
    return by_name and places[: len(tensors)] == list(tensors) and set(required) <= set(given)


def _tree(path: Path) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):  # those of the file are told when it is run
            return ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeclarationError(f"cannot read {path}: {error.strerror or error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DeclarationError(f"{path}: malformed Python: {' '.join(str(error).split())}") from None


def check_portable(path: Path) -> None:
    """Refuses a file that a frozen package could not carry alone.

    Raises:
        InputError: it imports something besides torch and the standard library.
    """
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        else:
            continue
        for name in names:
            if name.split(".")[0] not in {"torch", *sys.stdlib_module_names}:
                raise InputError(
                    f"{path.parent.name}/{path.name}:{node.lineno} imports {name!r}, and cannot be frozen: a "
                    "package carries this one file, which may import torch and the standard library only"
                )


@lru_cache(maxsize=64)
def load_function(path: Path, name: str) -> Callable[..., Any]:
    """The function ``name`` of the Python file ``path``, which is run for that.

    Raises:
        ReferenceFailed: the file fails when it is run, or defines no such function.
    """
    place = hashlib.sha256(str(path).encode()).hexdigest()[:8]  # two roots may use one folder name
    spec = importlib.util.spec_from_file_location(f"coldforge_reference_{path.parent.name}_{place}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ReferenceFailed(f"cannot read the reference file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # torch.compile looks a function's module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ReferenceFailed(f"{_place(path, error)}: {_brief(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ReferenceFailed(f"{path.parent.name}/{path.name}: no function {name!r}")
    return function


def call_function(path: Path, name: str, arguments: Mapping[str, Any]) -> Any:
    """The result of a function of a reference file.

    Raises:
        ReferenceFailed: it raised something. What the device is to blame for goes through as it is.
    """
    function = load_function(path, name)
    try:
        return function(**arguments)
    except (Exception, SystemExit) as error:
        if type(error).__name__ in _DEVICE_ERRORS:
            raise
        raise ReferenceFailed(f"{_place(path, error)}: {name} failed: {_brief(error)}") from error


def _place(path: Path, error: BaseException) -> str:
    """``folder/reference.py:12``: the line of the file at which it failed, where that is known."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path.parent.name}/{path.name}" + (f":{lines[-1]}" if lines else "")


def _brief(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
