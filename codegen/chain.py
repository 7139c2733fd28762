# SPDX-License-Identifier: Apache-2.0
"""An epilogue chain in PyTorch: what each step does to a tensor whose axes have roles.

The first axis of a family's output is the batch, ``channel_dim`` the channels where it has any, the others
are pixels. A reduction removes axes of one role, or leaves them with length 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..templates.pointwise import POINTWISE
from ..templates.reductions import REDUCTIONS
from .steps import CHANNELS, PIXELS, EpilogueStep

if TYPE_CHECKING:
    import torch

    from .family import Family

BATCH = "batch"
Roles = tuple[str, ...]
_Extent = TypeVar("_Extent")


def roles_of(family: Family) -> Roles:
    """The role of each axis of the family's output."""
    roles = [PIXELS] * len(family.output.shape)
    roles[0] = BATCH
    if family.channel_dim is not None:
        roles[family.channel_dim] = CHANNELS
    return tuple(roles)


def active(steps: Sequence[EpilogueStep], absent: Sequence[str]) -> tuple[EpilogueStep, ...]:
    """The steps that are done when these channel vectors are not given: one that reads such a vector is left
    out."""
    return tuple(step for step in steps if not step.reads(absent))


def reduced_axes(step: EpilogueStep, roles: Roles) -> tuple[int, ...]:
    """The axes that a reduction reduces."""
    return tuple(axis for axis, role in enumerate(roles) if role == step.over)


def roles_after(step: EpilogueStep, roles: Roles) -> Roles:
    """The roles of the axes that a step leaves."""
    return tuple(role for role in roles if step.keepdim or role != step.over)


def shape_after(
    steps: Sequence[EpilogueStep], shape: Sequence[_Extent], roles: Roles, one: _Extent
) -> tuple[_Extent, ...]:
    """The output's shape, from the family's; ``one`` is what a reduced axis that stays has as its extent."""
    extents = list(shape)
    for step in steps:
        if not step.is_reduction:
            continue
        kept = zip(extents, roles, strict=True)
        extents = [one if role == step.over else e for e, role in kept if step.keepdim or role != step.over]
        roles = roles_after(step, roles)
    return tuple(extents)


def apply_step(
    step: EpilogueStep,
    v: torch.Tensor,
    roles: Roles,
    tensors: Mapping[str, torch.Tensor | None],
    scalars: Mapping[str, float],
) -> torch.Tensor:
    """One step on ``v``, in its own dtype.

    Args:
        v: a tensor whose axes have ``roles``.
        tensors: the channel vectors by name, C_out elements each.
        scalars: the run-time scalars by name.
    """
    if step.is_reduction:
        return REDUCTIONS[step.op].reference(v, reduced_axes(step, roles), step.keepdim)
    arguments: dict[str, Any] = {}
    for name, value in step.arguments:
        if isinstance(value, str) and value in scalars:
            arguments[name] = scalars[value]
        elif isinstance(value, str):
            vector = tensors[value]
            assert vector is not None, f"the step {step.op} should have been left out"
            arguments[name] = vector.to(v.dtype).reshape([-1 if role == CHANNELS else 1 for role in roles])
        else:
            arguments[name] = value
    return POINTWISE[step.op].reference(v, **arguments)


def apply_chain(
    steps: Sequence[EpilogueStep],
    v: torch.Tensor,
    roles: Roles,
    tensors: Mapping[str, torch.Tensor | None],
    scalars: Mapping[str, float],
) -> torch.Tensor:
    """All steps in order; see ``apply_step``."""
    for step in steps:
        v = apply_step(step, v, roles, tensors, scalars)
        roles = roles_after(step, roles)
    return v
