# SPDX-License-Identifier: Apache-2.0
"""What makes two runs share a study: every input that, when it changes, makes the old times stale.

A study's name is a readable prefix and the digest of those inputs, so a changed kernel header, compiler or
driver starts a new study by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_FORMAT = 2
_DIGEST_LENGTH = 12


@dataclass(frozen=True)
class StudyInputs:
    """All inputs of a study, as plain JSON values.

    Attributes:
        operator: the operator's name.
        workload: the workload's name; a label only, the sizes are in ``problem``.
        operator_digest: of the operator's and its family's declarations.
        problem: sizes, dtype, absent tensors and scalars.
        precision: the error class.
        target: the device and its attributes.
        spaces: template -> digest of its space's content.
        sources: file name -> digest of each template and header text that variants are rendered from.
        compiler: name and version.
        flags: compile flags.
        driver: the device driver's version; empty where there is none.
        verification: version of the verification inputs and bounds.
        defaults: template -> its default config, where that is legal. Which config is tried first makes no
            time stale: it does not name the study.
    """

    operator: str
    workload: str
    operator_digest: str
    problem: Mapping[str, Any]
    precision: str
    target: Mapping[str, Any]
    spaces: Mapping[str, str]
    sources: Mapping[str, str]
    compiler: str
    flags: tuple[str, ...] = ()
    driver: str = ""
    verification: str = ""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    format: int = field(default=_FORMAT)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the inputs; the order in which mappings were written does not matter."""
        inputs = self.to_dict()
        # A label: the same sizes under another name are the same measurements.
        inputs["problem"] = {name: value for name, value in self.problem.items() if name != "workload"}
        del inputs["workload"], inputs["defaults"]
        return digest_of(inputs)

    @property
    def name(self) -> str:
        """The study's name: ``<operator>-<workload>-<precision>-<arch>-<digest>``."""
        parts = (
            self.operator,
            self.workload,
            self.precision,
            str(self.target["arch"]),
            self.digest[:_DIGEST_LENGTH],
        )
        return "-".join(parts)


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of a JSON value; mappings are sorted by key."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
