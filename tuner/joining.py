# SPDX-License-Identifier: Apache-2.0
"""What a worker needs to join a study: the study says what was asked for, and the worker's own machine makes
the same plan of it, or says why it cannot.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage, RDBStorage

from ..codegen.catalogue import Catalogue
from ..codegen.errors import InputError
from ..codegen.liveness import own_mark
from ..codegen.plain import INTEGER, NUMBER, TEXT, Maybe, Schema
from ..codegen.target import Target
from .backends import toolchain_of
from .equipment import TuneOptions
from .identity import StudyInputs
from .plan import Plan, plan_study
from .roots import extended
from .search import sampler_named
from .storage import is_embedded
from .stored import ABOUT, checked
from .study import Study, find_study, list_studies

REQUEST: Schema = {
    "template": Maybe(TEXT),
    "trials": Maybe(INTEGER),
    "until": Maybe(NUMBER),
    "sampler": Maybe(TEXT),
    "seed": INTEGER,
    "spill_limit_bytes": Maybe(INTEGER),
}
_ELSEWHERE = ("target", "spaces", "driver", "compiler", "flags")
"""What another device may well have of its own: it makes a study beside."""
_RENDERED = ":rendered"


@dataclass(frozen=True)
class Request:
    """How far and how a study is to be searched, by all of its workers.

    Attributes:
        template: the only template; all when None.
        trials: the study's total of distinct finished configs; no limit when None.
        until: when the search ends, seconds since 1970 by the storage's clock; never when None.
        sampler: its name; the default one when None.
        seed, spill_limit_bytes: see `TuneOptions`.
    """

    template: str | None
    trials: int | None
    until: float | None
    sampler: str | None
    seed: int
    spill_limit_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    def options(self, now: float) -> TuneOptions:
        """What a worker does.

        Args:
            now: by the storage's clock.
        """
        left_s = None if self.until is None else self.until - now
        common = (self.trials, left_s, self.sampler, self.seed)
        limit = self.spill_limit_bytes
        return TuneOptions(*common, spill_limit_bytes=limit, finals=False, salt=own_salt())


def own_salt() -> tuple[int, ...]:
    """What tells this process's random draws from those of others on the study."""
    return (zlib.crc32(str(own_mark()).encode()),)


def request_of(options: TuneOptions, template: str | None, now: float) -> Request:
    """What `tune` asks of the workers of its study.

    Args:
        now: by the storage's clock.
    """
    budget = options.time_budget_s
    until = None if budget is None else now + budget
    how = (options.sampler, options.seed, options.spill_limit_bytes)
    return Request(template, options.trials, until, *how)


def clock_of(storage: BaseStorage) -> float:
    """The time that all workers have in common: seconds since 1970 by the storage's clock, which is this
    machine's where the storage is a file."""
    if not isinstance(storage, RDBStorage) or is_embedded(storage):
        return datetime.now(UTC).timestamp()
    from .shared.storage import SharedStorage  # it needs what the extra `postgres` brings

    assert isinstance(storage, SharedStorage)
    return storage.now()


def study_to_join(storage: BaseStorage | None, name: str | None) -> Study:
    """The study that a worker is to work on: the named one, else the one that was touched last of those that
    `tune` asked something of.

    Args:
        name: see `find_study`.

    Raises:
        UnknownName: there is none of that name.
        InputError: there is none to join.
    """
    if name is not None:
        study = find_study(storage, name, empty=True)  # perhaps it has just begun
        if study.request is None:
            raise InputError(f"study {study.name} asks nothing of workers; coldforge tune on it does")
        return study
    found = [study for study in list_studies(storage) if study.request is not None]
    if not found:
        raise InputError("there is no study to join yet; begin one: coldforge tune OP --storage URL")
    return found[-1]


def read_request(study: Study) -> Request:
    """What is asked of the study's workers.

    Raises:
        ColdforgeError: it is damaged.
    """
    found = checked(study.request, REQUEST, f"study {study.name}: request")
    return Request(**{name: found.get(name) for name in Request.__dataclass_fields__})


def declarations(study: Study, given: Catalogue, named: bool) -> Catalogue:
    """The declarations with those of the study's operator.

    Args:
        given: the built-in ones, and those of ``--templates``.
        named: whether ``--templates`` was given.

    Raises:
        InputError: they are not on this machine.
    """
    operator = checked(study.about, ABOUT, f"study {study.name}")["operator"]
    roots: Sequence[Path] = [] if named else [Path(root) for root in study.roots]
    catalogue = extended(given, {operator: roots} if roots else {})
    catalogue.operator(operator)
    return catalogue


def plan_here(study: Study, catalogue: Catalogue, target: Target, request: Request) -> Plan:
    """The study's plan on this machine: its own name is the study's, or that of a study beside it where the
    device is another.

    Raises:
        InputError: this machine would measure something else under the same conditions.
    """
    about = checked(study.about, ABOUT, f"study {study.name}")
    if about["target"]["kind"] != target.kind:
        raise InputError(f"study {study.name} is of {about['target']['kind']}; this device is {target.kind}")
    sampler_named(request.sampler)
    problem = catalogue.problem_from_dict(about["problem"])
    plan = plan_study(catalogue, problem, about["precision"], target, toolchain_of(target), request.template)
    inputs = plan.inputs()
    if inputs.name != study.name:
        _refuse_other_sources(study.name, about, inputs)
    return plan


def _refuse_other_sources(name: str, about: Mapping[str, Any], inputs: StudyInputs) -> None:
    """Raises InputError where more than the device is different."""
    here = inputs.to_dict()
    alike = about["target"] == here["target"]
    fields = ["operator_digest", "verification", *(_ELSEWHERE[1:] if alike else ())]
    differ = [field.replace("_", " ") for field in fields if about.get(field) != here[field]]
    theirs, ours = about.get("sources") or {}, here["sources"]
    common = [file for file in theirs if file in ours and (alike or not file.endswith(_RENDERED))]
    differ += [file for file in common if theirs[file] != ours[file]]
    if differ:
        raise InputError(
            f"study {name} was begun with another {', another '.join(differ[:3])} than this machine has; "
            "workers of one study need the same coldforge and declarations, and on one kind of device the "
            "same compiler and driver"
        )
