# SPDX-License-Identifier: Apache-2.0
"""Recorded spaces: every config of a space with its time, from a file.

Read are CSV (a column a parameter, then `time_ms`, empty where the config failed; further columns are
ignored), the results format T4, and coldforge's own exports in CSV and JSON; each may be gzipped.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...codegen.errors import InputError
from ..search.feasible import TEMPLATE, FeasibleSet
from .lines import Config, Line
from .lines_csv import lines_of_csv
from .lines_json import lines_of_json

MOST_BYTES = 512 << 20
_ENDINGS = (".gz", ".csv", ".json")
_ONE = "recorded"
"""Stands for the template where a file knows none."""


@dataclass(frozen=True)
class Recorded:
    """A space whose every config was timed.

    Attributes:
        name: The file's, without endings.
        feasible: The configs, all unseen. Files know no default config.
        times: float64 [configs], NaN where one failed; the unit is the file's.
    """

    name: str
    feasible: FeasibleSet
    times: np.ndarray

    @property
    def optimum(self) -> float:
        """The least time."""
        return float(np.nanmin(self.times))


def read_recorded(path: Path) -> Recorded:
    """Reads a recorded space.

    A config that stands there twice counts as the last one says: a study may have tried it again.

    Raises:
        InputError: no such file, or it is of none of the formats, or damaged, or no config of it has a time.
    """
    text = _text(path)
    lines = lines_of_json(path, text) if text.lstrip()[:1] in ("{", "[") else lines_of_csv(path, text)
    found: dict[tuple[Any, ...], Line] = {}
    for config, time in lines:
        found[tuple(sorted(config.items()))] = (config, time)
    configs: dict[str, list[Config]] = {}
    times: dict[str, list[float]] = {}
    for config, time in found.values():
        template = str(config.pop(TEMPLATE, _ONE))
        configs.setdefault(template, []).append(config)
        times.setdefault(template, []).append(time)
    if any(config.keys() != of[0].keys() for of in configs.values() for config in of):
        raise InputError(f"{path}: its configs do not all have the same parameters")
    every = np.array([time for of in times.values() for time in of], dtype=float)
    if not np.isfinite(every).any():
        raise InputError(f"{path}: no config in it has a time")
    return Recorded(_name(path), FeasibleSet(configs), every)


def _name(path: Path) -> str:
    name = path.name
    while name.endswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return name or path.name


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is no file")
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InputError(f"{path}: over {MOST_BYTES >> 20} MB; recorded spaces are smaller")
        return data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
