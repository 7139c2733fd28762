# SPDX-License-Identifier: Apache-2.0
"""A winner: the best verified variant of one operator at one workload on one device, with all that
freezing it needs.

It is complete in itself: source, binary, launch expressions, and what was measured. So it can travel in a
bundle to a checkout on another machine, and be frozen there without the study it came from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..compile.artifact import Artifact
    from ..problem import Problem
    from ..render import KernelSource
    from ..space import Config, Space
    from ..target import Target

OTHER_SIZES = "other_sizes"
"""In a measurement: what the same kernel took at other sizes, on the same device: rows of ``sizes``, those
that are not compiled in, and ``time_ms``. Where the tuned sizes are among them, that time counts in dispatch:
it compares with others of the same run."""
_FROZEN_MAPPINGS = ("specialisation", "workload", "config", "launch", "derived", "resources", "measurement")


@dataclass(frozen=True)
class Winner:
    """One frozen entry's content.

    Attributes:
        operator, family, template: names of what was declared.
        operator_digest: digest of the operator's declared meaning when it was tuned; an entry of
            another meaning is never dispatched.
        target: what it was tuned on: ``Target.to_dict()``.
        dtype, precision: the tensors' type and the error class it was verified in.
        specialisation: everything compiled in (``Problem.specialisation``).
        workload: every size and attribute value of the tuned shape, by name (``Problem.dims``).
        workload_name: ``small``; with ``+`` when fields were overridden.
        config: the tuner's choice.
        source_text, source_name, source_digest: the rendered source; the digest is the sha256 of the text.
        binary: the cubin that was verified and timed (cuda); None for cpu, whose source is compiled
            when it is built.
        launch: launch geometry, name -> expression text.
        derived: values that launch expressions may read, name -> expression text, in order.
        compiler, flags: what made the binary (cpu: what made the measured library).
        resources: registers, spills, shared memory, code size.
        measurement: at least ``time_ms``, ``floor_ms``, ``error`` (relative L2), ``bound_ratio``; what it
            took at other sizes as `OTHER_SIZES`.
        study: name of the study it won.
        verified: False for a binary that was recompiled and not checked since.
        portable_only: frozen for its PTX alone, beside a faster winner of the same problem whose instructions
            no other architecture has; it has no binary.
        ptx: the source compiled for any newer architecture too (cuda); None where it cannot be, or was not.
    """

    operator: str
    family: str
    template: str
    operator_digest: str
    target: Mapping[str, Any] = field(hash=False)
    dtype: str
    precision: str
    specialisation: Mapping[str, int | str] = field(hash=False)
    workload: Mapping[str, int] = field(hash=False)
    workload_name: str
    config: Mapping[str, int | str] = field(hash=False)
    source_text: str
    source_name: str
    source_digest: str
    binary: bytes | None
    launch: Mapping[str, str] = field(hash=False)
    derived: Mapping[str, str] = field(hash=False)
    compiler: str
    flags: tuple[str, ...]
    resources: Mapping[str, int] = field(hash=False)
    measurement: Mapping[str, Any] = field(hash=False)
    study: str
    verified: bool = True
    ptx: str | None = None
    portable_only: bool = False

    def __post_init__(self) -> None:
        for name in _FROZEN_MAPPINGS:
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        object.__setattr__(self, "target", MappingProxyType(dict(self.target)))
        object.__setattr__(self, "flags", tuple(self.flags))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy does not pickle; plain dicts do.
        values = [getattr(self, f.name) for f in fields(self)]
        return (Winner, tuple(dict(v) if isinstance(v, Mapping) else v for v in values))

    @property
    def kind(self) -> str:
        """``cuda`` or ``cpu``."""
        return str(self.target["kind"])

    @property
    def arch(self) -> str:
        """``sm_90``, ``x86-64-v3``, ..."""
        return str(self.target["arch"])

    @property
    def device(self) -> str:
        """The device's model name."""
        return str(self.target["device"])

    @property
    def time_ms(self) -> float:
        """The measured time of one call."""
        return float(self.measurement["time_ms"])

    @property
    def binary_digest(self) -> str:
        """sha256 of the cubin; empty without one."""
        return hashlib.sha256(self.binary).hexdigest() if self.binary is not None else ""

    @property
    def key(self) -> str:
        """What an entry is an answer for, as canonical JSON: a later winner of the same key replaces it."""
        parts = {
            "operator": self.operator,
            "dtype": self.dtype,
            "precision": self.precision,
            "kind": self.kind,
            "arch": self.arch,
            "device": self.device,
            "specialisation": dict(self.specialisation),
            "workload": dict(self.workload),
        }
        if self.portable_only:
            parts["portable_only"] = True
        return json.dumps(parts, sort_keys=True, separators=(",", ":"))

    @property
    def name(self) -> str:
        """The entry's short unique name: ``<operator>_<workload>_<dtype>_<arch>_<8 of the key's digest>``; a
        class that is not the dtype's own stands behind the dtype, ``portable`` behind the workload."""
        arch = self.arch.replace("-", "_")
        workload = self.workload_name.rstrip("+") or "shape"
        workload += "_portable" if self.portable_only else ""
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:8]
        of_class = self.dtype if self.precision == self.dtype else f"{self.dtype}_{self.precision}"
        return f"{self.operator}_{workload}_{of_class}_{arch}_{digest}"


def winner_of(
    problem: Problem,
    space: Space,
    config: Config,
    target: Target,
    source: KernelSource,
    artifact: Artifact,
    *,
    precision: str,
    measurement: Mapping[str, Any],
    study: str,
) -> Winner:
    """Puts a winner together from what the tuner has at hand.

    Args:
        source: the rendered text whose artifact was verified and timed.
        artifact: its binary; on cuda the cubin file is read into the winner.
        precision: the error class in which it was verified.
        measurement: at least ``time_ms``, ``floor_ms``, ``error``, ``bound_ratio``; plain JSON.
    """
    return Winner(
        operator=problem.operator.name,
        family=problem.operator.family.name,
        template=space.template,
        operator_digest=problem.operator.digest,
        target=target.to_dict(),
        dtype=problem.dtype.name,
        precision=precision,
        specialisation=problem.specialisation,
        workload=problem.dims,
        workload_name=problem.workload,
        config=dict(config),
        source_text=source.text,
        source_name=source.name,
        source_digest=source.digest,
        binary=artifact.path.read_bytes() if target.kind == "cuda" else None,
        launch={name: expression.text for name, expression in space.launch_exprs.items()},
        derived={name: expression.text for name, expression in space.derived.items()},
        compiler=artifact.compiler,
        flags=artifact.flags,
        resources=artifact.resources.to_dict(),
        measurement=measurement,
        study=study,
    )
