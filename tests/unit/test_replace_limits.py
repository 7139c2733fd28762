# SPDX-License-Identifier: Apache-2.0
"""Where `replace` must keep its hands off, and what a replaced model must still be able to do.

The package is not built: PyTorch's reference answers.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import pickle
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.freeze import Winner, freeze
from coldforge.generated.runtime import forms
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from unbuilt import unbuilt_package

OPERATOR = "conv2d_divide_leaky_relu"


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory, naive_winner: Callable[..., Winner]
) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("limits")
    winners = [naive_winner(), naive_winner({"kernel_size": 1}, precision="tf32")]
    with unbuilt_package(folder, "cf_limits", winners) as package:
        yield package


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _tail(v: Tensor) -> Tensor:
    return F.leaky_relu(v / 2.0, 0.01)


class Block(nn.Module):
    """What a frozen kernel computes."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 6, 3, **options)

    def forward(self, x: Tensor) -> Tensor:
        return _tail(self.conv(x))


def _input() -> Tensor:
    return torch.randn(2, 8, 6, 7, generator=torch.Generator().manual_seed(1))


@contextlib.contextmanager
def waiting_thread() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _left(package: ModuleType, model: nn.Module, *inputs: Any) -> str:
    """Why nothing was replaced in a model; the result computes what the model does."""
    new = package.replace(model)
    assert new.replacements.replaced == []
    inputs = inputs or (_input(),)
    torch.testing.assert_close(new(*inputs), model(*inputs))
    return "\n".join(map(str, new.replacements.left))


class Optional(Block):
    def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        y = super().forward(x)
        return y if gain is None else y * gain


class Counting(Block):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen = 0, []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x
        return super().forward(x)


class Appending(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return _tail(self.conv(x))


class Drawing(Block):
    def forward(self, x: Tensor) -> Tensor:
        skip = random.random() < 0.0 or torch.rand(1).item() < 0.0
        return x if skip else super().forward(x)


class Making(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.tensor([0.5])


class Calling(Block):
    def __call__(self, x: Tensor) -> Tensor:
        return 2 * super().__call__(x)


class Stating(Block):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 2}


def test_a_forward_that_a_graph_would_change(package: ModuleType) -> None:
    optional = Optional()
    assert "its forward has gain=None" in _left(package, optional)
    assert "its forward has gain=None" in _left(package, optional, _input(), torch.tensor(3.0))
    for kind in (Counting, Appending):
        model = kind()
        new = package.replace(model)
        assert "keeps something on the module" in str(new.replacements)
        assert (model.calls, model.seen, hasattr(model, "last")) == (0, [], False)  # it is as it was
        new(_input())
        assert (new.calls, len(new.seen)) in {(1, 0), (0, 1)}
    model = Drawing()
    state, numbers = random.getstate(), torch.get_rng_state()
    assert "draws random numbers" in str(package.replace(model).replacements)
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), numbers)
    with waiting_thread():  # there may be others, which draw nothing
        assert "draws random numbers" in str(package.replace(model).replacements)
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), numbers)
    model = Making()
    names = set(vars(model))
    assert "makes tensors of its own" in _left(package, model)
    assert set(vars(model)) == names
    assert "a call of its class is more than its forward" in _left(package, Calling())
    assert "a state of its own in a state dict" in _left(package, Stating())
    assert list(package.replace(Stating()).state_dict()) == list(Stating().state_dict())


def test_what_is_put_on_a_module_from_outside(package: ModuleType) -> None:
    model = Block()
    own = model.conv.forward
    model.conv.forward = lambda x: 3 * own(x)  # type: ignore[method-assign]
    assert _left(package, model) == "conv stays: this Conv2d has hooks, or a forward that was set on it"
    model = Block()
    model.forward = lambda x: x + 1.0  # type: ignore[method-assign]
    assert "its forward was set on it" in _left(package, model)
    # It may hold the submodules as they were: what is in them stays too.
    model = nn.Sequential(Block())
    inner = model[0]
    model.forward = lambda x: inner(x)  # type: ignore[method-assign]
    assert "its forward was set on it" in _left(package, model)
    model, met = nn.Sequential(Block(), nn.Identity()), []
    model[0].register_full_backward_pre_hook(lambda *_: met.append(1))
    assert "0 stays: it is called as a whole" in _left(package, model)
    package.replace(model)(_input()).sum().backward()
    assert met == [1]


def test_buffers_are_read_at_each_call(package: ModuleType) -> None:
    class Normed(Block):
        spread: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("spread", torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * (self.spread + 1.0).rsqrt())

    model = Normed()
    new = package.replace(model)
    assert [r.operator for r in new.replacements.replaced] == [OPERATOR]
    with torch.no_grad():
        model.spread.fill_(8.0)
    torch.testing.assert_close(new(_input()), model(_input()))


def test_what_changes_the_result_in_place_keeps_its_gradient(package: ModuleType) -> None:
    class Method(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mul_(3.0)

    class Layer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(super().forward(x))

    class Function(Block):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(super().forward(x), inplace=True)

    for kind in (Method, Layer, Function):
        model = kind()
        assert "changes its result in place" in _left(package, model)
        package.replace(model)(_input()).sum().backward()


def test_arguments_by_name(package: ModuleType) -> None:
    class Named(Block):
        def forward(self, x: Tensor) -> Tensor:
            return _tail(F.conv2d(weight=self.conv.weight, input=x, bias=self.conv.bias))

    class Layer(Block):
        def forward(self, x: Tensor) -> Tensor:
            return _tail(self.conv(input=x))

    for model in (Named(), Layer()):
        new = package.replace(model)
        assert [r.operator for r in new.replacements.replaced] == [OPERATOR]
        torch.testing.assert_close(new(_input()), model(_input()))


def test_a_layer_with_more_than_its_input() -> None:
    """A transposed convolution that is told its output's size pads it otherwise."""
    layers, graph = {"up": nn.ConvTranspose2d(4, 6, 3, stride=2)}, fx.Graph()
    x = graph.placeholder("x")
    assert forms.form_of(graph.call_module("up", (x,)), None, layers) is not None
    assert forms.form_of(graph.call_module("up", (x, [16, 16])), None, layers) is None
    assert forms.form_of(graph.call_module("up", (x,), {"output_size": [16, 16]}), None, layers) is None


def test_vectors_that_the_operator_would_refuse(package: ModuleType) -> None:
    class Shifted(Block):
        def __init__(self, shift: Tensor) -> None:
            super().__init__(bias=False)
            self.shift = nn.Parameter(shift)

        def forward(self, x: Tensor) -> Tensor:
            return _tail(self.conv(x) + self.shift)

    assert "several dtypes: torch.float32, torch.float64" in _left(
        package, Shifted(torch.ones(6, 1, 1).double())
    )
    model = Shifted(torch.ones(1))
    new = package.replace(model, uncovered=True)
    assert "bias has one element" in str(new.replacements)
    torch.testing.assert_close(new(_input()), model(_input()))


def test_a_coarser_kernel_is_none(package: ModuleType) -> None:
    model = nn.Sequential(nn.Conv2d(8, 6, 1), Halve(), nn.LeakyReLU(0.01))
    assert "no frozen conv2d_divide_leaky_relu has weight [6, 8, 1, 1]" in _left(package, model)


class Halve(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2.0


class Whole(Block):
    """A block with a state that its forward does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Linear(2, 2)
        self.spare = nn.Parameter(torch.zeros(2))
        self.register_buffer("passing", torch.zeros(1), persistent=False)
        self.plain = torch.full((1,), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.plain


def _saved(model: nn.Module) -> nn.Module:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize(
    "twin_of",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), _saved, lambda m: copy.deepcopy(_saved(m))],
)
def test_copies_and_pickles(package: ModuleType, twin_of: Callable[[nn.Module], nn.Module]) -> None:
    model = Whole().eval()
    new = package.replace(model)
    assert len(new.replacements.replaced) == 1
    twin = twin_of(new)
    assert list(twin.state_dict()) == list(new.state_dict()) == list(model.state_dict())
    assert {n for n, _ in twin.named_modules()} == {n for n, _ in model.named_modules()}
    assert not twin.training
    assert str(twin.replacements) == str(new.replacements)
    assert torch.equal(twin(_input()), new(_input()))
    with torch.no_grad():
        new.conv.weight.zero_()
    assert not torch.equal(twin(_input()), new(_input()))  # its parameters are its own
    twin.load_state_dict(new.state_dict())
    assert torch.equal(twin(_input()), new(_input()))


@pytest.mark.parametrize("mode", [FakeTensorMode, lambda: torch.device("meta"), torch.inference_mode])
def test_under_a_mode(package: ModuleType, mode: Callable[[], Any]) -> None:
    with mode():
        assert len(package.replace(Block()).replacements.replaced) == 1


def test_what_another_package_replaced_stays(
    package: ModuleType, tmp_path: Path, naive_winner: Callable[..., Winner], monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze([naive_winner()], tmp_path / "cf_another", "cf_another")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLDFORGE_BUILD", "0")
    another = importlib.import_module("cf_another")
    model = nn.Sequential(
        package.replace(Block()), nn.Conv2d(6, 8, 1), package.Conv2dDivideLeakyReLU(8, 6, 3)
    )
    model.append(nn.Conv2d(6, 8, 1)).append(Block())
    new = another.replace(model)
    assert [r.where for r in new.replacements.replaced] == [("4.conv", "4.truediv", "4.leaky_relu")]
    graph = fx.symbolic_trace(new).graph
    called = [node.target for node in graph.nodes if node.op == "call_function"]
    assert called == [package.conv2d_divide_leaky_relu] * 2 + [another.conv2d_divide_leaky_relu]
    x = torch.randn(1, 8, 9, 9)
    torch.testing.assert_close(new(x), model(x))


def test_no_module(package: ModuleType) -> None:
    with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module, got int"):
        package.replace(3)
