# SPDX-License-Identifier: Apache-2.0
"""All of coldforge's environment variables, parsed in one place. Nothing here makes a folder or probes a
device."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError

KNOWN_VARIABLES = (
    "COLDFORGE_HOME",
    "COLDFORGE_JOBS",
    "COLDFORGE_CXX",
    "COLDFORGE_BUILD",
    "COLDFORGE_COMPILE_LIMIT_S",
    "COLDFORGE_TRIAL_LIMIT_S",
    "COLDFORGE_GRACE_S",
)
COMPILE_LIMIT_S, TRIAL_LIMIT_S, GRACE_S = 120.0, 60.0, 60.0


@dataclass(frozen=True)
class Settings:
    """What the environment decides.

    Attributes:
        home: folder for studies, compiled variants and device records (``COLDFORGE_HOME``).
        jobs: compiler processes to run at once (``COLDFORGE_JOBS``).
        cxx: the C++ compiler of the cpu target (``COLDFORGE_CXX``).
        may_build: whether importing code may build a missing extension (``COLDFORGE_BUILD`` not ``0``).
        compile_limit_s: seconds after which a compiler counts as hung (``COLDFORGE_COMPILE_LIMIT_S``).
        trial_limit_s: seconds after which a running variant counts as hung, beside what its arithmetic may
            take (``COLDFORGE_TRIAL_LIMIT_S``).
        grace_s: seconds of silence after which a worker on a shared study counts as dead
            (``COLDFORGE_GRACE_S``).
    """

    home: Path
    jobs: int
    cxx: str
    may_build: bool
    compile_limit_s: float = COMPILE_LIMIT_S
    trial_limit_s: float = TRIAL_LIMIT_S
    grace_s: float = GRACE_S


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings.

    Args:
        environ: the environment; ``os.environ`` when not given.

    Raises:
        InputError: a variable that starts with ``COLDFORGE_`` but does not exist, or a value out of range.
    """
    env = os.environ if environ is None else environ
    for name in env:
        if name.startswith("COLDFORGE_") and name not in KNOWN_VARIABLES:
            raise InputError(f"unknown environment variable {name}; known: {', '.join(KNOWN_VARIABLES)}")
    return Settings(
        home=_home(env),
        jobs=_jobs(env.get("COLDFORGE_JOBS")),
        cxx=env.get("COLDFORGE_CXX") or "g++",
        may_build=_flag(env.get("COLDFORGE_BUILD")),
        compile_limit_s=_seconds(env, "COLDFORGE_COMPILE_LIMIT_S", COMPILE_LIMIT_S),
        trial_limit_s=_seconds(env, "COLDFORGE_TRIAL_LIMIT_S", TRIAL_LIMIT_S),
        grace_s=_seconds(env, "COLDFORGE_GRACE_S", GRACE_S),
    )


def _home(env: Mapping[str, str]) -> Path:
    given = env.get("COLDFORGE_HOME")
    try:
        if given:
            return Path(given).expanduser().absolute()
        cache = env.get("XDG_CACHE_HOME")
        base = Path(cache) if cache else Path.home() / ".cache"
    except RuntimeError:  # ~name of nobody, or a user without a home folder
        raise InputError(f"COLDFORGE_HOME is {given or 'not set'}: no such user's home folder") from None
    return base / "coldforge"


def _jobs(text: str | None) -> int:
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise InputError(f"COLDFORGE_JOBS is {text!r}; it must be a whole number from 1 to 1024")
    return int(text)


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= 86400.0:
        raise InputError(f"{name} is {text!r}; it must be a number of seconds, more than 0 and at most 86400")
    return seconds


def _flag(text: str | None) -> bool:
    if text is None or text == "":
        return True
    if text not in ("0", "1"):
        raise InputError(f"COLDFORGE_BUILD is {text!r}; it must be 0 or 1")
    return text == "1"
