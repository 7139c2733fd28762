# SPDX-License-Identifier: Apache-2.0
"""A family: what a group of operators computes before its epilogue, declared in ``family.yaml``.

The declaration names the sizes, the attributes, the tensors and their shapes, what is known only at run
time, the work
counts, and the PyTorch reference (a function in a file beside it). Nothing here knows convolution.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import declare
from .errors import DeclarationError
from .expr import Expr, parse
from .places import placed
from .reference_file import DEFAULT_MODULE, call_function, load_function

PAIR_SUFFIXES = ("_h", "_w")
FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A field of a rule's reason."""


@dataclass(frozen=True)
class Attribute:
    """An integer argument of the operator that is fixed when a kernel is built.

    Attributes:
        name: as in the Python signature (``stride``).
        pair: whether it is one number per spatial axis (then ``stride_h`` and ``stride_w`` are its value
            names).
        default: its default, for both axes.
        minimum: the least legal value.
    """

    name: str
    pair: bool
    default: int
    minimum: int

    @property
    def value_names(self) -> tuple[str, ...]:
        """The names under which expressions and kernels see it."""
        return tuple(self.name + suffix for suffix in PAIR_SUFFIXES) if self.pair else (self.name,)


@dataclass(frozen=True)
class TensorDeclaration:
    """A tensor argument: its shape as expressions over the problem's values."""

    name: str
    shape: tuple[Expr, ...]
    optional: bool = False


@dataclass(frozen=True)
class Peer:
    """A function of the reference file that is timed beside the reference itself.

    Attributes:
        name: its row in a bench.
        function: takes what the reference takes.
        answers: whether it gives what the reference gives, by another way; else it is a yardstick, such as
            the time of reading an input, and its result is not looked at.
    """

    name: str
    function: str
    answers: bool = True


@dataclass(frozen=True)
class Rule:
    """A condition and the reason given when it does not hold (``{NAME}`` fields are filled in)."""

    require: Expr
    reason: str

    def explain(self, values: Mapping[str, Any]) -> str:
        """The reason with its fields filled in.

        Raises:
            DeclarationError: a field names no value.
        """
        try:
            return FIELD.sub(lambda field: str(values[field[1]]), self.reason)
        except KeyError as error:
            raise DeclarationError(
                f"reason {self.reason!r}: unknown name {error.args[0]!r}; {self.require.text} does not hold"
            ) from None


@dataclass(frozen=True)
class Family:
    """A declared family. See ``templates/conv2d/family.yaml`` for one with comments.

    Attributes:
        sizes: dimension names, each a positive integer.
        aliases: short words for several sizes at once (``kernel_size`` -> R, S).
        derived: values computed from the sizes and attributes, in order.
        run_time: the sizes a kernel learns at launch; every other size is compiled in.
        abi_sizes: the run-time values that a kernel receives, in order.
        channel_dim: the output dimension that channel vectors of an epilogue run along; None where there is
            none.
        reduces: what an operator's chain may reduce in a kernel of this family: ``channels``, ``pixels``.
        peers: other functions of the reference that are timed beside it.
        workload_inputs: the kinds of inputs that the workload itself is checked with; empty: the usual ones.
        reference_module: the stem of the Python file in the folder that holds the reference.
        workloads: of the operator that is the family alone, under its name; empty: there is no such operator.
        module: the name of that operator's ``torch.nn.Module`` form; empty when there is none.
        digest: of everything in the folder that decides what is computed.
    """

    name: str
    summary: str
    folder: Path
    sizes: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    aliases: Mapping[str, tuple[str, ...]] = field(hash=False)
    derived: Mapping[str, Expr] = field(hash=False)
    rules: tuple[Rule, ...] = ()
    tensors: tuple[TensorDeclaration, ...] = ()
    output: TensorDeclaration = field(default_factory=lambda: TensorDeclaration("y", ()))
    channel_dim: int | None = 1
    run_time: tuple[str, ...] = ()
    abi_sizes: tuple[str, ...] = ()
    flops: Expr = field(default_factory=lambda: parse("0"))
    reduction_length: Expr = field(default_factory=lambda: parse("1"))
    reference_name: str = ""
    magnitude_name: str = ""
    reduces: tuple[str, ...] = ()
    peers: tuple[Peer, ...] = ()
    workload_inputs: tuple[str, ...] = ()
    reference_module: str = DEFAULT_MODULE
    workloads: Mapping[str, Any] = field(default_factory=dict, hash=False)
    module: str = ""
    digest: str = ""

    @property
    def value_names(self) -> tuple[str, ...]:
        """Every name that an expression of the family may read, in a fixed order."""
        attributes = [n for a in self.attributes for n in a.value_names]
        present = [f"has_{t.name}" for t in self.tensors if t.optional]
        return (*self.sizes, *attributes, *present, "dtype_bytes", *self.derived)

    @property
    def reference_file(self) -> Path:
        """The Python file that holds the reference: torch and standard library only, so that it can be
        frozen."""
        return self.folder / f"{self.reference_module}.py"

    @property
    def reference(self) -> Callable[..., Any]:
        """The PyTorch function: tensors by name, then attributes by name (pairs as tuples)."""
        with placed(self.folder):
            return load_function(self.reference_file, self.reference_name)

    def peer(self, peer: Peer) -> Callable[..., Any]:
        """The function of a peer: same arguments as the reference."""
        with placed(self.folder):
            return load_function(self.reference_file, peer.function)

    def call(self, function: str, arguments: Mapping[str, Any]) -> Any:
        """The result of a function of the reference file.

        Raises:
            ReferenceFailed: it raised something.
        """
        with placed(self.folder):
            return call_function(self.reference_file, function, arguments)


def parse_rules(value: Any, where: str) -> tuple[Rule, ...]:
    """A list of ``{require: expression, reason: text}``."""
    rules = []
    for item in value if value == [] else declare.check_list(value, where):
        entry = declare.check_keys(item, where, ("require", "reason"))
        rules.append(
            Rule(
                declare.check_expression(entry["require"], where), declare.check_text(entry["reason"], where)
            )
        )
    return tuple(rules)
