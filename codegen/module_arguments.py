# SPDX-License-Identifier: Apache-2.0
"""The arguments of a module's constructor, derived from the declarations, and the names that they must not
take.
"""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import DeclarationError

if TYPE_CHECKING:
    from .family import Family
    from .operator import ChannelVector

# What torch.nn calls them.
_CONSTRUCTOR_NAMES = {"C_in": "in_channels", "C_out": "out_channels"}

_FIXED = ("precision", "device", "dtype")
"""What every constructor takes at the end."""

_WORDS = """
    T_destination add_module add_parameter apply bfloat16 buffers call_super_init children compile cpu cuda
    describe double dump_patches eval extra_repr float forward get_buffer get_extra_state get_parameter
    get_submodule half ipu load_state_dict modules mtia named_buffers named_children named_modules
    named_parameters parameters precision register_backward_hook register_buffer register_forward_hook
    register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ reset_parameters
    set_extra_state set_submodule share_memory starts state_dict to to_empty train training type xpu
    zero_grad
"""
MODULE_NAMES = frozenset(_WORDS.split())
"""Attributes of a module that are not an operator's own: a scalar of such a name would hide one."""


def constructor_sizes(family: Family) -> dict[str, tuple[str, ...]]:
    """The arguments for the compiled-in sizes, in order: name -> the sizes that it sets."""
    grouped = {size: alias for alias, sizes in family.aliases.items() for size in sizes}
    arguments: dict[str, tuple[str, ...]] = {}
    for size in family.sizes:
        if size in family.run_time:
            continue
        alias = grouped.get(size)
        name = alias or _CONSTRUCTOR_NAMES.get(size, size.lower())
        name = size if keyword.iskeyword(name) else name
        arguments[name] = family.aliases[alias] if alias else (size,)
    return arguments


def shape_argument(vector: str) -> str:
    """The argument that gives the shape of a channel vector which declares one."""
    return f"{vector}_shape"


def known_to_constructor(family: Family) -> frozenset[str]:
    """What the shape of a parameter may read: a module makes its parameters before it sees an input."""
    attributes = {name for attribute in family.attributes for name in attribute.value_names}
    return frozenset(set(family.sizes) - set(family.run_time) | attributes)


def check_module(
    family: Family, scalars: Sequence[str], vectors: Sequence[ChannelVector], where: str
) -> None:
    """Refuses parameters whose shape a constructor cannot know, and names that would stand twice in it or
    hide a part of the module.

    Raises:
        DeclarationError: with the name.
    """
    known = known_to_constructor(family)
    for tensor in family.tensors[1:]:
        unknown = sorted(set().union(*(e.names for e in tensor.shape)) - known)
        if unknown:
            shape = ", ".join(e.text for e in tensor.shape)
            raise DeclarationError(
                f"{where}: module: its parameter {tensor.name} [{shape}] would need {unknown[0]!r} before it "
                "sees an input; leave the module out"
            )
    names = list(constructor_sizes(family))
    names += [shape_argument(v.name) for v in vectors if v.shape]
    names += [*scalars, *(a.name for a in family.attributes)]
    names += [t.name for t in family.tensors if t.optional]
    names += [v.name for v in vectors if v.optional and not v.shape]
    names += _FIXED
    for index, name in enumerate(names):
        if name in names[:index]:
            raise DeclarationError(
                f"{where}: module: its constructor would have two arguments {name!r}; name the scalar or "
                "channel vector otherwise"
            )
    kept = [*scalars, *(v.name for v in vectors), *(a.name for a in family.attributes)]
    for name in kept:
        if name in MODULE_NAMES:
            raise DeclarationError(
                f"{where}: the name {name!r} would hide a part of the module; name it otherwise"
            )
