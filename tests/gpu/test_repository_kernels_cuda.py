# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels frozen in this repository, on a GPU of the model that they were tuned on."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from coldforge import generated
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.dtypes import dtype_named
from coldforge.codegen.problem import Problem
from coldforge.generated.runtime import manifest, package
from coldforge.tuner.bound import expect, judge
from coldforge.tuner.inputs import draw

pytestmark = [pytest.mark.gpu, pytest.mark.build]
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

MODEL = torch.cuda.get_device_name()
ENTRIES = [e for e in manifest.load().entries if e["target"]["kind"] == "cuda"]
SIZES = [{}, {"N": 1}, {"N": 3, "H": 61, "W": 67}, {"N": 2, "H": 9, "W": 131}, {"N": 1, "H": 3, "W": 3}]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["normal", "mixed", "nonfinite"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: str(e["name"]))
def test_frozen_kernel(entry: dict[str, Any], kind: str, sizes: dict[str, int]) -> None:
    if entry["target"]["device"] != MODEL:
        pytest.skip(f"frozen for {entry['target']['device']}")
    operator = catalogue().operator(entry["operator"])
    optional = operator.optional_tensors
    absent = [name for name in optional if not entry["specialisation"][f"has_{name}"]]
    dims = {**entry["workload"], **sizes}
    problem = Problem(operator, dims, dtype_named(entry["dtype"]), tuple(absent), operator.scalars)
    tensors = {n: t.cuda() for n, t in draw(problem, kind, 1).items()}
    function = getattr(generated, entry["operator"])
    scalars = problem.scalars
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        inputs = [tensors.get(t.name) for t in problem.tensors]
        got = function(*inputs, **scalars, **problem.attributes())
        assert package.STATE.extension is not None
        assert str(package.STATE.extension.last()).startswith(entry["name"])
        assert judge(got, expect(problem, tensors, scalars, entry["precision"])).ratio <= 1
