# SPDX-License-Identifier: Apache-2.0
"""An operator's calling convention, derived from its declaration: schema, names of values, where each
size is read off.

The frozen op takes, in this order: the family's tensors, the epilogue's channel vectors, the scalars, the
attributes, and the precision. Wrapper, C++ table and reference all follow this one description.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..errors import DeclarationError
from ..expr import Expr
from ..family import PAIR_SUFFIXES, Attribute, Family
from ..operator import Operator


@dataclass(frozen=True)
class TensorArgument:
    """A tensor of the call: its shape over the problem's values; channel vectors have the output's
    channel count.
    """

    name: str
    shape: tuple[Expr, ...]
    optional: bool


@dataclass(frozen=True)
class ShapeRead:
    """Dimension ``dim`` of tensor number ``tensor``: the place where a size is read off, or is checked."""

    tensor: int
    dim: int
    expression: Expr


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
        channels = (self.family.output.shape[self.family.channel_dim],)
        own = [TensorArgument(t.name, t.shape, t.optional) for t in self.family.tensors]
        return (*own, *(TensorArgument(name, channels, False) for name in self.operator.channel_vectors))

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """The attributes in order."""
        return self.family.attributes

    @cached_property
    def value_names(self) -> tuple[str, ...]:
        """Every name that an expression may read, in a fixed order."""
        family = self.family
        attributes = [n for a in family.attributes for n in a.value_names]
        present = [f"has_{t.name}" for t in family.tensors if t.optional]
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
        """For each size, the dimension of a required tensor that is that size.

        Raises:
            DeclarationError: no required tensor has the size as a dimension of its own.
        """
        reads: dict[str, ShapeRead] = {}
        for number, tensor in enumerate(self.tensors):
            for dim, expression in enumerate(tensor.shape):
                name = expression.text.strip()
                if not tensor.optional and name in self.family.sizes:
                    reads.setdefault(name, ShapeRead(number, dim, expression))
        for name in self.family.sizes:
            if name not in reads:
                where = f"{self.family.name}/family.yaml"
                raise DeclarationError(
                    f"{where}: no tensor has the size {name} as a dimension; it cannot be frozen"
                )
        return {name: reads[name] for name in self.family.sizes}

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
    def output_minimums(self) -> tuple[Expr, ...]:
        """Output dimensions that are computed rather than read: each must be at least 1 (a batch may be
        empty).
        """
        return tuple(e for e in self.family.output.shape if e.text.strip() not in self.family.sizes)

    @cached_property
    def module_parameters(self) -> dict[str, tuple[str, ...]]:
        """Arguments of the module's constructor for the compiled-in sizes: name -> the sizes it sets."""
        grouped = {size: alias for alias, sizes in self.family.aliases.items() for size in sizes}
        arguments: dict[str, tuple[str, ...]] = {}
        for size in self.family.sizes:
            if size in self.family.run_time:
                continue
            alias = grouped.get(size)
            name = alias or _CONSTRUCTOR_NAMES.get(size, size.lower())
            arguments[name] = self.family.aliases[alias] if alias else (size,)
        return arguments


# What torch.nn calls them.
_CONSTRUCTOR_NAMES = {"C_in": "in_channels", "C_out": "out_channels"}


def channel_start(signature: Signature, name: str) -> float:
    """The initial value of a module's channel vector: the one that changes nothing, as far as there is
    one.
    """
    uses = {step.op for step in signature.operator.epilogue for _, value in step.arguments if value == name}
    return 1.0 if uses and uses <= {"mul", "div"} else 0.0
