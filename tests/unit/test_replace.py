# SPDX-License-Identifier: Apache-2.0
"""Frozen operators put into models: what is found, what is left and why, and that nothing else changes.

The package is not built: PyTorch's reference answers. That kernels run is tested in tests/build.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.freeze import Winner
from mean_winners import mean_winner
from spelled_models import SPELLINGS, Spelled
from torch import Tensor, nn
from unbuilt import unbuilt_package

_PLAIN = {"kernel_size": 3, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
SIZES = {
    "conv2d": {"N": 2, "C_in": 4, "C_out": 6, "H": 12, "W": 13, **_PLAIN, "bias": 1},
    "conv_transpose2d_mean": {"N": 2, "C_in": 4, "C_out": 6, "H": 8, "W": 9, **_PLAIN}
    | {"stride": 2, "padding": 1, "output_padding": 1, "conv_bias": 1},
}
OPERATORS = sorted(catalogue().operators)


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory, naive_winner: Callable[..., Winner]
) -> Iterator[ModuleType]:
    """Every declared operator, each frozen for one specialisation."""
    folder = tmp_path_factory.mktemp("replace")
    winners = []
    for name in OPERATORS:
        operator = catalogue().operator(name)
        sizes = SIZES[operator.family.name]
        if operator.family.name == "conv2d":
            winners.append(naive_winner(sizes, declared=operator))
        else:
            winners.append(mean_winner(sizes, operator=operator, before="", rest=""))
    with unbuilt_package(folder, "cf_replace", winners) as package:
        yield package


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _equal(a: nn.Module, b: nn.Module, x: Tensor) -> None:
    """Same results, same gradients, same state."""
    assert list(a.state_dict()) == list(b.state_dict())
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        assert one is other
    grads = []
    for module in (a, b):
        module.zero_grad()
        out = module(x)
        out.square().sum().backward()
        grads.append([out.detach(), *(p.grad for p in module.parameters())])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_declared_operator_is_found(package: ModuleType, name: str, spelling: str) -> None:
    operator = catalogue().operator(name)
    torch.manual_seed(0)
    scalars = {n: v * 1.5 for n, v in operator.scalars.items()}
    model = Spelled(operator, SIZES[operator.family.name], spelling, scalars)
    new = package.replace(model)
    (found,) = new.replacements.replaced
    assert found.operator == name
    assert found.devices == ("x86-64-v2",)
    _equal(model, new, torch.randn(model.shape))


class Divide(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2.0


class Net(nn.Module):
    """Blocks within blocks, one of them twice, with layers that keep a state of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Sequential(nn.Conv2d(4, 6, 3), Divide(), nn.LeakyReLU(0.2)),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 4, 1),
            nn.Dropout(0.4),
        )
        self.again = nn.Conv2d(4, 6, 3)
        self.unused = nn.Parameter(torch.zeros(3))
        self.register_buffer("shift", torch.full((1,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x) + self.shift
        x = F.leaky_relu(self.again(x).div_(4), 0.1)
        return F.leaky_relu(self.again(self.blocks[3](x[:, :4])) / 4.0, 0.1)


def test_a_whole_model(package: ModuleType) -> None:
    torch.manual_seed(1)
    model = Net().eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    new = package.replace(model)
    report = new.replacements
    assert [r.operator for r in report.replaced] == ["conv2d_divide_leaky_relu"] * 3
    assert report.replaced[0].where == ("blocks.0.0", "truediv", "blocks.0.2")
    assert [left.where for left in report.left] == ["blocks.2"]
    assert "no frozen conv2d_plain has weight [4, 6, 1, 1]" in report.left[0].why
    assert str(report).startswith("3 replaced, 1 left\n")
    x = torch.randn(2, 4, 14, 15)
    _equal(model, new, x)
    assert not new.training
    assert not any(m.training for m in model.modules())
    for module in (model, new):  # dropout and batch statistics, in training
        module.load_state_dict(before)
        module.train()
    results = []
    for module in (model, new):
        torch.manual_seed(7)
        module.load_state_dict(before)
        results.append((module(x), module.blocks[1].running_mean.clone()))
    torch.testing.assert_close(results[0], results[1])
    twin = copy.deepcopy(new)
    torch.manual_seed(7)
    twin.load_state_dict(before)
    torch.testing.assert_close(twin(x), results[0][0])


def test_a_bias_of_its_own(package: ModuleType) -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 6, 3, bias=False)
            self.shift = nn.Parameter(torch.randn(1, 6, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return F.leaky_relu((self.shift + self.conv(x)) / 2.0, 0.01)

    model = Late()
    new = package.replace(model)
    assert [r.operator for r in new.replacements.replaced] == ["conv2d_divide_leaky_relu"]
    _equal(model, new, torch.randn(1, 4, 6, 6))


def _left(package: ModuleType, forward: Callable[..., Tensor], **layers: nn.Module) -> str:
    """Why nothing is replaced in a model of that forward."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, layer in layers.items():
                self.add_module(name, layer)

        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x)

    new = package.replace(Model())
    report = new.replacements
    assert report.replaced == []
    return "\n".join(map(str, report.left))


def _conv(**changes: object) -> nn.Conv2d:
    return nn.Conv2d(4, 6, 5, **changes)  # type: ignore[arg-type]


def _tail(v: Tensor) -> Tensor:
    return F.leaky_relu(v / 2.0, 0.01)


def test_what_is_left_and_why(package: ModuleType) -> None:
    assert "has weight [6, 4, 5, 5]" in _left(package, lambda m, x: _tail(m.c(x)), c=_conv())
    assert "padding is 'same'" in _left(package, lambda m, x: _tail(m.c(x)), c=_conv(padding="same"))
    circular = _left(package, lambda m, x: _tail(m.c(x)), c=_conv(padding=1, padding_mode="circular"))
    assert circular == "c stays: this Conv2d pads otherwise than with zeros"
    twice = _left(package, lambda m, x: (lambda v: _tail(v) + v)(m.c(x)), c=nn.Conv2d(4, 6, 3, stride=2))
    assert "its result is read 2 times where conv2d_divide_leaky_relu has div" in twice
    other = _left(package, lambda m, x: torch.max(m.c(x), 1).values, c=nn.Conv2d(4, 6, 3, stride=2))
    assert "max follows where conv2d_relu has relu" in other
    tensor = _left(package, lambda m, x: F.leaky_relu(m.c(x) / x.mean(), 0.01), c=_conv())
    assert "value is no number" in tensor
    hooked = _conv()
    hooked.register_forward_hook(lambda *a: None)
    assert "c stays: this Conv2d has hooks" in _left(package, lambda m, x: _tail(m.c(x)), c=hooked)


def test_a_forward_that_no_graph_stands_for(package: ModuleType) -> None:
    inner = nn.Sequential(nn.Conv2d(4, 6, 3), Divide(), nn.LeakyReLU())

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) if x.sum() > 0 else self.inner(-x)

    class Mode(Branches):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return self.inner(x)

    class Training(Branches):
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(F.dropout(x, 0.5, self.training))

    reasons = {
        Branches: "TraceError",
        Mode: "sets autocast or whether gradients are taken",
        Training: "depends on self.training",
    }
    for kind, why in reasons.items():
        model = kind().eval()
        new = package.replace(model)
        assert why in new.replacements.left[0].why
        assert [r.where[0] for r in new.replacements.replaced] == ["inner.0"]
        assert type(new) is kind
        assert model.inner is inner
        assert list(new.state_dict()) == list(model.state_dict())
        x = torch.randn(1, 4, 5, 5)
        torch.testing.assert_close(new(x), model(x))
    with torch.no_grad():
        assert not Mode().eval()(x).requires_grad


def test_what_is_replaced_already_stays(package: ModuleType) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3), Divide(), nn.LeakyReLU())
    once = package.replace(model)
    again = package.replace(once)
    assert again.replacements.replaced == []
    fused = nn.Sequential(package.Conv2dDivideLeakyReLU(4, 6, 3), nn.Conv2d(6, 4, 1))
    assert package.replace(fused).replacements.replaced == []
    x = torch.randn(1, 4, 6, 6)
    torch.testing.assert_close(again(x), model(x))


def test_not_covered_on_request(package: ModuleType) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 5, padding=2), Divide(), nn.LeakyReLU())
    new = package.replace(model, uncovered=True)
    assert "frozen for none" in str(new.replacements.replaced[0])
    _equal(model, new, torch.randn(1, 4, 6, 6))
