# SPDX-License-Identifier: Apache-2.0
"""Frozen operators whose chain reduces, with channel vectors that have a shape or are left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import Catalogue, catalogue
from mean_winners import SCALED, mean_winner
from torch import nn

pytestmark = pytest.mark.build

TOP = """
operator: conv_transpose2d_mean_top
family: conv_transpose2d_mean
summary: the largest channel of a gain and a shift, capped
module: ConvTranspose2dMeanTop
channel_vectors:
  gain: {shape: [C_out, 1]}
  shift: {optional: true}
scalars: {cap: 40.0}
epilogue:
  - sum: {over: pixels}
  - mul: gain
  - add: shift
  - amax: {over: channels}
  - min: cap
workloads:
  small: {N: 2, C_in: 4, H: 16, W: 16, C_out: 6, kernel_size: 3}
"""
TOP_BEFORE = "v *= a.gain[k]; if (a.shift) v += a.shift[k];"
TOP_REST = """float top = values[0];
    for (float v : values) top = v > top ? v : top;
    a.y[n] = top < float(a.cap) ? top : float(a.cap);"""
PADDED = {"stride": 2, "padding": 1, "output_padding": 1}
# Each on 7 channels and more, where nothing else is frozen; one check of the build must refuse it.
FAULTS = {
    "no last channel of x": ("for (int64_t c = 0; c < C", "for (int64_t c = 0; c < C - 1"),
    "no last channel of y": (
        "for (float v : values) sum += std::exp(v - top)",
        "for (int64_t k = 0; k < K - 1; ++k) sum += std::exp(values[k] - top)",
    ),
    "no last row": ("h < a.H;", "h < a.H - 1;"),
    "no last column": ("w < a.W;", "w < a.W - 1;"),
    "no chain bias": ("v += a.bias[k]", "v += 0"),
    "no convolution bias": ("a.conv_bias[k]", "0.0f"),
    "no scale": ("float(a.scale)", "1.0f"),
    "divided by the wrong count": ("a.H_out * a.W_out)", "a.H * a.W)"),
    "taps exchanged": ("* R + r) * S + s]", "* R + s) * S + r]"),
    "one part in 10000": ("std::log(sum))", "std::log(sum)) * 1.0001f"),
}


class Plain(nn.Module):
    """The operator as a user has it before."""

    def __init__(
        self, channels: int, out: int, kernel: int, bias_shape: tuple[int, ...], **given: Any
    ) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, out, kernel, **given)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = self.conv(x).mean((2, 3), keepdim=True) + self.bias
        return torch.logsumexp(v, 1, keepdim=True).sum((2, 3)) * 10.0


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    folder = tmp_path_factory.mktemp("templates")
    (folder / "operators").mkdir()
    (folder / "operators" / "conv_transpose2d_mean_top.yaml").write_text(TOP)
    return catalogue(folder)


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory, declared: Catalogue, frozen_package: Callable[..., ModuleType]
) -> ModuleType:
    top = {
        "operator": declared.operator("conv_transpose2d_mean_top"),
        "before": TOP_BEFORE,
        "rest": TOP_REST,
    }
    scaled = {
        "operator": declared.operator("conv_transpose2d_scale_mean"),
        "before": "",
        "rest": SCALED,
    }
    winners = [
        mean_winner(),
        mean_winner(PADDED),
        mean_winner({"bias": 0}),
        mean_winner({"conv_bias": 0, "bias": 0}),
        mean_winner(**top),
        mean_winner({"shift": 0}, **top),
        mean_winner(**scaled),
        *(mean_winner({"C_out": 7 + i, **PADDED}, fault=fault) for i, fault in enumerate(FAULTS.values())),
    ]
    folder = tmp_path_factory.mktemp("packages")
    return frozen_package(folder, "cf_reductions", winners, check=False, declared=declared)


@pytest.fixture(autouse=True)
def _fresh_warnings(package: ModuleType) -> None:
    package.runtime.fallback.forget_warnings()


def answered(package: ModuleType) -> bool:
    """Whether a kernel answered this thread's last call."""
    return package.runtime.package.STATE.extension.last() is not None


def inputs(n: int = 3, h: int = 20, w: int = 24) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(n * h + w)
    x = torch.randn(n, 4, h, w, generator=g) + 4 * torch.rand(n, 4, 1, 1, generator=g) - 2
    weight = torch.randn(4, 6, 3, 3, generator=g) / 6
    return x, weight, torch.randn(6, generator=g), torch.randn(6, 1, 1, generator=g)


def linear(
    x: torch.Tensor, weight: torch.Tensor, conv_bias: torch.Tensor | None, **given: Any
) -> torch.Tensor:
    wide = None if conv_bias is None else conv_bias.double()
    y = nn.functional.conv_transpose2d(x.double(), weight.double(), wide, **given)
    return y.mean((2, 3), keepdim=True)


def logsumexp(v: torch.Tensor, bias: torch.Tensor | None, scale: float = 10.0) -> torch.Tensor:
    v = v if bias is None else v + bias.double()
    return torch.logsumexp(v, 1, keepdim=True).sum((2, 3)) * scale


def close(out: torch.Tensor, want: torch.Tensor) -> bool:
    return out.shape == want.shape and out.dtype == torch.float32 and bool((out - want).abs().max() < 5e-5)


@pytest.mark.parametrize("shape", [(3, 20, 24), (1, 1, 1), (2, 1, 9), (0, 5, 5), (5, 33, 64)])
@pytest.mark.parametrize("given", [{}, PADDED])
def test_any_size_of_the_specialisation(
    package: ModuleType, shape: tuple[int, int, int], given: dict[str, int]
) -> None:
    x, weight, conv_bias, bias = inputs(*shape)
    out = package.conv_transpose2d_mean_logsumexp(x, weight, conv_bias, bias, **given)
    assert answered(package)
    assert out.shape == (shape[0], 1)
    if shape[0]:
        assert close(out, logsumexp(linear(x, weight, conv_bias, **given), bias))


def test_vectors_are_left_out(package: ModuleType) -> None:
    op = package.conv_transpose2d_mean_logsumexp
    x, weight, conv_bias, bias = inputs()
    assert close(op(x, weight, conv_bias, None, 2.0), logsumexp(linear(x, weight, conv_bias), None, 2.0))
    assert answered(package)
    assert close(op(x, weight, None, None), logsumexp(linear(x, weight, None), None))
    assert answered(package)
    with pytest.warns(RuntimeWarning, match="no frozen kernel covers .*has_conv_bias=0 has_bias=1"):
        out = op(x, weight, None, bias)
    assert close(out, logsumexp(linear(x, weight, None), bias))
    with pytest.warns(RuntimeWarning, match=r"R=3,S=3,dilation_h=2,dilation_w=2,conv_bias=0,bias=0, then"):
        out = op(x, weight, None, None, dilation=2)
    assert close(out, logsumexp(linear(x, weight, None, dilation=2), None))


def test_other_chains(package: ModuleType) -> None:
    x, weight, conv_bias, _ = inputs()
    out = package.conv_transpose2d_scale_mean(x, weight, conv_bias, 3.0)
    assert answered(package)
    assert close(out, linear(x, weight, conv_bias) * 3.0)
    gain, shift = torch.rand(6, 1) + 0.5, torch.randn(6)
    op = package.conv_transpose2d_mean_top
    v = linear(x, weight, conv_bias)[:, :, 0, 0] * gain.double().view(1, 6)
    for given, values in ((shift, v + shift), (None, v)):
        for padded in (False, True):  # with padding nothing is frozen, and the reference answers
            if padded:
                with pytest.warns(RuntimeWarning, match="no frozen kernel covers"):
                    op(x, weight, conv_bias, gain, given, 0.25, padding=1)
                continue
            out = op(x, weight, conv_bias, gain, given, 0.25)
            assert answered(package)
            assert close(out, values.amax(1).clamp(max=0.25))
            wide = (t if t is None else t.double() for t in (x, weight, conv_bias, gain, given))
            with warnings.catch_warnings(action="ignore"):
                assert torch.allclose(op(*wide, 0.25), values.amax(1).clamp(max=0.25))


def test_the_check_of_a_build_refuses_faults(package: ModuleType) -> None:
    record = package.runtime.package.STATE.record
    channels = {
        entry["name"]: entry["specialisation"]["C_out"] for entry in package.runtime.manifest.load().entries
    }
    for index, fault in enumerate(FAULTS):
        results = [r for name, r in record.items() if channels[name.partition("@")[0]] == 7 + index]
        assert [r["ok"] for r in results] == [False], fault
    right = [r for name, r in record.items() if channels[name.partition("@")[0]] == 6]
    assert [r["ok"] for r in right] == [True] * 7
    assert [r["ratio"] for r in right if not r["ratio"] < 0.5] == []


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (
            ValueError,
            r"bias has shape \[6\]; expected \[C_out, 1, 1\] = \[6, 1, 1\]",
            {"bias": torch.ones(6)},
        ),
        (ValueError, r"bias has shape \[5, 1, 1\]", {"bias": torch.ones(5, 1, 1)}),
        (ValueError, r"conv_bias has shape \[5\]", {"conv_bias": torch.ones(5)}),
        (TypeError, "bias must be a tensor or None", {"bias": 0.5}),
        (TypeError, "bias is torch.float64, but x is torch.float32", {"bias": torch.ones(6, 1, 1).double()}),
        (ValueError, r"weight has shape .* expected \[C_in, ", {"weight": torch.ones(5, 6, 3, 3)}),
        (
            ValueError,
            "the output would be empty: H_out = 0",
            {"x": torch.ones(1, 4, 1, 9), "padding": (2, 1)},
        ),
        (ValueError, r"output_padding must be at least 0", {"output_padding": -1}),
        (RuntimeError, "output padding must be smaller", {"output_padding": 1}),
        (RuntimeError, "Only zero batch", {"x": torch.ones(2, 4, 0, 5)}),  # as the layer itself
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bad_arguments(
    package: ModuleType, error: type[Exception], match: str, change: dict[str, Any]
) -> None:
    given = dict(zip(("x", "weight", "conv_bias", "bias"), inputs(), strict=True))
    if "padding" in change:
        given["weight"] = torch.ones(4, 6, 4, 3)
    with pytest.raises(error, match=match):
        package.conv_transpose2d_mean_logsumexp(**{**given, **change})


def test_the_op_by_itself(package: ModuleType) -> None:
    op = torch.ops.cf_reductions.conv_transpose2d_mean_logsumexp.default
    arguments = (*inputs(), 10.0, [1, 1], [0, 0], [0, 0], [1, 1], 1, None)
    assert set(torch.library.opcheck(op, arguments).values()) == {"SUCCESS"}
    arguments = (*inputs()[:2], None, None, *arguments[4:])
    assert set(torch.library.opcheck(op, arguments).values()) == {"SUCCESS"}
    meta = op(*(t if t is None else t.to("meta") for t in arguments[:4]), *arguments[4:])
    assert meta.shape == (3, 1)
    top = torch.ops.cf_reductions.conv_transpose2d_mean_top.default
    x, weight, conv_bias, _ = inputs()
    arguments = (x, weight, conv_bias, torch.ones(6, 1), None, 1.0, *arguments[5:])
    assert set(torch.library.opcheck(top, arguments).values()) == {"SUCCESS"}
    assert top(*arguments).shape == (3,)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradients_are_those_of_the_plain_module(package: ModuleType) -> None:
    plain = Plain(4, 6, 3, (6, 1, 1), **PADDED).double()
    module = package.ConvTranspose2dMeanLogSumExp(4, 6, 3, (6, 1, 1), dtype=torch.float64, **PADDED)
    adopt(module, plain)
    x = inputs()[0].double()
    results = []
    for each in (plain, module):
        data = x.clone().requires_grad_()
        each(data).square().sum().backward()
        results.append([data.grad, *(p.grad for p in each.parameters())])
    order = [0, 2, 3, 1]  # the plain module's own parameter stands before those of its layer
    for got, place in zip(results[1], order, strict=True):
        torch.testing.assert_close(got, results[0][place])


def adopt(module: nn.Module, plain: Plain) -> None:
    """Gives the module the plain one's parameters."""
    state = plain.state_dict()
    names = {"weight": "conv.weight", "conv_bias": "conv.bias", "bias": "bias"}
    module.load_state_dict({name: state[other] for name, other in names.items()})


def test_the_module_starts_as_pytorchs_layer(package: ModuleType) -> None:
    new = package.ConvTranspose2dMeanLogSumExp
    torch.manual_seed(3)
    layer = nn.ConvTranspose2d(5, 6, (3, 2))
    torch.manual_seed(3)
    module = new(5, 6, (3, 2), (6, 1, 1))
    assert list(module.state_dict()) == ["weight", "conv_bias", "bias"]
    assert torch.equal(module.weight, layer.weight)
    assert torch.equal(module.conv_bias, layer.bias)
    assert torch.equal(module.bias, torch.zeros(6, 1, 1))
    assert "bias=[6, 1, 1]" in repr(module)
    assert "scale=10.0" in repr(module)
    assert list(new(4, 6, 3, None, 2.0, conv_bias=False).state_dict()) == ["weight"]
    assert new(4, 6, 3, torch.Size([6, 1, 1]), dtype=torch.float16).bias.dtype == torch.float16
    top = package.ConvTranspose2dMeanTop(4, 6, 3, [6, 1], shift=False)
    assert list(top.state_dict()) == ["weight", "conv_bias", "gain"]
    assert torch.equal(top.gain, torch.ones(6, 1))


@pytest.mark.parametrize(
    ("name", "shape", "error", "match"),
    [
        ("LogSumExp", (6,), ValueError, r"bias_shape is \[6\]; expected \[C_out, 1, 1\] = \[6, 1, 1\]"),
        ("LogSumExp", (1, 6, 1, 1), ValueError, r"bias_shape is \[1, 6, 1, 1\]; expected"),
        (
            "LogSumExp",
            6,
            TypeError,
            r"must be a sequence of ints or None, here \[6, 1, 1\], got 6",
        ),
        ("LogSumExp", (6, 1.0, 1), TypeError, "bias_shape must be a sequence of ints"),
        ("Top", None, TypeError, r"gain_shape must be a sequence of ints, here \[6, 1\], got None"),
    ],
)
def test_a_wrong_shape_of_a_vector(
    package: ModuleType, name: str, shape: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        getattr(package, f"ConvTranspose2dMean{name}")(4, 6, 3, shape)


def test_the_module_is_the_plain_one(package: ModuleType) -> None:
    plain = Plain(4, 6, 3, (6, 1, 1))
    module = package.ConvTranspose2dMeanLogSumExp(4, 6, 3, (6, 1, 1))
    adopt(module, plain)
    x = inputs()[0]
    with torch.no_grad():
        assert close(module(x), plain.double()(x.double()))
    assert answered(package)
    # Without a bias it is the plain one whose bias is zero.
    bare = package.ConvTranspose2dMeanLogSumExp(4, 6, 3, None)
    bare.load_state_dict({n: v for n, v in module.state_dict().items() if n != "bias"})
    with torch.no_grad():
        plain.bias.zero_()
        assert close(bare(x), plain(x.double()))
    assert answered(package)


@pytest.mark.slow
def test_under_torch_compile(package: ModuleType) -> None:
    module = package.ConvTranspose2dMeanLogSumExp(4, 6, 3, (6, 1, 1))
    x = inputs()[0]
    with torch.no_grad():
        compiled = torch.compile(module, fullgraph=True, dynamic=True)
        assert torch.equal(compiled(x), module(x))
        assert answered(package)
        other = inputs(2, 9, 31)[0]
        assert torch.equal(compiled(other), module(other))
        module.weight.mul_(2.0)
        assert torch.equal(compiled(other), module(other))
    torch.compile(module, fullgraph=True)(x).sum().backward()
    assert module.bias.grad is not None
