# SPDX-License-Identifier: Apache-2.0
"""An operator's calling convention, derived from its declaration: schema, names of values, where each
size is read off.

The frozen op takes, in this order: the family's tensors, the epilogue's channel vectors, the scalars, the
attributes, and the precision. Wrapper, C++ table and reference all follow this one description.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from ..chain import roles_of, shape_after
from ..errors import DeclarationError
from ..expr import Expr, parse
from ..family import PAIR_SUFFIXES, Attribute, Family
from ..module_arguments import constructor_sizes
from ..operator import Operator

_QUOTIENT = re.compile(r"\s*(\w+)\s*//\s*(\w+)\s*\Z")


@dataclass(frozen=True)
class TensorArgument:
    """A tensor of the call: its shape over the problem's values.

    Attributes:
        shape: a channel vector without a shape of its own has one axis, the output's channels.
        optional: whether it may be None.
        channel: whether it is a channel vector of the epilogue.
        shaped: whether it is one with a shape of its own.
    """

    name: str
    shape: tuple[Expr, ...]
    optional: bool
    channel: bool = False
    shaped: bool = False


@dataclass(frozen=True)
class ShapeRead:
    """Dimension ``dim`` of tensor number ``tensor``: the place where a size is read off, or is checked.

    Attributes:
        factor: the attribute value by which the size is larger than the dimension; empty for none.
    """

    tensor: int
    dim: int
    expression: Expr
    factor: str = ""


@dataclass(frozen=True)
class Signature:
    """How an operator is called.

    Attributes:
        operator: the declaration behind it.
    """

    operator: Operator

    @property
    def family(self) -> Family:
        """The operator's family."""
        return self.operator.family

    @cached_property
    def tensors(self) -> tuple[TensorArgument, ...]:
        """The tensor arguments in order."""
        dim = self.family.channel_dim  # without one there are no channel vectors
        channels = () if dim is None else (self.family.output.shape[dim],)
        own = [TensorArgument(t.name, t.shape, t.optional) for t in self.family.tensors]
        vectors = [
            TensorArgument(v.name, v.shape or channels, v.optional, True, bool(v.shape))
            for v in self.operator.vectors
        ]
        return (*own, *vectors)

    @cached_property
    def output_shape(self) -> tuple[Expr, ...]:
        """The output's shape, after the epilogue."""
        family = self.family
        return shape_after(self.operator.epilogue, family.output.shape, roles_of(family), parse("1"))

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """The attributes in order."""
        return self.family.attributes

    @cached_property
    def value_names(self) -> tuple[str, ...]:
        """Every name that an expression may read, in a fixed order."""
        family = self.family
        attributes = [n for a in family.attributes for n in a.value_names]
        present = [f"has_{name}" for name in self.operator.optional_tensors]
        return (*family.sizes, *attributes, *present, "dtype_bytes", *family.derived)

    @cached_property
    def late_names(self) -> tuple[str, ...]:
        """The values known only at run time."""
        family = self.family
        late = {*family.run_time, *family.abi_sizes}
        return tuple(name for name in self.value_names if name in late)

    @cached_property
    def fixed_names(self) -> tuple[str, ...]:
        """The values that a frozen kernel has compiled in."""
        return tuple(n for n in self.value_names if n not in self.late_names and n != "dtype_bytes")

    @cached_property
    def size_reads(self) -> dict[str, ShapeRead]:
        """For each size, the dimension of a required tensor that is that size, or else that is the size
        divided by an attribute (as the channels of a filter by ``groups``).

        Raises:
            DeclarationError: no required tensor has the size as a dimension of its own.
        """
        reads: dict[str, ShapeRead] = {}
        quotients: dict[str, ShapeRead] = {}
        factors = {n for a in self.attributes if a.minimum > 0 for n in a.value_names}
        for number, tensor in enumerate(self.tensors):
            for dim, expression in enumerate(tensor.shape if not tensor.optional else ()):
                name, divided = expression.text.strip(), _QUOTIENT.match(expression.text)
                if name in self.family.sizes:
                    reads.setdefault(name, ShapeRead(number, dim, expression))
                elif divided and divided[1] in self.family.sizes and divided[2] in factors:
                    quotients.setdefault(divided[1], ShapeRead(number, dim, expression, divided[2]))
        found = {**quotients, **reads}
        for name in self.family.sizes:
            if name not in found:
                where = f"{self.family.name}/family.yaml"
                raise DeclarationError(
                    f"{where}: no tensor has the size {name} as a dimension; it cannot be frozen"
                )
        return {name: found[name] for name in self.family.sizes}

    @cached_property
    def quotients(self) -> tuple[tuple[str, str], ...]:
        """(size, attribute value) for the dimensions that are the one divided by the other."""
        values = {n for a in self.attributes for n in a.value_names}
        texts = [e.text for t in self.tensors for e in t.shape]
        found = [(m[1], m[2]) for m in map(_QUOTIENT.match, texts) if m and m[2] in values]
        return tuple(dict.fromkeys(found))

    @cached_property
    def shape_checks(self) -> tuple[ShapeRead, ...]:
        """The other dimensions: each must equal its expression."""
        read = {(r.tensor, r.dim) for r in self.size_reads.values()}
        return tuple(
            ShapeRead(number, dim, expression)
            for number, tensor in enumerate(self.tensors)
            for dim, expression in enumerate(tensor.shape)
            if (number, dim) not in read
        )

    def _parameters(self, with_defaults: bool) -> str:
        parts = [f"Tensor{'?' if t.optional else ''} {t.name}" for t in self.tensors]
        parts += [f"float {name}" for name in self.operator.scalars]
        pairs = len(PAIR_SUFFIXES)
        for attribute in self.attributes:
            default = f"={attribute.default}" if with_defaults and not attribute.pair else ""
            parts.append(f"int{f'[{pairs}]' if attribute.pair else ''} {attribute.name}{default}")
        return ", ".join(parts)

    @property
    def schema(self) -> str:
        """The op's full schema."""
        return f"{self.operator.name}({self._parameters(True)}, str? precision=None) -> Tensor"

    @property
    def reference_schema(self) -> str:
        """The schema of the op that answers with PyTorch; the reason says why it is asked."""
        return (
            f"{self.operator.name}_reference({self._parameters(False)}, str? precision, str reason) -> Tensor"
        )

    @cached_property
    def output_minimums(self) -> tuple[str, ...]:
        """Expressions that must be at least 1 (a batch may be empty): the computed dimensions of the
        family's output, and the computed sizes that a kernel receives.
        """
        family = self.family
        texts = [
            e.text.strip() for e in family.output.shape if e.names and e.text.strip() not in family.sizes
        ]
        texts += [name for name in family.abi_sizes if name in family.derived]
        return tuple(dict.fromkeys(texts))

    @property
    def module_parameters(self) -> dict[str, tuple[str, ...]]:
        """Arguments of the module's constructor for the compiled-in sizes: name -> the sizes it sets."""
        return constructor_sizes(self.family)


def channel_start(signature: Signature, name: str) -> float:
    """The initial value of a module's channel vector: the one that changes nothing, as far as there is
    one.
    """
    uses = {step.op for step in signature.operator.epilogue for _, value in step.arguments if value == name}
    return 1.0 if uses and uses <= {"mul", "div"} else 0.0
