# SPDX-License-Identifier: Apache-2.0
"""One line of a record: a config and its time."""

from __future__ import annotations

import math
from typing import Any

from ...codegen.errors import InputError

Config = dict[str, Any]
Line = tuple[Config, float]
"""Parameters, the template among them where there are some, and the time; NaN for one that failed."""

ILLEGAL = "illegal"
"""The outcome of what the space refuses: it is no config of the space."""


def time_of(value: Any, where: str) -> float:
    """A time as it was recorded; NaN where there is none.

    Raises:
        InputError: it is no time.
    """
    if value is None or value == "":
        return math.nan
    try:
        time = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where}: the time {value!r:.40} is no number") from None
    if time <= 0:
        raise InputError(f"{where}: a time of {time:g}; a kernel takes some")
    return time if math.isfinite(time) else math.nan
