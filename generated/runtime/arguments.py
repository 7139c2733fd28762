# SPDX-License-Identifier: Apache-2.0
"""Checks of a call's arguments: a clear error, or the value in its one form. Traceable by torch.compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

PRECISIONS = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Error class -> unit roundoff."""
NUMBERS = {int, float}
PAIRS = {int, tuple, list}
"""The kinds of scalars, and of attributes that are a pair, which PyTorch takes as they are."""


def ceil_div(a: int, b: int) -> int:
    """The smallest integer not under ``a / b``."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The smallest multiple of ``b`` not under ``a``."""
    return ceil_div(a, b) * b


def _is_integer(value: object) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def integer(name: str, value: int, at_least: int) -> int:
    """``value`` as a whole number not under ``at_least``.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is too small, or has more than 31 bits.
    """
    if not _is_integer(value):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    if isinstance(value, int) and value >= 2**31:
        raise ValueError(f"{name} must be less than 2**31, got {value}")
    return value


def pair(name: str, value: int | Sequence[int], at_least: int) -> tuple[int, int]:
    """``value`` as two whole numbers, one for each spatial axis.

    Raises:
        TypeError: it is neither a whole number nor a sequence of them.
        ValueError: it has another length, or a number is too small.
    """
    if _is_integer(value):
        value = (value, value)  # type: ignore[assignment]
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} must be an int or a pair of ints, got {value!r}")
    if len(value) != 2:
        raise ValueError(f"{name} must be one number or two, got {len(value)}: {value!r}")
    return (integer(name, value[0], at_least), integer(name, value[1], at_least))


def divisible(name: str, value: int, by: str, divisor: int) -> None:
    """Checks that the number ``name`` can be divided by ``by``.

    Raises:
        ValueError: it cannot.
    """
    if value % divisor:
        raise ValueError(f"{name} must be divisible by {by}={divisor}, got {value}")


def number(name: str, value: float) -> float:
    """``value`` as a float.

    Raises:
        TypeError: it is no number (a tensor is none).
    """
    if isinstance(value, bool) or not isinstance(value, int | float | torch.SymInt | torch.SymFloat):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return float(value)


def precision(value: str | None) -> str | None:
    """An error class, or None.

    Raises:
        ValueError: it is not known.
    """
    if value is not None and (not isinstance(value, str) or value not in PRECISIONS):
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)} or None, got {value!r}")
    return value


def tensors(given: Mapping[str, Tensor | None], optional: Sequence[str]) -> None:
    """Checks that the tensors are dense, of one floating dtype (of any under autocast), on one device.

    Raises:
        TypeError: one is missing, no tensor, not dense, not floating, or of another dtype than the first.
        ValueError: one is on another device than the first.
    """
    first_name, first = next(iter(given.items()))
    for name, value in given.items():
        if value is None and name in optional:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} must be a tensor{' or None' if name in optional else ''}, got {value!r:.80}"
            )
        if value.layout != torch.strided or not value.dtype.is_floating_point:
            raise TypeError(f"{name} must be a dense floating-point tensor, got {value.layout} {value.dtype}")
        assert first is not None  # it was checked before the others
        if value.dtype != first.dtype and not autocasts(first):
            raise TypeError(
                f"{name} is {value.dtype}, but {first_name} is {first.dtype}: they must be the same"
            )
        if value.device != first.device:
            raise ValueError(f"{name} is on {value.device}, but {first_name} is on {first.device}")


def autocasts(tensor: Tensor) -> bool:
    """Whether autocast is on where the tensor is."""
    device = tensor.device.type
    return device in ("cpu", "cuda") and torch.is_autocast_enabled(device)


def dims(name: str, tensor: Tensor, rank: int, shape: str) -> Sequence[int]:
    """The tensor's sizes, ``rank`` of them.

    Raises:
        ValueError: it has another number of dimensions.
    """
    if tensor.dim() != rank:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {rank} dimensions [{shape}]")
    return tensor.shape


def expect(name: str, tensor: Tensor | None, sizes: Sequence[int], shape: str) -> None:
    """Checks a tensor's whole shape; an absent one has none.

    Raises:
        ValueError: it differs.
    """
    if tensor is not None and (tensor.dim() != len(sizes) or list(tensor.shape) != list(sizes)):
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected [{shape}] = {list(sizes)}")


def declared_shape(
    name: str, value: Sequence[int] | None, sizes: Sequence[int], shape: str, optional: bool
) -> None:
    """Checks the shape that a constructor is given for a tensor whose shape is declared; None leaves an
    optional one out.

    Raises:
        TypeError: it is no sequence of whole numbers.
        ValueError: it differs from the declared one.
    """
    if value is None and optional:
        return
    if not isinstance(value, list | tuple) or not all(_is_integer(size) for size in value):
        kind = f"a sequence of ints{' or None' if optional else ''}"
        raise TypeError(f"{name} must be {kind}, here {list(sizes)}, got {value!r:.80}")
    if list(value) != list(sizes):
        raise ValueError(f"{name} is {list(value)}; expected [{shape}] = {list(sizes)}")


def output_size(text: str, size: int) -> None:
    """Checks that a computed output size is positive.

    Raises:
        ValueError: it is not.
    """
    if size < 1:
        raise ValueError(f"the output would be empty: {text} = {size}")
