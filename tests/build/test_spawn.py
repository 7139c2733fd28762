# SPDX-License-Identifier: Apache-2.0
"""A terminal's Ctrl-C and the processes that are being started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_INTERRUPTED_START = """
import os, pathlib, signal, sys, time
from coldforge.codegen.compile.compiling_process import CompilingProcess

if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: None)
    compiler = CompilingProcess(pathlib.Path(sys.argv[1]))
    for _ in range(30):
        os.killpg(0, signal.SIGINT)
        time.sleep(0.01)
    assert compiler.process.is_alive()
    compiler.stop()
    assert compiler.process.exitcode == 0, compiler.process.exitcode
"""


def test_ctrl_c_does_not_reach_a_process_that_starts(tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(_INTERRUPTED_START)
    command = [sys.executable, str(script), str(tmp_path)]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=60, start_new_session=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
