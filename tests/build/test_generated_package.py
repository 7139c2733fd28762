# SPDX-License-Identifier: Apache-2.0
"""A frozen package in use: dispatch, the reference where nothing fits, checks of arguments, modules,
tracing, threads.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.freeze import Winner
from coldforge.codegen.target import cpu_target

pytestmark = pytest.mark.build
Frozen = Callable[..., ModuleType]


GAIN = """
operator: conv2d_gain
family: conv2d
summary: a gain for each channel, then a cap
module: Conv2dGain
channel_vectors: [gain]
scalars: {cap: 1.5}
epilogue:
  - mul: gain
  - clamp: {min: -0.25, max: cap}
workloads:
  small: {N: 2, C_in: 8, H: 16, W: 16, C_out: 6, kernel_size: 3}
"""


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory, naive_winner: Callable[..., Winner], frozen_package: Frozen
) -> ModuleType:
    here = cpu_target()
    folder = tmp_path_factory.mktemp("packages")
    (folder / "templates" / "operators").mkdir(parents=True)
    (folder / "templates" / "operators" / "conv2d_gain.yaml").write_text(GAIN)
    declared = catalogue(folder / "templates")
    gain = {
        "declared": declared.operator("conv2d_gain"),
        "epilogue": "v *= a.gain[k]; v = v < -0.25f ? -0.25f : v > float(a.cap) ? float(a.cap) : v;",
    }
    winners = [
        naive_winner({"N": 4}, arch="x86-64-v3"),
        naive_winner({"N": 1, "H": 256, "W": 256}, arch="x86-64-v3"),
        naive_winner({"N": 4, "stride": 2, "padding": 1}, device=here.device),
        naive_winner({"N": 4, "stride": 2, "padding": 1}, arch="x86-64-v3", time_ms=0.1),
        naive_winner(workload="unbiased"),
        naive_winner({"kernel_size": 1}, precision="tf32"),
        naive_winner({"kernel_size": 5}, arch="x86-64-v4"),
        naive_winner(**gain),
    ]
    return frozen_package(folder, "cf_test_package", winners, declared=declared)


@pytest.fixture(autouse=True)
def _fresh_warnings(package: ModuleType) -> None:
    package.runtime.fallback.forget_warnings()


def last(package: ModuleType) -> str | None:
    """The variant that answered this thread's last call, without the digest in its name."""
    name = package.runtime.package.STATE.extension.last()
    return None if name is None else name.partition("fp32_")[2][:9] + name.partition("@")[2]


def inputs(
    n: int = 2, h: int = 20, w: int = 24, *, kernel: int = 3, seed: int = 0
) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, 8, h, w, generator=g),
        torch.randn(6, 8, kernel, kernel, generator=g) / 8,
        torch.randn(6, generator=g),
    )


def expected(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    d: float = 2.0,
    s: float = 0.01,
    **k: Any,
) -> torch.Tensor:
    wide = None if bias is None else bias.double()
    return F.leaky_relu(F.conv2d(x.double(), weight.double(), wide, **k) / d, s)


def close(out: torch.Tensor, want: torch.Tensor) -> bool:
    return out.shape == want.shape and out.dtype == torch.float32 and bool((out - want).abs().max() < 2e-5)


@pytest.mark.parametrize("shape", [(1, 3, 3), (2, 20, 24), (3, 65, 7), (1, 4, 130), (5, 64, 64)])
def test_any_size_of_the_specialisation(package: ModuleType, shape: Sequence[int]) -> None:
    x, weight, bias = inputs(*shape)
    assert close(package.conv2d_divide_leaky_relu(x, weight, bias), expected(x, weight, bias))
    assert last(package) is not None
    out = package.conv2d_divide_leaky_relu(x, weight, bias, 3.5, -0.25)
    assert close(out, expected(x, weight, bias, 3.5, -0.25))


def test_the_nearest_workload_of_the_best_entry_answers(package: ModuleType) -> None:
    op = package.conv2d_divide_leaky_relu
    state = package.runtime.package.STATE.extension
    x, weight, bias = inputs(4, 64, 64)
    op(x, weight, bias)
    small = state.last()
    op(*inputs(1, 250, 260))
    assert state.last() != small
    # An entry tuned on this very model wins over a faster one of a higher level.
    op(x, weight, bias, stride=2, padding=1)
    assert last(package) == "x86_64_v2x86-64-v2"
    op(x, weight, None)
    assert "unbiased" in state.last()
    # Tuned for a level that this CPU lacks: its portable build.
    op(*inputs(2, 12, 12, kernel=5))
    level = cpu_target().arch
    assert last(package) == ("x86_64_v4x86-64-v4" if level == "x86-64-v4" else "x86_64_v4x86-64-v2")


def test_precision_is_asked_for(package: ModuleType) -> None:
    op = package.conv2d_divide_leaky_relu
    x, weight, bias = inputs(kernel=1)
    with pytest.warns(RuntimeWarning, match="no frozen kernel covers"):
        op(x, weight, bias)  # the entry is of a weaker class than fp32
    assert last(package) is None
    for precision in ("tf32", "bf16"):
        op(x, weight, bias, precision=precision)
        assert last(package) is not None
    x, weight, bias = inputs()
    op(x, weight, bias, precision="tf32")  # a stronger class may answer
    assert last(package) is not None


def test_memory_layouts(package: ModuleType) -> None:
    op = package.conv2d_divide_leaky_relu
    x, weight, bias = inputs()
    want = expected(x, weight, bias)
    flat = torch.empty(x.numel() + 1)
    odd = flat[1:].view(x.shape).copy_(x)  # contiguous, but not aligned to 16 bytes
    strided = torch.stack([bias, bias], 1)[:, 0]
    cases = [
        (x.to(memory_format=torch.channels_last), weight, bias),
        (x.transpose(2, 3).contiguous().transpose(2, 3), weight, bias),
        (odd, weight, strided),
        (x, weight.to(memory_format=torch.channels_last), bias),
        (x.repeat(1, 1, 2, 1)[:, :, ::2][:, :, : x.shape[2] // 2].contiguous(), weight, bias),
    ]
    for case in cases[:4]:
        out = op(*case)
        assert close(out, want)
        assert out.is_contiguous()
        assert last(package) is not None
    assert close(op(cases[4][0], weight, bias), expected(cases[4][0], weight, bias))
    # Inputs are left alone.
    assert torch.equal(x, inputs()[0])


def test_empty_batch(package: ModuleType) -> None:
    x, weight, bias = inputs()
    out = package.conv2d_divide_leaky_relu(x[:0], weight, bias)
    assert out.shape == (0, 6, 18, 22)


def test_not_covered_runs_the_reference_with_one_warning(package: ModuleType) -> None:
    op = package.conv2d_divide_leaky_relu
    x, weight, bias = inputs()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in (1, 2):
            out = op(x[:n], weight, bias, dilation=2)
            assert close(out, expected(x[:n], weight, bias, dilation=2))
            assert last(package) is None
            out = op(x[:n].double(), weight.double(), bias.double())
            assert torch.allclose(out, expected(x[:n], weight, bias))
            out = op(x[:n], torch.randn(4, 4, 3, 3), None, groups=2)
            assert out.shape[1] == 4
    texts = [str(w.message) for w in caught]
    assert len(texts) == 3
    command = (
        "coldforge tune conv2d_divide_leaky_relu --target cpu --shape N=1,C_in=8,H=20,W=24,C_out=6,R=3,S=3"
    )
    assert f"tune one: {command},dilation_h=2,dilation_w=2" in texts[0]
    assert "then coldforge freeze conv2d_divide_leaky_relu --package cf_test_package --out " in texts[0]
    assert "fp32, fp16 and bf16 only" in texts[1]
    assert "groups=2" in texts[2]
    assert all(w.category is RuntimeWarning and w.filename == __file__ for w in caught)


def test_forward_mode(package: ModuleType) -> None:
    x, weight, bias = inputs()

    def plain(t: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(F.conv2d(t, weight, bias) / 2.0, 0.01)

    with torch.no_grad(), pytest.warns(RuntimeWarning, match="forward-mode tangent"):
        _, tangent = torch.func.jvp(
            lambda t: package.conv2d_divide_leaky_relu(t, weight, bias), (x,), (torch.ones_like(x),)
        )
    assert torch.allclose(tangent, torch.func.jvp(plain, (x,), (torch.ones_like(x),))[1], atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_reference_answers_as_a_kernel_does(package: ModuleType) -> None:
    op = package.conv2d_divide_leaky_relu
    x, weight, bias = inputs()
    x = x.to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [
            op(x, weight, bias),
            op(x, weight, bias, dilation=2),
            op(x.clone().requires_grad_(), weight, bias),
        ]
    assert [(out.dtype, out.is_contiguous()) for out in outputs] == [(torch.float32, True)] * 3


def test_sizes_that_a_kernel_cannot_count(package: ModuleType) -> None:
    _, weight, bias = inputs()
    x = torch.empty(0, 8, 2**31 + 2, 3)
    with pytest.warns(RuntimeWarning, match="H=2147483650 is too large for a frozen kernel"):
        out = package.conv2d_divide_leaky_relu(x, weight, bias)
    assert out.shape == (0, 6, 2**31, 1)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (TypeError, "weight is torch.float64, but x is torch.float32", {"weight": lambda w: w.double()}),
        (TypeError, "dense floating-point", {"x": lambda x: x.long()}),
        (TypeError, "dense floating-point", {"x": lambda x: x.to_sparse()}),
        (TypeError, "x must be a tensor, got None", {"x": lambda x: None}),
        (TypeError, "weight must be a tensor", {"weight": lambda w: w.tolist()}),
        (ValueError, "bias is on meta, but x is on cpu", {"bias": lambda b: b.to("meta")}),
        (ValueError, r"bias has shape \[5\]; expected \[C_out\] = \[6\]", {"bias": lambda b: b[:5]}),
        (ValueError, "x has shape .* expected 4 dimensions", {"x": lambda x: x[0, 0]}),
        (ValueError, "weight has shape .* expected", {"weight": lambda w: w[:, :7]}),
        (ValueError, "the output would be empty: H_out = 0", {"x": lambda x: x[:, :, :2]}),
        (ValueError, "stride must be at least 1, got 0", {"stride": 0}),
        (ValueError, "one number or two, got 3", {"padding": (1, 1, 1)}),
        (TypeError, "an int or a pair of ints, got 'same'", {"padding": "same"}),
        (TypeError, "groups must be an int", {"groups": 1.5}),
        (TypeError, "divisor must be a number, got Tensor", {"divisor": torch.tensor(2.0)}),
        (ValueError, "precision must be one of", {"precision": "fp8"}),
        (ValueError, "precision must be one of", {"precision": ["fp32"]}),
    ],
)
def test_bad_arguments(
    package: ModuleType, error: type[Exception], match: str, change: dict[str, Any]
) -> None:
    x, weight, bias = inputs()
    tensors = {"x": x, "weight": weight, "bias": bias}
    given = {n: v(tensors[n]) if callable(v) and n in tensors else v for n, v in change.items()}
    with pytest.raises(error, match=match):
        package.conv2d_divide_leaky_relu(**{**tensors, **given})


def test_module_is_conv2d_with_an_epilogue(package: ModuleType) -> None:
    torch.manual_seed(3)
    layer = torch.nn.Conv2d(8, 6, (3, 3), padding=1, stride=2)
    torch.manual_seed(3)
    module = package.Conv2dDivideLeakyReLU(8, 6, 3, divisor=4.0, padding=1, stride=2)
    assert list(module.state_dict()) == ["weight", "bias"]
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), layer.parameters(), strict=True))
    x = inputs()[0]
    module.load_state_dict(torch.nn.Conv2d(8, 6, 3).state_dict())
    with torch.no_grad():
        want = expected(x, module.weight, module.bias, 4.0, stride=2, padding=1)
        assert close(module(x), want)
    assert last(package) is not None
    assert "divisor=4.0" in repr(module)
    bare = package.Conv2dDivideLeakyReLU(8, 6, 3, bias=False, dtype=torch.float64)
    assert list(bare.state_dict()) == ["weight"]
    assert bare.weight.dtype == torch.float64
    with pytest.raises(ValueError, match="out_channels must be at least 1"):
        package.Conv2dDivideLeakyReLU(8, 0, 3)


def test_an_operator_declared_in_yaml_alone(package: ModuleType) -> None:
    x, weight, bias = inputs()
    gain = torch.linspace(0.5, 3.0, 6)
    want = (F.conv2d(x.double(), weight.double(), bias.double()) * gain.view(1, -1, 1, 1)).clamp(-0.25, 2.0)
    assert close(package.conv2d_gain(x, weight, bias, gain, 2.0), want)
    assert last(package) is not None
    with pytest.raises(ValueError, match=r"gain has shape \[5\]"):
        package.conv2d_gain(x, weight, bias, gain[:5])
    module = package.Conv2dGain(8, 6, 3)
    assert list(module.state_dict()) == ["weight", "bias", "gain"]
    assert torch.equal(module.gain, torch.ones(6))
    with torch.no_grad():
        want = F.conv2d(x.double(), module.weight.double(), module.bias.double()).clamp(-0.25, 1.5)
        assert close(module(x), want)
    # The reference, where nothing fits.
    with pytest.warns(RuntimeWarning, match="conv2d_gain runs the PyTorch reference"):
        out = package.conv2d_gain(x, weight, bias, gain, stride=2)
    assert out.shape == (2, 6, 9, 11)


def test_a_fresh_thread(package: ModuleType) -> None:
    results: list[bool] = []

    def work(seed: int) -> None:
        x, weight, bias = inputs(seed=seed)
        for _ in range(20):
            out = package.conv2d_divide_leaky_relu(x, weight, bias)
            results.append(close(out, expected(x, weight, bias)) and last(package) is not None)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 160


def test_the_op_by_itself(package: ModuleType) -> None:
    op = torch.ops.cf_test_package.conv2d_divide_leaky_relu
    x, weight, bias = inputs()
    options = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    assert close(op(x, weight, bias, 2.0, 0.01, **options), expected(x, weight, bias))
    meta = op(x.to("meta"), weight.to("meta"), None, divisor=2.0, negative_slope=0.1, **options)
    assert meta.shape == (2, 6, 18, 22)
    arguments = (x, weight, bias, 2.0, 0.01, [1, 1], [0, 0], [1, 1], 1, None)
    results = torch.library.opcheck(op.default, arguments)
    assert set(results.values()) == {"SUCCESS"}
    with pytest.raises(RuntimeError, match="conv2d_divide_leaky_relu_reference failed"):
        op(x, weight, bias[:2], 2.0, 0.01, **options)


@pytest.mark.slow
def test_under_torch_compile(package: ModuleType) -> None:
    op = package.conv2d_divide_leaky_relu
    x, weight, bias = inputs()
    compiled = torch.compile(lambda *t: op(t[0] + 1.0, *t[1:], stride=(1, 1)) * 2.0, fullgraph=True)
    assert close(compiled(x, weight, bias), expected(x + 1.0, weight, bias) * 2.0)
    assert last(package) is not None
    dynamic = torch.compile(op, fullgraph=True, dynamic=True)
    for shape in [(2, 20, 24), (3, 33, 17)]:
        x, weight, bias = inputs(*shape)
        assert close(dynamic(x, weight, bias), expected(x, weight, bias))
    module = package.Conv2dDivideLeakyReLU(8, 6, 3)
    with torch.no_grad():
        want = module(x)
        assert torch.equal(torch.compile(module, fullgraph=True)(x), want)


def test_denormals_survive(package: ModuleType) -> None:
    # A library built with -ffast-math makes the whole process flush them.
    package.conv2d_divide_leaky_relu(*inputs())
    tiny = torch.tensor([1e-40], dtype=torch.float32)
    assert float(tiny * 0.5) > 0


def test_unknown_name(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="tune conv9d`, then `coldforge freeze conv9d --package cf_test"):
        package.conv9d  # noqa: B018
    assert not hasattr(package, "_private")
    assert not hasattr(package, "conv9d")
    with pytest.raises(ImportError, match="coldforge tune"):
        exec("from cf_test_package import conv9d")


def test_no_allocation_beyond_the_output(package: ModuleType) -> None:
    x, weight, bias = inputs(4, 64, 64)
    package.conv2d_divide_leaky_relu(x, weight, bias)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        out = package.conv2d_divide_leaky_relu(x, weight, bias)
    allocated = sum(max(0, e.self_cpu_memory_usage) for e in profile.events())
    assert 0 < allocated <= out.numel() * out.element_size() + 64
