# SPDX-License-Identifier: Apache-2.0
"""A family as a user writes it: four short files in a folder."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "family.yaml": """\
tensors: {x: [rows, columns], weight: [columns]}
output: {y: [rows, columns]}
reference: reference:row_norm
workloads: {small: {rows: 64, columns: 96}}
""",
    "reference.py": """\
import torch


def row_norm(x, weight):
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps=1e-6)
""",
    "row_norm.cpp.jinja": """\
#include "mean.hpp"
{% call kernel.cpu_units("row") %}
const float* in = x + row * columns;
const float squares = sum<LANES>(columns, [&](int i) { return in[i] * in[i]; });
const float scale = 1 / sqrtf(mean(squares, columns) + 1e-6f);
for (int i = 0; i < columns; ++i) y[row * columns + i] = in[i] * scale * weight[i];
{% endcall %}
""",
    "mean.hpp": "static inline float mean(float sum, int count) { return sum / count; }\n",
    "space.yaml": """\
parameters: {LANES: [8, 16], GRAIN: [1, 8]}
launch: {units: rows, grain: GRAIN}
""",
}
NAME = "row_norm"


def write_family(folder: Path, **changes: str) -> Path:
    """Writes the family ``row_norm``; returns its folder.

    Args:
        folder: where its folder is made.
        changes: file name with ``_`` for each other sign -> its text instead.
    """
    place = folder / NAME
    place.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (place / name).write_text(changes.get(name.replace(".", "_"), text))
    return place


def replace(path: Path, old: str, new: str) -> None:
    """Replaces a part of a file that must be there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
