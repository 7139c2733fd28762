# SPDX-License-Identifier: Apache-2.0
"""Calls at the edges of what a frozen package does: errors of the reference, mappings over nothing, gradients
of a vector that stands in the chain twice, checks that come late.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.freeze import Winner, freeze
from coldforge.generated.runtime.derivatives import layer_of

pytestmark = pytest.mark.build

NAME = "cf_edges"
TWICE = """
operator: conv2d_twice
family: conv2d
summary: a shift before a division, and after it
module: Conv2dTwice
channel_vectors: [shift]
scalars: {divisor: 4.0}
epilogue:
  - add: shift
  - div: divisor
  - sub: shift
workloads:
  small: {N: 2, C_in: 8, H: 16, W: 16, C_out: 6, kernel_size: 3}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edges")


@pytest.fixture(scope="module")
def package(
    folder: Path, naive_winner: Callable[..., Winner], frozen_package: Callable[..., ModuleType]
) -> ModuleType:
    (folder / "templates" / "operators").mkdir(parents=True)
    (folder / "templates" / "operators" / "conv2d_twice.yaml").write_text(TWICE)
    declared = catalogue(folder / "templates")
    twice = naive_winner(
        declared=declared.operator("conv2d_twice"),
        epilogue="v = (v + a.shift[k]) / float(a.divisor) - a.shift[k];",
    )
    return frozen_package(folder, NAME, [naive_winner(), twice], declared=declared)


@pytest.fixture(autouse=True)
def _fresh_warnings(package: ModuleType) -> None:
    package.runtime.fallback.forget_warnings()


def _tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return (
        torch.randn(2, 8, 6, 7, generator=g),
        torch.randn(6, 8, 3, 3, generator=g) / 8,
        torch.randn(6, generator=g),
    )


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), torch.OutOfMemoryError("no memory"), ZeroDivisionError("x")]
)
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_what_the_reference_raises_is_raised(
    package: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    needs_grad: bool,
    autocast: bool,
) -> None:
    """Through C++ every error is a RuntimeError: an interrupt would be caught as one."""
    op = package.runtime.package.OPERATORS["conv2d_divide_leaky_relu"]

    def fails(*_: Any) -> torch.Tensor:
        raise error

    monkeypatch.setattr(op, "reference", fails)
    x, weight, bias = _tensors()
    if autocast:
        x = x.bfloat16()
    weight.requires_grad_(needs_grad)
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        warnings.simplefilter("ignore")
        with pytest.raises(type(error)) as raised:
            package.conv2d_divide_leaky_relu(x, weight, bias, dilation=2)
    assert raised.value.args == error.args
    # Nothing of it is left to be raised by another call.
    with pytest.raises(ValueError, match="the output would be empty"):
        package.conv2d_divide_leaky_relu(_tensors()[0][:, :, :2], weight, bias)


def test_exhausted_memory_of_the_output_is_named_so(package: ModuleType) -> None:
    fallback = importlib.import_module(f"{NAME}.runtime.fallback")
    error = RuntimeError("coldforge: allocating failed in PyTorch: CUDA out of memory. Tried to allocate ...")
    assert type(fallback.cause_of(error)) is torch.OutOfMemoryError
    assert fallback.cause_of(other := RuntimeError("coldforge: asking a tensor's address failed")) is other


def test_warnings_as_errors(package: ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="no frozen kernel covers"):
            package.conv2d_divide_leaky_relu(*_tensors(), dilation=2)


def test_a_warning_names_the_callers_line(package: ModuleType, folder: Path) -> None:
    """Also of a caller whose folder's name begins with the package's."""
    (folder / f"{NAME}_user").mkdir()
    (folder / f"{NAME}_user" / "use.py").write_text(
        "def call(op, *tensors):\n    return op(*tensors, dilation=2)\n"
    )
    spec = importlib.util.spec_from_file_location("use", folder / f"{NAME}_user" / "use.py")
    assert spec is not None
    assert spec.loader is not None
    use = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(use)
    with pytest.warns(RuntimeWarning, match="no frozen kernel covers") as met:
        use.call(package.conv2d_divide_leaky_relu, *_tensors())
    assert met[0].filename == str(folder / f"{NAME}_user" / "use.py")


class Tagged(torch.Tensor):
    """A class of tensors that sees which functions are called with it."""

    met: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.met.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_with_ways_of_their_own(package: ModuleType) -> None:
    """The protocol of PyTorch's own functions: what stands in for a tensor is asked."""
    x, weight, bias = _tensors()
    want = package.conv2d_divide_leaky_relu(x, weight, bias)
    out = package.conv2d_divide_leaky_relu(x.as_subclass(Tagged), weight, bias)
    assert type(out) is Tagged
    assert Tagged.met == ["conv2d_divide_leaky_relu"]
    assert torch.equal(out.as_subclass(torch.Tensor), want)
    module = package.Conv2dDivideLeakyReLU(8, 6, 3, divisor=3.0)
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(module, torch.nn.ReLU()))
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert called == [package.conv2d_divide_leaky_relu]
    assert torch.equal(traced(x), module(x).relu())
    assert package.runtime.package.STATE.extension.last() is not None


def test_a_mapping_over_nothing(package: ModuleType) -> None:
    x, weight, bias = _tensors()
    op = package.conv2d_divide_leaky_relu
    out = torch.vmap(lambda x, w: op(x, w, bias), in_dims=(0, 2))(
        x.new_zeros(0, *x.shape), weight[:, :, None][:, :, :0]
    )
    assert out.shape == (0, 2, 6, 4, 5)


def test_a_vector_that_stands_in_the_chain_twice(package: ModuleType) -> None:
    x, weight, bias = _tensors()
    shift = torch.linspace(-1, 2, 6)
    ours, theirs = ([t.clone().requires_grad_() for t in (x, weight, bias, shift)] for _ in range(2))
    weights = torch.linspace(-1, 2, 240).view(2, 6, 4, 5)
    (package.conv2d_twice(*ours) * weights).sum().backward()
    assert package.runtime.package.STATE.extension.last() is not None
    column = theirs[3].view(1, -1, 1, 1)
    plain = F.conv2d(theirs[0], theirs[1], theirs[2])
    (((plain + column) / 4.0 - column) * weights).sum().backward()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_a_layer_that_pads_by_a_word_takes_a_second_forward() -> None:
    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, weight, padding="same")

    op: Any = SimpleNamespace(
        chain=(), linear=linear, tensors=["x", "weight"], own_tensor_count=2, attributes={}, name="same"
    )
    assert layer_of(op) is None
    op.linear = lambda x, weight: F.conv2d(x, weight, padding=1)
    assert layer_of(op) is not None


def test_a_compiled_call_may_be_the_first(package: ModuleType, folder: Path, tmp_path: Path) -> None:
    """It cannot ask whether kernels were checked: the op does, when it runs."""
    shutil.copytree(folder / NAME, tmp_path / NAME)
    (record,) = (tmp_path / NAME / "_build").glob("*/verified.json")
    record.unlink()
    code = f"""
import torch, warnings, {NAME} as package
warnings.simplefilter("error")
x, w, b = torch.ones(1, 8, 6, 6), torch.ones(6, 8, 3, 3), torch.arange(6.0)
call = torch.compile(package.conv2d_divide_leaky_relu, fullgraph=True, backend="aot_eager")
with torch.no_grad():
    out = call(x, w, b)
assert torch.equal(out[0, :, 0, 0], (72 + b) / 2), out
print(package.runtime.package.STATE.extension.last())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("@x86-64-v2")
    assert record.exists()


def test_no_check_waits_for_itself(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant that does not run ends in the reference, where a user's call would ask for a check: while one
    goes on, that would wait for ever."""
    state, quiet = package.runtime.package.STATE, []
    verify = importlib.import_module(f"{NAME}.runtime.verify")
    fallback = importlib.import_module(f"{NAME}.runtime.fallback")
    monkeypatch.setattr(verify, "verify_missing", lambda *_: quiet.append(fallback.CHECKING.on) or {})
    monkeypatch.setattr(state, "ready", False)
    monkeypatch.setattr(state, "record", {})
    package.runtime.package.prepare()
    assert quiet == [True]
    assert fallback.CHECKING.on is False


def test_who_waits_for_a_check_calls_again(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = package.runtime.package
    gpu: Any = SimpleNamespace(is_cuda=True, dtype=torch.float32, device=torch.device("cuda:7"))
    op = runtime.OPERATORS["conv2d_divide_leaky_relu"]
    begun, go_on, answers = threading.Event(), threading.Event(), []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def check(*_: Any) -> dict[str, Any]:
        begun.set()
        assert go_on.wait(30)
        raise runtime.PackageError("the manifest is gone")

    verify = importlib.import_module(f"{NAME}.runtime.verify")
    monkeypatch.setattr(verify, "verify_portable", check)
    threads = [threading.Thread(target=lambda: answers.append(runtime.check_more(op, gpu))) for _ in range(2)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    threads[1].join(0.2)  # it waits
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert answers == [False, True]  # the one that checked found nothing; the other looks once more
    assert runtime.check_more(op, gpu) is False


def test_nothing_to_check_it_at_is_not_right(package: ModuleType) -> None:
    verify = importlib.import_module(f"{NAME}.runtime.verify")
    state = package.runtime.package.STATE
    op = package.runtime.package.OPERATORS["conv2d_twice"]
    result = verify._check_variant(state.extension, 0, {"checks": []}, op)
    assert result["ok"] is False
    assert "no shape to check it at" in result["why"]


def test_constructors_refuse_groups_that_divide_nothing(package: ModuleType) -> None:
    for channels, groups in ((3, 2), (2, 4)):
        with pytest.raises(
            ValueError, match=f"in_channels must be divisible by groups={groups}, got {channels}"
        ):
            package.Conv2dDivideLeakyReLU(channels, 4, 3, groups=groups)


def test_freezing_without_a_shape_that_fits(tmp_path: Path, naive_winner: Callable[..., Winner]) -> None:
    """Where no ragged shape is one of the family's, the tuned one is what a build is checked at."""
    from coldforge.codegen.freeze import checks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "_fitting", lambda *_: None)
        freeze([naive_winner({"N": 3})], tmp_path / "cf_bare", "cf_bare")
    manifest = json.loads((tmp_path / "cf_bare" / "manifest.json").read_text())
    assert [c["x"][0] for c in manifest["entries"][0]["checks"]] == [3]
