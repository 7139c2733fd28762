# SPDX-License-Identifier: Apache-2.0
"""PTX of frozen kernels on a real GPU: where a package has no machine code for it, the driver compiles it."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from coldforge.codegen.compile.nvrtc import compiler_version
from coldforge.codegen.freeze import Winner
from frozen_gpu import HERE, MAJOR, WinnerFactory, close, expected, inputs, last, winner

pytestmark = [pytest.mark.gpu, pytest.mark.build]
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
if HERE == "sm_80":
    pytest.skip("needs a GPU newer than 8.0", allow_module_level=True)


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory,
    naive_winner: WinnerFactory,
    frozen_package: Callable[..., ModuleType],
) -> ModuleType:
    folder = tmp_path_factory.mktemp("ptx")
    elsewhere = {"arch": "sm_80", "ptx": "sm_80"}
    wrong = winner(naive_winner, folder, {"C_out": 3}, error=0.5, **elsewhere)
    new = winner(naive_winner, folder, {"C_out": 4}, **elsewhere)
    version = new.ptx.split(".version ")[1].split()[0]
    large = winner(naive_winner, folder, {"C_out": 5}, **elsewhere)
    winners = [
        winner(naive_winner, folder, {"C_out": 6}, **elsewhere),
        wrong,
        _with(new, ptx=new.ptx.replace(f".version {version}", ".version 99.0")),
        _with(large, launch={**large.launch, "shared_bytes": "400000"}),
        winner(naive_winner, folder, {"C_out": 7}, ptx="sm_80"),
    ]
    return frozen_package(folder, "cf_ptx_package", winners)


def _with(base: Winner, **changes: Any) -> Winner:

    return dataclasses.replace(base, **changes)


@pytest.fixture(autouse=True)
def _fresh_warnings(package: ModuleType) -> None:
    package.runtime.fallback.forget_warnings()


def _driver_takes_it() -> bool:
    """Whether this driver is as new as the NVRTC that makes the PTX here."""
    driver = importlib.import_module("cuda.bindings.driver")  # compiled, without type stubs
    _, version = driver.cuDriverGetVersion()
    major, minor = map(int, compiler_version().removeprefix("nvrtc ").split("."))
    return version >= 1000 * major + 10 * minor


def test_another_architectures_entry_runs_here_from_its_ptx(package: ModuleType) -> None:
    if not _driver_takes_it():
        pytest.skip("NVRTC is newer than the driver: its PTX is not taken")
    tensors = inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = package.conv2d_divide_leaky_relu(*tensors)
    assert last(package).endswith("@compute_80")
    assert close(out, expected(*tensors))
    record = package.runtime.verify.read_record(package.runtime.manifest.load())
    # Those of 6 filters, and of 7 too, whose cubin a driver that is too old would leave to it.
    names = [n for n in record if "@compute_80 on " in n and record[n]["ok"]]
    assert len(names) == 2
    assert all(n.endswith(HERE) for n in names)
    # From here on as any kernel: other sizes, a graph.
    x, weight, bias = inputs(n=3, h=65, w=7)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = package.conv2d_divide_leaky_relu(x, weight, bias)
    graph.replay()
    torch.cuda.synchronize()
    assert close(captured, expected(x, weight, bias))


@pytest.mark.parametrize(
    ("filters", "why"),
    [
        (3, "not verified on this machine"),
        (4, r"is PTX 99\.0 and the driver takes [0-9.]+.*tune one: coldforge tune conv2d_divide_leaky_relu"),
        (5, r"needs 400000 bytes of shared memory and the GPU has \d+; tune one: coldforge tune"),
    ],
    ids=["wrong", "newer_than_the_driver", "too_much_shared_memory"],
)
def test_what_does_not_run_here_is_the_reference_with_one_warning(
    package: ModuleType, filters: int, why: str
) -> None:
    if filters == 3 and not _driver_takes_it():
        pytest.skip("NVRTC is newer than the driver: its PTX is not taken")
    torch.backends.cudnn.allow_tf32 = False
    tensors = inputs(k=filters)
    with pytest.warns(RuntimeWarning, match=why) as seen:
        outs = [package.conv2d_divide_leaky_relu(*tensors) for _ in range(3)]
    assert len([w for w in seen if "coldforge" in str(w.message)]) == 1
    assert last(package) == "None"
    for out in outs:
        assert float((out.double().cpu() - expected(*tensors)).abs().max()) < 0.01


def test_machine_code_comes_before_ptx(package: ModuleType) -> None:
    tensors = inputs(k=7)
    assert close(package.conv2d_divide_leaky_relu(*tensors), expected(*tensors))
    assert last(package).endswith(f"@{HERE}")


def test_the_repositorys_ptx_answers_as_its_machine_code() -> None:
    import coldforge.generated as generated
    from coldforge.generated.runtime.package import STATE, prepare

    prepare()
    extension = STATE.extension
    assert extension is not None
    names = [n for n in extension.variants if n.endswith("@compute_80") and "logsumexp" in n]
    assert names
    if MAJOR != 9:
        pytest.skip("the repository's machine code is for sm_90")
    g = torch.Generator().manual_seed(0)
    shapes = [(2, 64, 33, 47), (64, 128, 3, 3), (128,), (128, 1, 1)]
    x, weight, conv_bias, bias = (torch.randn(s, generator=g).cuda() for s in shapes)
    op = generated.conv_transpose2d_mean_logsumexp
    want = op(x, weight, conv_bias, bias)
    assert str(extension.last()).endswith("@sm_90")
    with extension.only(extension.variants.index(names[0])):
        out = op(x, weight, conv_bias, bias)
        answered = extension.last()
    if answered is None:
        pytest.skip("the driver is older than the PTX")
    assert answered == names[0]
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
