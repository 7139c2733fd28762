# SPDX-License-Identifier: Apache-2.0
"""The reader of ptxas' resource report."""

from __future__ import annotations

import pytest
from coldforge.codegen.compile.ptxas_log import PtxasReport, first_error, report_for, reports

SPILLING = """\
ptxas info    : 270 bytes gmem
ptxas info    : Compiling entry function 'coldforge_kernel' for 'sm_90'
ptxas info    : Function properties for coldforge_kernel
ptxas         .     1448 bytes stack frame, 7156 bytes spill stores, 7772 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 1448 bytes cumulative stack size, 512 bytes smem
ptxas info    : Compile time = 423.343 ms
"""
TWO = (
    SPILLING
    + """\
ptxas info    : Compiling entry function 'other' for 'sm_90'
ptxas info    : Function properties for other
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers
"""
)


def test_every_figure_is_read() -> None:
    assert reports(SPILLING) == [
        PtxasReport(
            entry="coldforge_kernel",
            arch="sm_90",
            registers=64,
            stack_bytes=1448,
            spill_store_bytes=7156,
            spill_load_bytes=7772,
            shared_bytes=512,
        )
    ]


def test_entries_are_kept_apart() -> None:
    assert [report.registers for report in reports(TWO)] == [64, 12]
    other = report_for(TWO, "other")
    assert other is not None
    assert (other.spill_store_bytes, other.shared_bytes) == (0, 0)
    assert report_for(TWO, "absent") is None


@pytest.mark.parametrize("log", ["", "nothing of use", SPILLING.partition("ptxas info    : Used")[0]])
def test_incomplete_logs_give_nothing(log: str) -> None:
    assert reports(log) == []


def test_the_first_error_is_the_message() -> None:
    log = 'kernel.cu(3): warning #177-D: unused\nx.cuh(7): error: identifier "y" is undefined\n1 error\n'
    assert first_error(log) == 'x.cuh(7): error: identifier "y" is undefined'
    assert first_error("ptxas fatal   : Unresolved extern function 'f'") == (
        "ptxas fatal   : Unresolved extern function 'f'"
    )
    assert first_error("\n \n") == "the compiler gave no reason"
