# SPDX-License-Identifier: Apache-2.0
"""Reads the resource report of `ptxas -v`, which NVRTC passes on in its program log."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>[^']+)'")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class PtxasReport:
    """What one entry function uses.

    Attributes:
        entry: The function's symbol.
        arch: What it was assembled for.
        registers: Registers a thread.
        stack_bytes: Local memory a thread.
        spill_store_bytes: Bytes stored by register spills, a thread.
        spill_load_bytes: Bytes loaded by register spills, a thread.
        shared_bytes: Static shared memory a block.
    """

    entry: str
    arch: str
    registers: int
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    shared_bytes: int = 0


def _report(entry: re.Match[str], text: str) -> PtxasReport | None:
    registers = _REGISTERS.search(text)
    if registers is None:
        return None
    spills, shared = _SPILLS.search(text), _SHARED.search(text)
    stack, stored, loaded = (int(value) for value in spills.groups()) if spills else (0, 0, 0)
    return PtxasReport(
        entry=entry["name"],
        arch=entry["arch"],
        registers=int(registers[1]),
        stack_bytes=stack,
        spill_store_bytes=stored,
        spill_load_bytes=loaded,
        shared_bytes=int(shared[1]) if shared else 0,
    )


def reports(log: str) -> list[PtxasReport]:
    """The reports in a log, in order; an entry whose lines are incomplete is left out."""
    entries = list(_ENTRY.finditer(log))
    ends = [*(entry.start() for entry in entries), len(log)][1:]
    found = (_report(entry, log[entry.end() : end]) for entry, end in zip(entries, ends, strict=True))
    return [report for report in found if report is not None]


def report_for(log: str, entry: str) -> PtxasReport | None:
    """The report of the entry function called `entry`; None when the log has none."""
    return next((report for report in reports(log) if report.entry == entry), None)


def first_error(log: str) -> str:
    """The first error line of a compiler log, else its last line; for a message of one line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = (line for line in lines if "error" in line.lower() or "ptxas fatal" in line)
    return next(errors, lines[-1] if lines else "the compiler gave no reason")
