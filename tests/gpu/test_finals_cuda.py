# SPDX-License-Identifier: Apache-2.0
"""Finals on a GPU: the same kernel under two names does not win against itself. The figure of 100 runs is
`benchmarks/aa.py`'s."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.build]

SCRIPT = Path(__file__).parents[2] / "benchmarks/aa.py"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("operator", "template"),
    [("conv2d_divide_leaky_relu", "direct"), ("conv_transpose2d_mean_logsumexp", "collapsed")],
)
def test_a_kernel_does_not_win_against_itself(operator: str, template: str, tmp_path: Path) -> None:
    place = tmp_path / "aa.json"
    words = [operator, "--target", "cuda", "--template", template, "--runs", "20", "--out", str(place)]
    environment = {**os.environ, "COLDFORGE_HOME": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), *words]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    summary = json.loads(place.read_text())["summary"]
    assert summary["false_winners"] <= 1
    assert 0.99 < summary["ratio_median"] < 1.01
