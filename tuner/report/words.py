# SPDX-License-Identifier: Apache-2.0
"""Figures and configs as a report writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def ms(value: float) -> str:
    """``0.2369 ms``."""
    return f"{value:.4g} ms"


def mj(joules: float) -> str:
    """``12.3 mJ``."""
    return f"{1e3 * joules:.4g} mJ"


def interval(low: float, high: float) -> str:
    """``0.2361 to 0.2378``."""
    return f"{low:.4g} to {high:.4g}"


def percent(share: float) -> str:
    """``58%``; one digit more under ten."""
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.1f}%"


def times(ratio: float) -> str:
    """``1.83x``."""
    return f"{ratio:.3g}x" if ratio < 10 else f"{ratio:.0f}x"


def config_text(config: Mapping[str, Any]) -> str:
    """``TILE_X=32 VEC=4``."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def changes(of: Mapping[str, Any], base: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(parameter, the base's value, the other's) of each parameter in which two configs differ; one that a
    config lacks is a dash there."""
    names = dict.fromkeys([*of, *base])
    pairs = [(name, str(base.get(name, "–")), str(of.get(name, "–"))) for name in names]  # noqa: RUF001
    return [(name, old, new) for name, old, new in pairs if old != new]


def changes_text(of: Mapping[str, Any], base: Mapping[str, Any], most: int = 5) -> str:
    """``TILE_X 32 → 64, VEC 4 → 8 and 3 more``."""
    found = changes(of, base)
    shown = ", ".join(f"{name} {old} → {new}" for name, old, new in found[:most])
    return shown + (f" and {len(found) - most} more" if len(found) > most else "")


def listed(items: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def counted(number: int, one: str, many: str = "") -> str:
    """``1 config``, ``3 configs``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def readable_bytes(count: float) -> str:
    """``587 MB`` (powers of ten)."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
