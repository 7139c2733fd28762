# SPDX-License-Identifier: Apache-2.0
"""What a study keeps in its attributes and trials, checked when it is read: the database is a file that
anybody may alter, and Optuna's studies of others may be in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ..codegen.errors import ColdforgeError
from ..codegen.plain import BOOL, INTEGER, NUMBER, TEXT, WORD, Each, Items, Maybe, Schema, fault
from .outcome import TrialOutcome

ABOUT: Schema = {
    **dict.fromkeys(("operator", "workload", "precision", "compiler", "created"), TEXT),
    "driver": TEXT,
    "target": {"kind": TEXT, "arch": TEXT, "device": TEXT},
    "problem": {"dtype": TEXT, "dims": Each(INTEGER)},
    "spaces": Each(TEXT),
}
WINNER: Schema = {
    "trials": INTEGER,
    "final": BOOL,
    "winner": {
        "template": TEXT,
        "config": Each(WORD),
        "resources": Each(INTEGER),
        "measurement": {"time_ms": NUMBER, **dict.fromkeys(("floor_ms", "error", "energy_j"), Maybe(NUMBER))},
    },
    # What finals of an older version do not say: whether the winner is surely the fastest, and who ties.
    "declared": Maybe(BOOL),
    "ties": Maybe(Items({"template": TEXT, "config": Each(WORD)})),
    "rule": Maybe(TEXT),
    "objective": Maybe(TEXT),
}
_TIMED: Schema = {
    "outcome": TEXT,
    "template": TEXT,
    "config": Each(WORD),
    **dict.fromkeys(("time_ms", "floor_ms", "error"), Maybe(NUMBER)),
}
FINALS: Schema = Items(
    {
        **_TIMED,
        "standing": Maybe(TEXT),
        "chosen": Maybe(BOOL),
        **dict.fromkeys(("ratio", "energy_j"), Maybe(NUMBER)),
        **dict.fromkeys(("ci95_ms", "ratio_ci95", "energy_ci95_j"), Maybe(Items(NUMBER))),
        "ratio_deciding": Maybe(
            {
                **dict.fromkeys(("level", "p"), NUMBER),
                "interval": Items(NUMBER),
                "too_few_rounds": Maybe(BOOL),
            }
        ),
        "resources": Maybe(Each(INTEGER)),
    }
)
TRIAL: Schema = {
    **_TIMED,
    "reason": Maybe(TEXT),
    "code_digest": Maybe(TEXT),
    "resources": Maybe(Each(INTEGER)),
    "samples_ms": Maybe(Items(NUMBER)),
    "details": Maybe({"floor_ms": Maybe(NUMBER)}),
    **dict.fromkeys(("bound_ratio", "seconds"), Maybe(NUMBER)),
}
ROOTS: Schema = Items(TEXT)
_FOUND = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, RecursionError)
"""What Optuna raises where a cell of its database does not hold what it put there."""


def is_ours(about: Any) -> bool:
    """Whether the attribute says that coldforge made the study."""
    return isinstance(about, Mapping) and isinstance(about.get("operator"), str)


def checked(value: Any, schema: Schema, where: str) -> Any:
    """``value``, made as it should be.

    Raises:
        ColdforgeError: it is not.
    """
    wrong = fault(value, schema)
    if wrong:
        raise ColdforgeError(f"{where} is damaged: {wrong}")
    return value


def checked_trial(data: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A trial's data, as `TrialResult.from_dict` takes them.

    Raises:
        ColdforgeError: they are not made so.
    """
    checked(data, TRIAL, where)
    if data["outcome"] not in set(TrialOutcome):
        raise ColdforgeError(f"{where} is damaged: outcome {data['outcome'][:40]!r} is none")
    if data["outcome"] == TrialOutcome.OK and data["time_ms"] is None:
        raise ColdforgeError(f"{where} is damaged: time_ms is missing")
    return {name: value for name, value in data.items() if value is not None}


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Around Optuna's reading of its own database: what it does not find as it left it is one line.

    Raises:
        ColdforgeError: the database is damaged.
    """
    try:
        yield
    except _FOUND as error:
        raise ColdforgeError(
            f"{what} cannot be read, the database is damaged ({type(error).__name__}: {str(error)[:200]})"
        ) from error
