# SPDX-License-Identifier: Apache-2.0
"""What is not covered: the PyTorch reference answers, and says so once for each reason."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .manifest import ROOT, is_installed
from .namespace import NAMESPACE

if TYPE_CHECKING:
    from .frozen import FrozenOp

TRANSFORM = "a gradient is taken by torch.func, which the frozen operator does not support"
TANGENT = "an input carries a forward-mode tangent and frozen kernels have none"
_TUNABLE = "no frozen kernel"
_UNCHECKED = "not verified on this machine"
_DTYPES = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}

_warned: set[tuple[str, str]] = set()


class _Checking(threading.local):
    """Whether this thread runs variants to see whether they are right: what it meets is no user's call."""

    on = False


class _Raised(threading.local):
    """What the reference raised last in this thread, without its frames: they hold tensors."""

    error: BaseException | None = None


CHECKING = _Checking()
_RAISED = _Raised()


def warn(op: FrozenOp, arguments: Sequence[Any], reason: str) -> None:
    """Warns that the reference runs, unless it did so for that operator and reason."""
    if CHECKING.on or (op.name, reason) in _warned:
        return
    _warned.add((op.name, reason))
    advice = _advice(op, arguments) if reason.startswith(_TUNABLE) else ""
    text = f"coldforge: {op.name} runs the PyTorch reference: {reason}; {advice}".removesuffix("; ")
    warnings.warn(text, RuntimeWarning, stacklevel=_callers_level())


def _advice(op: FrozenOp, arguments: Sequence[Any]) -> str:
    kind, dtype = "cuda" if arguments[0].is_cuda else "cpu", _DTYPES.get(str(arguments[0].dtype), "")
    if dtype not in op.tunable.get(kind, (dtype,)):
        return f"no template computes {dtype} on {kind}"
    return f"tune one: {tune_command(op, arguments)}, then {freeze_command(op.name)}"


def _callers_level() -> int:
    """How far up the stack the first frame is that belongs neither to this package nor to PyTorch."""
    inside = tuple(f"{folder}{os.sep}" for folder in (ROOT, Path(torch.__file__).parent))
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    return level


def forget_warnings() -> None:
    """Makes the next call of each kind warn again."""
    _warned.clear()


def answer(op: FrozenOp, *arguments: Any) -> Tensor:
    """The kernel of ``<op>_reference``: the op's arguments, then the reason.

    Raises:
        TypeError, ValueError: the arguments fit no kernel because they do not fit the operator.
    """
    *own, reason = arguments
    try:
        own = op.check(*own)
        if not CHECKING.on and reason.startswith(_UNCHECKED) and op.checks_more(own[0]):
            return op.overload(*own)
        warn(op, own, reason)
        return compute(op, own[:-1])
    except BaseException as error:
        _RAISED.error = None
        with contextlib.suppress(Exception):
            _RAISED.error = copy.copy(error)
        raise


def cause_of(error: RuntimeError) -> BaseException:
    """What a call of an op should raise: C++ makes every error a RuntimeError with its text, of an interrupt
    and of exhausted memory too.
    """
    raised, _RAISED.error = _RAISED.error, None
    if raised is not None and "_reference failed in PyTorch" in str(error):
        return raised
    return torch.OutOfMemoryError(str(error)) if "out of memory" in str(error) else error


def compute(op: FrozenOp, arguments: Sequence[Any]) -> Tensor:
    """The reference as a kernel would answer: in the tensors' own dtype, whatever autocast says, and
    contiguous.
    """
    with own_precision(arguments[0]):
        return op.reference(*arguments).contiguous()


def own_precision(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    """While it lasts, autocast changes nothing of what is computed where the tensor is."""
    device = tensor.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return contextlib.nullcontext()  # the other takes as long as a small backward
    return torch.autocast(device, enabled=False)


def widened(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tensors in the widest of their dtypes, where they have several."""
    dtypes = [t.dtype for t in tensors if t is not None]
    widest = functools.reduce(torch.promote_types, dtypes)
    return [t if t is None else t.to(widest) for t in tensors]


def tune_command(op: FrozenOp, arguments: Sequence[Any]) -> str:
    """The command line that would tune a kernel for this call."""
    tensors, _, attributes = op.split(arguments)
    try:
        sizes = op.sizes(*tensors, *attributes)
    except ValueError:
        return f"coldforge tune {op.name}"
    fields = {name: value for name, value in sizes.items() if name in _shape_fields(op, attributes)}
    fields |= {name: 0 for name, t in zip(op.tensors, tensors, strict=True) if t is None}
    return _tune_line(op, tensors[0], fields)


def _tune_line(op: FrozenOp, like: Tensor, fields: Mapping[str, int]) -> str:
    """The command line for tensors of that dtype and device, of these fields of a shape."""
    dtype = _DTYPES.get(str(like.dtype), "fp32")
    shape = ",".join(f"{name}={value}" for name, value in fields.items())
    command = f"coldforge tune {op.name} --target {'cuda' if like.is_cuda else 'cpu'} --shape {shape}"
    return command if dtype == "fp32" else f"{command} --dtype {dtype}"


def tune_command_of(op: FrozenOp, tensors: Mapping[str, Tensor | None], attributes: Mapping[str, Any]) -> str:
    """The same for parameters whose input is not known: of any batch and image."""
    given = [tensors[name] for name in op.tensors[1:]]
    numbers = [attributes[name] for name in op.attributes]
    sample = next(t for t in given if t is not None)
    channels = {
        size * factor for size in sample.shape[:2] for factor in (1, int(attributes.get("groups", 1)))
    }
    for count in sorted(channels):
        try:  # two inputs: what differs is theirs
            shapes = [(n, count, *[side] * (sample.dim() - 2)) for n, side in ((2, 1021), (3, 2039))]
            first, second = (op.sizes(sample.new_empty(s, device="meta"), *given, *numbers) for s in shapes)
        except ValueError:
            continue
        names = [n for n in _shape_fields(op, numbers) if first[n] == second[n]]
        fields = {n: first[n] for n in names}
        return _tune_line(op, sample, fields | {n: 0 for n, t in tensors.items() if t is None})
    return f"coldforge tune {op.name}"


def freeze_command(name: str) -> str:
    """The command line that would freeze that operator into this package."""
    command = f"coldforge freeze {name}"
    if NAMESPACE == "coldforge":
        return command
    if is_installed(ROOT):  # pip's files are pip's
        return f"{command} --package {NAMESPACE} --out DIR (where it was made), and install its wheel again"
    return f"{command} --package {NAMESPACE} --out {ROOT.parent}"


def _shape_fields(op: FrozenOp, attributes: Sequence[Any]) -> list[str]:
    """The sizes that tensors have, and the attribute values that differ from their defaults."""
    names: list[str] = []
    for (name, default), value in zip(op.attributes.items(), attributes, strict=True):
        given = list(value) if isinstance(value, list | tuple) else [value]
        usual = list(default) if isinstance(default, tuple) else [default]
        suffixes = ("_h", "_w") if len(given) == 2 else ("",)
        names += [name + s for s, a, b in zip(suffixes, given, usual, strict=True) if a != b]
    return [*op.size_names, *names]
