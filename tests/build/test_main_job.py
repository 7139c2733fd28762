# SPDX-License-Identifier: Apache-2.0
"""The main job on an operator that is YAML alone: tune, freeze, import, right against float64."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from coldforge.tuner.cli import run

# Run in a process of its own: the package is imported as its users import it, by folder.
CHECK = """
import sys, warnings
import torch
warnings.simplefilter("error", UserWarning)
from job_kernels import Conv2dMish, conv2d_mish
torch.manual_seed(0)
for n, h, w in ((2, 32, 32), (1, 5, 3), (3, 17, 41)):
    x, weight, bias = torch.randn(n, 8, h, w), torch.randn(32, 8, 3, 3), torch.randn(32)
    got = conv2d_mish(x, weight, bias, padding=1)
    wide = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    want = torch.nn.functional.mish(wide)
    error = float((got.double() - want).norm() / want.norm())
    assert error < 1e-6, (n, h, w, error)
    module = Conv2dMish(8, 32, 3, padding=1)
    module.load_state_dict({"weight": weight, "bias": bias})
    with torch.no_grad():
        assert torch.equal(module(x), got)
print("coldforge" in {name.split(".")[0] for name in sys.modules})
"""


@pytest.mark.build
def test_yaml_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))
    tune = ["tune", "conv2d_mish", "--target", "cpu", "--workload", "small", "--trials", "4", "--json"]
    assert run(tune) == 0
    tuned = json.loads(capsys.readouterr().out)
    assert tuned["status"] == "ok"
    assert tuned["outcomes"] == {"ok": 4}
    assert tuned["best"]["error"] < 1e-6
    freeze = ["freeze", "conv2d_mish", "--package", "job_kernels", "--out", str(tmp_path), "--json"]
    assert run(freeze) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "ok"
    done = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "False", "a frozen package must not import coldforge"
