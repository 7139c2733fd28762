# SPDX-License-Identifier: Apache-2.0
"""A problem: an operator at one shape and dtype. It knows its sizes, its work, its tensors and its PyTorch
reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from . import declare
from .chain import active, apply_chain, roles_of, shape_after
from .dtypes import DType, dtype_named, precision_named
from .errors import InputError, ReferenceFailed, UnknownName
from .expr import Value, evaluate_int
from .operator import Operator, shape_words
from .places import placed
from .steps import EpilogueStep

if TYPE_CHECKING:
    import torch

MAX_SIZE = 2**31 - 1


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of a problem: its name, shape, and whether the call passes one (optional tensors may be
    absent)."""

    name: str
    shape: tuple[int, ...]
    optional: bool = False
    present: bool = True


@dataclass(frozen=True)
class Problem:
    """An operator at a shape. Build it with ``make_problem``, which checks everything.

    Attributes:
        dims: every size and attribute value by name (``C_in``, ``stride_h``, ...).
        absent: optional tensors that are not passed.
        scalars: the run-time scalars' values.
        workload: the workload's name, with ``+`` when fields were overridden.
        precision: the error class that is asked for; the dtype's own when empty.
    """

    operator: Operator
    dims: Mapping[str, int] = field(hash=False)
    dtype: DType
    absent: tuple[str, ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict, hash=False)
    workload: str = ""
    precision: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", precision_named(self.precision or None, self.dtype))
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))
        object.__setattr__(self, "scalars", MappingProxyType(dict(self.scalars)))

    @cached_property
    def values(self) -> dict[str, Value]:
        """All names an expression may read: sizes, attribute values, derived values, ``has_<optional>``,
        dtype_bytes; a space's expressions also precision, the error class's name."""
        family = self.operator.family
        values: dict[str, Value] = dict(self.dims)
        values["dtype_bytes"] = self.dtype.bytes
        values["precision"] = self.precision
        for name in self.operator.optional_tensors:
            values[f"has_{name}"] = int(name not in self.absent)
        for name, expression in family.derived.items():
            values[name] = expression.evaluate(values)
        return values

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The inputs in the order of the call and of the kernel's arguments, channel vectors last."""
        family = self.operator.family
        specs = [
            TensorSpec(t.name, self._shape(t.shape), t.optional, t.name not in self.absent)
            for t in family.tensors
        ]
        for vector in self.operator.vectors:
            shape = self._shape(vector.shape) if vector.shape else (self.channels,)
            specs.append(TensorSpec(vector.name, shape, vector.optional, vector.name not in self.absent))
        return tuple(specs)

    @property
    def channels(self) -> int:
        """The length of a channel vector; 1 where the output has no channels."""
        dim = self.operator.family.channel_dim
        return 1 if dim is None else self.linear_shape[dim]

    @cached_property
    def linear_shape(self) -> tuple[int, ...]:
        """The shape of the family's own output, before the epilogue."""
        return self._shape(self.operator.family.output.shape)

    @cached_property
    def steps(self) -> tuple[EpilogueStep, ...]:
        """The epilogue without the steps whose channel vector is left out."""
        return active(self.operator.epilogue, self.absent)

    @cached_property
    def output(self) -> TensorSpec:
        """The output, after the epilogue."""
        family = self.operator.family
        shape = shape_after(self.operator.epilogue, self.linear_shape, roles_of(family), 1)
        return TensorSpec(family.output.name, shape)

    def _shape(self, expressions: Sequence[Any]) -> tuple[int, ...]:
        return tuple(evaluate_int(e.text, self.values) for e in expressions)

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the run-time sizes that a kernel receives, in order."""
        return self.operator.family.abi_sizes

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Names of the run-time scalars that a kernel receives, in order."""
        return tuple(self.operator.scalars)

    @cached_property
    def constants(self) -> dict[str, int]:
        """What is compiled in: every integer value except those known only at run time."""
        family = self.operator.family
        late = set(family.run_time) | set(family.abi_sizes)
        return {name: int(v) for name, v in self.values.items() if name not in late and isinstance(v, int)}

    @cached_property
    def specialisation(self) -> dict[str, int | str]:
        """What a frozen kernel is keyed by besides its device: the compiled-in values and the dtype."""
        return {"dtype": self.dtype.name, **{n: v for n, v in self.constants.items() if n != "dtype_bytes"}}

    @property
    def flops(self) -> int:
        """Arithmetic operations of the linear part (a multiply-add counts two)."""
        return evaluate_int(self.operator.family.flops.text, self.values)

    @property
    def reduction_length(self) -> int:
        """Terms summed for one output."""
        return evaluate_int(self.operator.family.reduction_length.text, self.values)

    @property
    def bytes_read(self) -> int:
        """Bytes of the inputs, each read once."""
        return sum(_elements(t.shape) for t in self.tensors if t.present) * self.dtype.bytes

    @property
    def bytes_written(self) -> int:
        """Bytes of the output, written once."""
        return _elements(self.output.shape) * self.dtype.bytes

    def with_dims(self, **dims: int) -> Problem:
        """The same problem at other sizes, checked.

        Raises:
            InputError: the sizes are not legal.
        """
        return _checked(replace(self, dims={**self.dims, **dims}))

    def in_class(self, precision: str) -> Problem:
        """The same problem, of which results of error class ``precision`` are asked.

        Raises:
            UnknownName: there is no such class.
        """
        return replace(self, precision=precision)

    def attributes(self) -> dict[str, Any]:
        """The attributes as the reference takes them: pairs as tuples."""
        grouped: dict[str, Any] = {}
        for attribute in self.operator.family.attributes:
            values = tuple(self.dims[n] for n in attribute.value_names)
            grouped[attribute.name] = values if attribute.pair else values[0]
        return grouped

    def linear_reference(self, tensors: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
        """The family's reference, before the epilogue, on the tensors' own dtype.

        Raises:
            ReferenceFailed: it raised something, or gave another shape or dtype than it should.
        """
        with placed(self.operator.family.folder):
            return self._called(self.operator.family.reference_name, tensors)

    def magnitude(self, tensors: Mapping[str, torch.Tensor | None]) -> torch.Tensor | None:
        """The sum of absolute terms behind each element of ``linear_reference``; None when the family gives
        none.

        Raises:
            ReferenceFailed: as ``linear_reference``.
        """
        name = self.operator.family.magnitude_name
        with placed(self.operator.family.folder):
            return self._called(name, tensors) if name else None

    def _called(self, name: str, tensors: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
        """A function of the reference file, its result checked."""
        import torch

        family = self.operator.family
        given = {t.name: tensors.get(t.name) for t in family.tensors}
        result = family.call(name, {**given, **self.attributes()})
        where = f"{family.folder.name}/{family.reference_file.name}: {name}"
        if not isinstance(result, torch.Tensor):
            raise ReferenceFailed(f"{where} gave {type(result).__name__}, which is no tensor")
        if tuple(result.shape) != self.linear_shape:
            raise ReferenceFailed(
                f"{where} gave a tensor of shape {list(result.shape)}; the declared output "
                f"{family.output.name} is {list(self.linear_shape)} here"
            )
        like = next(t for t in given.values() if t is not None)
        for kept, found, wanted in (
            ("type", result.dtype, like.dtype),
            ("device", result.device, like.device),
        ):
            if found != wanted:
                raise ReferenceFailed(
                    f"{where} gave {found} for inputs of {wanted}; it must keep their {kept}"
                )
        return result

    def apply_epilogue(
        self, v: torch.Tensor, tensors: Mapping[str, torch.Tensor | None], scalars: Mapping[str, float]
    ) -> torch.Tensor:
        """The epilogue chain on ``v``, in its own dtype."""
        return apply_chain(self.steps, v, roles_of(self.operator.family), tensors, scalars)

    def reference(
        self, tensors: Mapping[str, torch.Tensor | None], scalars: Mapping[str, float] | None = None
    ) -> torch.Tensor:
        """The whole operator in PyTorch, on the tensors' own dtype."""
        return self.apply_epilogue(
            self.linear_reference(tensors), tensors, self.scalars if scalars is None else scalars
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; ``Catalogue.problem_from_dict`` is the inverse."""
        return {
            "operator": self.operator.name,
            "dims": dict(self.dims),
            "dtype": self.dtype.name,
            "absent": list(self.absent),
            "scalars": dict(self.scalars),
            "workload": self.workload,
            "precision": self.precision,
        }


def make_problem(
    operator: Operator,
    workload: str,
    shape: Mapping[str, int] | None = None,
    dtype: str = "fp32",
    scalars: Mapping[str, float] | None = None,
) -> Problem:
    """The operator at a named workload, with some fields overridden.

    Args:
        shape: words of ``shape_words``; aliases and pairs set several values at once; ``bias=0`` leaves the
            bias out.

    Raises:
        UnknownName: no such workload, shape word or dtype.
        InputError: a size is missing, out of range, or the family refuses the combination.
    """
    if workload not in operator.workloads:
        raise UnknownName(f"workload of {operator.name}", workload, list(operator.workloads))
    overrides = dict(shape or {})
    words = shape_words(operator)
    for word in overrides:
        if word not in words:
            raise UnknownName(f"shape field of {operator.name}", word, words)
    dims: dict[str, int] = {}
    absent: list[str] = []
    for attribute in operator.family.attributes:
        dims.update(dict.fromkeys(attribute.value_names, attribute.default))
    for given in (operator.workloads[workload], overrides):
        for word, value in given.items():
            _assign(operator, word, value, dims, absent)
    name = workload + ("+" if overrides else "")
    values = {**operator.scalars, **(scalars or {})}
    return _checked(Problem(operator, dims, dtype_named(dtype), tuple(sorted(absent)), values, name))


def problem_from_parts(operator: Operator, data: Mapping[str, Any]) -> Problem:
    """The inverse of ``Problem.to_dict`` once the operator was looked up."""
    parts = (dtype_named(data["dtype"]), tuple(data["absent"]), data["scalars"], data["workload"])
    return _checked(Problem(operator, data["dims"], *parts, data.get("precision", "")))


def _assign(operator: Operator, word: str, value: Any, dims: dict[str, int], absent: list[str]) -> None:
    family = operator.family
    optional = operator.optional_tensors
    if word in optional:
        if value not in (0, 1, True, False):
            raise InputError(
                f"{operator.name}: {word}={declare.brief(value)}; it must be 1 (given) or 0 (left out)"
            )
        absent[:] = [n for n in absent if n != word] + ([] if value else [word])
        return
    pairs = {a.name: a.value_names for a in family.attributes}
    targets = family.aliases.get(word) or pairs.get(word) or (word,)
    numbers = list(value) if isinstance(value, list) else [value] * len(targets)
    if len(numbers) != len(targets):
        raise InputError(
            f"{operator.name}: {word}={declare.brief(value)}; expected one number or {len(targets)}"
        )
    for name, number in zip(targets, numbers, strict=True):
        if isinstance(number, bool) or not isinstance(number, int):
            raise InputError(f"{operator.name}: {name}={declare.brief(number)}; it must be a whole number")
        dims[name] = number


def _checked(problem: Problem) -> Problem:
    operator, family = problem.operator, problem.operator.family
    minimums = dict.fromkeys(family.sizes, 1)
    for attribute in family.attributes:
        minimums.update(dict.fromkeys(attribute.value_names, attribute.minimum))
    for name, low in minimums.items():
        if name not in problem.dims:
            raise InputError(f"{operator.name}: the workload gives no {name}")
        value = problem.dims[name]
        if not low <= value <= MAX_SIZE:
            raise InputError(
                f"{operator.name}: {name}={declare.brief(value)}; it must be from {low} to {MAX_SIZE}"
            )
    for rule in family.rules:
        if not rule.require.evaluate(problem.values):
            raise InputError(f"{operator.name}: {rule.explain(problem.values)}")
    # Derived ones too: kernels count rows and columns in 32 bits, and frozen ones are called with no others.
    for name in family.abi_sizes:
        value = problem.values[name]
        if isinstance(value, int) and value > MAX_SIZE:
            raise InputError(f"{operator.name}: {name} would be {value}; it must be at most {MAX_SIZE}")
    for vector, spec in zip(operator.vectors, problem.tensors[len(family.tensors) :], strict=True):
        if _elements(spec.shape) != problem.channels:
            raise InputError(
                f"{operator.name}: {vector.name} is {list(spec.shape)}; it must have a value for each of the "
                f"{problem.channels} channels"
            )
    for tensor in (*problem.tensors, TensorSpec(family.output.name, problem.linear_shape), problem.output):
        if min(tensor.shape, default=1) < 1:
            raise InputError(
                f"{operator.name}: tensor {tensor.name} would be {list(tensor.shape)}; every extent must be "
                "at least 1"
            )
        if _elements(tensor.shape) > 2**40:
            raise InputError(
                f"{operator.name}: tensor {tensor.name} {list(tensor.shape)} has more than 2**40 elements"
            )
    if problem.reduction_length < 1 or problem.flops < 0:
        raise InputError(
            f"{operator.name}: reduction_length is {problem.reduction_length} and flops {problem.flops} "
            "here; they must be at least 1 and 0"
        )
    return problem


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
