# SPDX-License-Identifier: Apache-2.0
"""A tiny family of many configs and few kernels: what is tested is who tries which, not the kernels. Eight
configs in a row have one source text, so that it is compiled once and timed about once."""

from __future__ import annotations

from pathlib import Path

NAME = "stairs"
CONFIGS, ALIKE, BEST = 240, 8, 5
"""How many configs there are, how many in a row are one kernel, and which kernel is the fastest by far."""

_FILES = {
    "family.yaml": """\
tensors: {x: [rows, columns]}
output: {y: [rows, columns]}
reference: reference:stairs
workloads: {small: {rows: 8, columns: 64}}
""",
    "reference.py": "def stairs(x):\n    return 2 * x + 1\n",
    "stairs.cpp.jinja": """\
struct Args {
  const float* x;
  float* y;
  long long rows;
};
#ifndef COLDFORGE_ENTRY
#define COLDFORGE_ENTRY {{ symbol }}
#endif
extern "C" __attribute__((visibility("default")))
void COLDFORGE_ENTRY(long long begin, long long end, void* raw) {
  const Args& args = *static_cast<const Args*>(raw);
  for (int turn = 0; turn < {{ derived.TURNS }}; ++turn) {
    asm volatile("" ::: "memory");
    for (long long i = begin * {{ problem.columns }}; i < end * {{ problem.columns }}; ++i)
      args.y[i] = 2 * args.x[i] + 1;
  }
}
""",
    "space.yaml": f"""\
target: cpu
parameters: {{STEP: {list(range(CONFIGS))}}}
derived: {{TURNS: "100 if STEP // {ALIKE} == {BEST} else 800 + STEP // {ALIKE}"}}
launch: {{units: rows, grain: 64}}
""",
}


def write_alike(folder: Path) -> Path:
    """Writes the family ``stairs``; returns its folder."""
    place = folder / NAME
    place.mkdir(parents=True)
    for name, text in _FILES.items():
        (place / name).write_text(text)
    return place
