# SPDX-License-Identifier: Apache-2.0
"""All of coldforge's environment variables, parsed in one place. Nothing here makes a folder or probes a
device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError

KNOWN_VARIABLES = ("COLDFORGE_HOME", "COLDFORGE_JOBS", "COLDFORGE_CXX", "COLDFORGE_BUILD")


@dataclass(frozen=True)
class Settings:
    """What the environment decides.

    Attributes:
        home: folder for studies, compiled variants and device records (``COLDFORGE_HOME``).
        jobs: compiler processes to run at once (``COLDFORGE_JOBS``).
        cxx: the C++ compiler of the cpu target (``COLDFORGE_CXX``).
        may_build: whether importing code may build a missing extension (``COLDFORGE_BUILD`` not ``0``).
    """

    home: Path
    jobs: int
    cxx: str
    may_build: bool


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
    )


def _home(env: Mapping[str, str]) -> Path:
    given = env.get("COLDFORGE_HOME")
    if given:
        return Path(given).expanduser().absolute()
    cache = env.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path.home() / ".cache"
    return base / "coldforge"


def _jobs(text: str | None) -> int:
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise InputError(f"COLDFORGE_JOBS is {text!r}; it must be a whole number from 1 to 1024")
    return int(text)


def _flag(text: str | None) -> bool:
    if text is None or text == "":
        return True
    if text not in ("0", "1"):
        raise InputError(f"COLDFORGE_BUILD is {text!r}; it must be 0 or 1")
    return text == "1"
