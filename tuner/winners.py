# SPDX-License-Identifier: Apache-2.0
"""Winners in storage and out of it: what a study keeps of its best variant, and what freezing collects.

A study holds its winner whole (text, cubin, launch expressions, measurement), so that freezing needs
neither the cache nor the templates as they were.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from optuna.storages import BaseStorage

from ..codegen.errors import InputError
from ..codegen.freeze.stored import checked_winner
from ..codegen.freeze.winner import Winner, winner_of
from .outcome import TrialResult
from .plan import Plan
from .study import Study, find_study, list_studies
from .tools import Job

PORTABLE = "portable"
"""In a study's winner record: the best variant that other architectures can run too, where the winner is
none."""


def winner_record(
    plan: Plan,
    study: str,
    job: Job,
    result: TrialResult,
    trials: int,
    *,
    final: bool,
    portable_only: bool = False,
) -> dict[str, Any]:
    """What a study stores of its winner, as plain JSON.

    Args:
        study: the study's name.
        job: the variant, compiled.
        result: its measurement.
        trials: stored trials at the time of the finals.
        final: whether the measurement comes from the finals.
        portable_only: it is kept for its PTX alone, beside a winner that has none.
    """
    measured = datetime.now(UTC).isoformat()
    measurement = {
        **result.details,
        "time_ms": result.time_ms,
        "floor_ms": result.details.get("floor_ms"),
        "error": result.error,
        "bound_ratio": result.bound_ratio,
        "measured": measured,
        "final": final,
    }
    winner = winner_of(
        plan.problem,
        plan.spaces[job.point.template],
        plan.config(job.point),
        plan.target,
        job.source,
        job.artifact,
        precision=plan.precision,
        measurement=measurement,
        study=study,
    )
    if portable_only:
        winner = replace(winner, binary=None, portable_only=True)
    return {"trials": trials, "final": final, "time_ms": result.time_ms, "winner": winner_to_dict(winner)}


def winner_to_dict(winner: Winner) -> dict[str, Any]:
    """Plain JSON; the binary compressed and in base64."""
    values = {field.name: getattr(winner, field.name) for field in fields(winner)}
    plain = {name: dict(value) if hasattr(value, "items") else value for name, value in values.items()}
    plain["flags"] = list(winner.flags)
    if winner.binary is not None:
        plain["binary"] = base64.b64encode(zlib.compress(winner.binary, 9)).decode("ascii")
    return plain


def winner_from_dict(data: Mapping[str, Any], where: str = "a winner") -> Winner:
    """The inverse of `winner_to_dict`; keys of a newer version are dropped.

    Args:
        where: what a message calls the place it comes from.

    Raises:
        InputError: a field is missing or of another kind.
    """
    known = {field.name: data[field.name] for field in fields(Winner) if field.name in data}
    binary = known.get("binary")
    if binary is not None:
        try:
            known["binary"] = zlib.decompress(base64.b64decode(binary))
        except (TypeError, ValueError, zlib.error) as error:
            raise InputError(f"{where}: malformed binary ({error})") from None
    return checked_winner(known, where)


def study_winner(study: Study) -> Winner | None:
    """The winner that a study holds; None before one is known."""
    record = study.winner
    return None if record is None else winner_from_dict(record["winner"], f"study {study.name}: its winner")


def study_winners(study: Study) -> list[Winner]:
    """The winner that a study holds, and the best portable variant beside it where it has one."""
    winner, record = study_winner(study), study.winner or {}
    beside = record.get(PORTABLE)
    found = [] if winner is None else [winner]
    return found + ([winner_from_dict(beside, f"study {study.name}: its {PORTABLE}")] if beside else [])


@dataclass(frozen=True)
class Collected:
    """What there is to freeze.

    Attributes:
        winners: ordered by key.
        passed_over: studies whose winner would have been taken, each with why it was not.
    """

    winners: list[Winner]
    passed_over: dict[str, PassedOver]


@dataclass(frozen=True)
class PassedOver:
    """A study that is newer than what is taken, or the only one."""

    operator: str
    why: str


def collect_winners(storage: BaseStorage | None, names: Sequence[str] = ()) -> list[Winner]:
    """The winners to freeze: see `collect`, which passes over none."""
    return collect(storage, names).winners


def collect(
    storage: BaseStorage | None, names: Sequence[str] = (), why_not: Callable[[Study], str] = lambda _: ""
) -> Collected:
    """The winners to freeze: of each problem on each device the newest study's.

    Args:
        storage: where the studies are; None gives none.
        names: operators or studies (whole names or unique prefixes); every study when empty.
        why_not: why a study's winners are not to be taken; empty for one that will do.

    Raises:
        UnknownName: a name matches no study.
        InputError: a named study has no winner yet.
    """
    studies = list_studies(storage)
    if names:
        studies = [study for name in names for study in _named(storage, studies, name)]
    newest: dict[str, Winner] = {}
    passed: dict[str, tuple[str, PassedOver]] = {}
    for study in studies:  # the newest last
        found = study_winners(study)
        why = why_not(study) if found else ""
        for winner in found:
            if why:
                passed[winner.key] = (study.name, PassedOver(winner.operator, why))
            else:
                newest[winner.key] = winner
                passed.pop(winner.key, None)  # older than what is taken: it would not have been anyway
    return Collected([newest[key] for key in sorted(newest)], dict(passed.values()))


def _named(storage: BaseStorage | None, studies: list[Study], name: str) -> list[Study]:
    of_operator = [study for study in studies if study.about["operator"] == name]
    found = of_operator or [find_study(storage, name)]
    if not any(study.winner for study in found):
        raise InputError(f"{name} has no winner yet; finish a run of coldforge tune {name} first")
    return found
