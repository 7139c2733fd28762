# SPDX-License-Identifier: Apache-2.0
"""The frozen CUDA kernels under NVIDIA's compute-sanitizer, where it is installed: no access out of bounds,
no race in shared memory, nothing read that nobody wrote, in the very binaries that are shipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from coldforge.generated.runtime import manifest

pytestmark = [pytest.mark.gpu, pytest.mark.build, pytest.mark.timeout(900)]
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

FOUND = 97
ENTRIES = [e for e in manifest.load().entries if e["target"]["kind"] == "cuda"]
# One sample of the workload's channels: a sanitizer takes some hundred times as long.
_CALL = """
import sys
import torch
from coldforge import generated
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.dtypes import dtype_named
from coldforge.codegen.problem import Problem
from coldforge.generated.runtime import manifest, package
from coldforge.tuner.inputs import draw

(entry,) = (e for e in manifest.load().entries if e["name"] == sys.argv[1])
operator = catalogue().operator(entry["operator"])
absent = tuple(n for n in operator.optional_tensors if not entry["specialisation"][f"has_{n}"])
dims = {**entry["workload"], "N": 1, "H": 61, "W": 67}
problem = Problem(operator, dims, dtype_named(entry["dtype"]), absent, operator.scalars)
tensors = {n: t.cuda() for n, t in draw(problem, "normal", 1).items()}
options = {**problem.scalars, **problem.attributes(), "precision": entry["precision"]}
package.prepare()
extension = package.STATE.extension
# Another entry may be what dispatch takes at this size.
(number,) = (i for i, name in enumerate(extension.variants) if name.startswith(entry["name"] + "@sm_"))
with torch.no_grad(), extension.only(number):
    getattr(generated, entry["operator"])(*(tensors.get(t.name) for t in problem.tensors), **options)
torch.cuda.synchronize()
assert str(extension.last()).startswith(entry["name"]), extension.last()
"""


def _sanitizer() -> str | None:
    """On the path, of a toolkit, or of the wheel that has it."""
    roots = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")), *(Path(p) / "nvidia" for p in sys.path)]
    near = (place for root in roots for place in sorted(root.glob("**/compute-sanitizer")) if place.is_file())
    return shutil.which("compute-sanitizer") or next(map(str, near), None)


@pytest.fixture(scope="module")
def sanitizer() -> str:
    found = _sanitizer()
    if found is None:
        pytest.skip("no compute-sanitizer here")
    return found


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry["name"]))
def test_a_frozen_kernel_has_no_findings(entry: dict[str, object], tool: str, sanitizer: str) -> None:
    model = torch.cuda.get_device_name()
    target = entry["target"]
    assert isinstance(target, dict)
    if target["device"] != model:
        pytest.skip(f"frozen for {target['device']}")
    # PyTorch's own kernels are not what is asked about.
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--kernel-name", "kernel_substring=coldforge"]
    command = [sanitizer, *options, sys.executable, "-c", _CALL, str(entry["name"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
