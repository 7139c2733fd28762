# SPDX-License-Identifier: Apache-2.0
"""What a trace of a model does not see by itself: questions of what an input is, the moment's modes, other
threads, changes between the steps; and that a replaced model stays what it was.

The package is not built: PyTorch's reference answers.
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.freeze import Winner
from torch import Tensor, fx, nn
from torch.nn.utils import parametrizations
from unbuilt import unbuilt_package


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory, naive_winner: Callable[..., Winner]
) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("unseen")
    with unbuilt_package(folder, "cf_unseen", [naive_winner()]) as package:
        yield package


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _input() -> Tensor:
    return torch.randn(2, 8, 6, 7, generator=torch.Generator().manual_seed(1))


class Block(nn.Module):
    """What a frozen kernel computes, and more that a module may have."""

    def __init__(self, scale: float = 3.0) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(8, 6, 3), scale

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.conv(x) / 2.0, 0.01)

    def scaled(self, x: Tensor) -> Tensor:
        return self(x) * self.scale


def _tail(v: Tensor) -> Tensor:
    return F.leaky_relu(v / 2.0, 0.01)


def _pick(x: Any) -> Any:
    return x if isinstance(x, torch.Tensor) else x[0]


# --- questions that a stand-in answers otherwise ---


class OfKind(Block):
    def forward(self, x: Any) -> Tensor:
        return _tail(self.conv(x if isinstance(x, Tensor) else x[0]))


class OfKindElsewhere(Block):
    def forward(self, x: Any) -> Tensor:
        return _tail(self.conv(_pick(x)))


class IsTensor(Block):
    def forward(self, x: Any) -> Tensor:
        return _tail(self.conv(x if torch.is_tensor(x) else x[0]))


class OfType(Block):
    def forward(self, x: Any) -> Tensor:
        return _tail(self.conv(x if type(x) is Tensor else x[0]))


class OfClass(Block):
    def forward(self, x: Any) -> Tensor:
        return _tail(self.conv(x if x.__class__ is Tensor else x[0]))


class Having(Block):
    def forward(self, x: Any) -> Tensor:
        return _tail(self.conv(x)) * (2.0 if hasattr(x, "no_such_attribute") else 1.0)


class Masked(Block):
    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = _tail(self.conv(x))
        if mask is not None:
            y = y * mask
        return y


class LookingUp(Block):
    def forward(self, x: Tensor, mode: str) -> Tensor:
        return _tail(self.conv(x)) * {"double": 2.0}.get(mode, 1.0)


class OfTheMode(Block):
    def forward(self, x: Tensor) -> Tensor:
        y = _tail(self.conv(x))
        return y if torch.is_grad_enabled() else y * 2.0


class OfTheProcess(Block):
    def forward(self, x: Tensor) -> Tensor:
        return _tail(self.conv(x)) * float(os.environ.get("COLDFORGE_TEST_GAIN", "1"))


class Drawing(Block):
    def forward(self, x: Tensor) -> Tensor:
        return _tail(self.conv(x)) * (1.0 + 0.0 * np.random.rand())


REFUSED: list[tuple[type[Block], str, tuple[Any, ...]]] = [
    (OfKind, "of what kind an input is", ()),
    (OfKindElsewhere, "of what kind an input is", ()),
    (IsTensor, "is_tensor", ()),
    (OfType, "of what type x is", ()),
    (OfClass, "of what type x is", ()),
    (Having, "of what kind an input is", ()),
    (Masked, "whether mask is None", (None,)),
    (LookingUp, "by the value of an input", ("double",)),
    (OfTheMode, "is_grad_enabled", ()),
    (OfTheProcess, "environ", ()),
    (Drawing, "draws random numbers", ()),
]


@pytest.mark.parametrize(("kind", "why", "others"), REFUSED, ids=[kind.__name__ for kind, *_ in REFUSED])
def test_what_a_graph_would_answer_wrongly_is_left(
    package: ModuleType, kind: type[Block], why: str, others: tuple[Any, ...]
) -> None:
    model = kind()
    new = package.replace(model)
    assert new.replacements.replaced == []
    assert why in str(new.replacements)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(new(_input(), *others), model(_input(), *others))


class Configured(Block):
    """Questions about what is no input have one answer."""

    def forward(self, x: Tensor) -> Tensor:
        gains = [g for g in (self.scale, "none") if isinstance(g, float) and hasattr(g, "real")]
        return _tail(self.conv(x)) * gains[0] if self.scale is not None else x


def test_questions_about_the_model_itself_are_answered(package: ModuleType) -> None:
    model = Configured()
    new = package.replace(model)
    assert len(new.replacements.replaced) == 1
    torch.testing.assert_close(new(_input()), model(_input()))
    assert "isinstance" not in globals()  # nothing of the trace stays behind


# --- changes between the steps ---


class Residual(Block):
    def forward(self, x: Tensor) -> Tensor:
        c = self.conv(x)
        y = F.relu(x, inplace=True)
        return _tail(c) + y.mean()


class Adding(Block):
    def forward(self, x: Tensor) -> Tensor:
        c = self.conv(x)
        x.add_(1)
        return _tail(c)


class Calling(Block):
    def forward(self, x: Tensor) -> Tensor:
        c = self.conv(x)
        return _tail(c) + torch.flatten(x * 2).mean()  # reads alone


@pytest.mark.parametrize(("kind", "replaced"), [(Residual, 0), (Adding, 0), (Calling, 1)])
def test_an_input_that_changes_between_the_steps(
    package: ModuleType, kind: type[Block], replaced: int
) -> None:
    model = kind()
    new = package.replace(model)
    assert len(new.replacements.replaced) == replaced
    assert replaced or "may change what it reads" in str(new.replacements)
    with torch.no_grad():
        torch.testing.assert_close(new(_input()), model(_input()))


# --- threads ---


def test_other_threads_do_not_notice(package: ModuleType) -> None:
    stop, wrong = threading.Event(), list[str]()
    busy, model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), nn.Sequential(Block(), nn.ReLU()).eval()
    want = busy(torch.ones(1, 4)).detach()

    def work() -> None:
        for turn in itertools.count():
            if stop.is_set():
                return
            try:
                if type(got := busy(torch.ones(1, 4))) is not Tensor or not torch.equal(got, want):
                    wrong.append("another result")
            except Exception as error:
                wrong.append(repr(error))
            if model.training or model[0].training:
                wrong.append("training")
            if turn % 100 == 0:  # now and then, so that most traces see none of it
                torch.rand(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        reports = [str(package.replace(model).replacements) for _ in range(20)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len([report for report in reports if report.startswith("1 replaced")]) >= 10


class Meeting(Block):
    """Lets another thread work in the middle of its forward."""

    meet: Callable[[], None] = staticmethod(lambda: None)

    def forward(self, x: Tensor) -> Tensor:
        type(self).meet()
        return _tail(self.conv(x))


def test_a_thread_in_the_middle_of_a_trace(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Meeting().eval()
    x, found = _input(), list[Any]()

    def work() -> None:
        try:
            found.append((type(busy(torch.ones(1, 4))), type(model.conv(x)), model.training))
        except Exception as error:
            found.append(error)

    def meet() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    monkeypatch.setattr(Meeting, "meet", staticmethod(meet))
    new = package.replace(model)
    assert len(new.replacements.replaced) == 1
    assert found == [(Tensor, Tensor, False)] * 2  # one trace for training, one for evaluation


# --- what a replaced model is ---


class Root(nn.Module):
    """Untraceable, and reads more of a part than its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.part.scaled(x) + self.part.scale if x.sum() > -1e9 else x


def test_a_rewritten_part_has_its_methods_and_attributes(package: ModuleType) -> None:
    model = Root()
    new = package.replace(model)
    assert len(new.replacements.replaced) == 1
    assert isinstance(new.part, Block)
    assert new.part is not model.part
    torch.testing.assert_close(new(_input()), model(_input()))


def test_what_lies_inside_of_a_part_leaves_the_whole_as_it_is(package: ModuleType) -> None:
    model = nn.Sequential(Block(), nn.ReLU())
    new = package.replace(model)
    assert type(new) is nn.Sequential
    assert len(new) == 2
    assert isinstance(new[0], Block)
    assert [r.where for r in new.replacements.replaced] == [("0.conv", "0.truediv", "0.leaky_relu")]
    torch.testing.assert_close(new(_input()), model(_input()))
    across = package.replace(nn.Sequential(nn.Conv2d(8, 6, 3), Halved(), nn.LeakyReLU()))
    assert isinstance(across, fx.GraphModule)
    assert len(across.replacements.replaced) == 1


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2.0


def test_copies_and_pickles_of_it(package: ModuleType) -> None:
    model = Block()
    model.register_buffer("steps", torch.tensor(3))
    new = package.replace(model)
    want, keys = model(_input()), ["steps", "conv.weight", "conv.bias"]
    assert list(model.state_dict()) == list(new.state_dict()) == keys
    copies = [copy.copy(new), copy.deepcopy(new), pickle.loads(pickle.dumps(new))]
    again = package.replace(new)  # finds what is replaced, and leaves it
    for other in (*copies, again):
        assert list(other.state_dict()) == keys
        assert isinstance(other, Block)
        assert other.scale == 3.0
        torch.testing.assert_close(other(_input()), want)
    assert "frozen" in str(copies[0].replacements)
    assert copies[0].conv.weight is model.conv.weight
    assert copies[1].conv.weight is not model.conv.weight


def test_what_is_put_on_it_is_not_on_the_original(package: ModuleType) -> None:
    for model in (Block(), nn.Sequential(nn.ReLU())):
        new = package.replace(model)
        new.register_forward_hook(lambda *_: torch.zeros(()))
        new.gain = nn.Parameter(torch.ones(()))
        new.register_buffer("seen", torch.ones(()))
        new.add_module("more", nn.ReLU())
        assert new(_input()).dim() == 0
        assert model(_input()).dim() == 4
        assert not [n for n in ("gain", "seen", "more") if hasattr(model, n)]


def test_a_part_of_two_names_is_one_part(package: ModuleType) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = Block()

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) + self.second(x) if x.sum() > -1e9 else x

    new = package.replace(Twice())
    assert new.first is new.second
    assert len(new.replacements.replaced) == 1


def test_a_sample_without_its_batch(package: ModuleType) -> None:
    model = Block()
    new = package.replace(model)
    torch.testing.assert_close(new(_input()[0]), model(_input()[0]))
    torch.testing.assert_close(torch.vmap(new)(_input()), torch.vmap(model)(_input()))


# --- what the report says ---


def test_layers_that_are_more_than_layers_are_named(package: ModuleType) -> None:
    hooked, parametrized = Block(), Block()
    hooked.conv.register_forward_hook(lambda *_: None)
    parametrized.conv = parametrizations.weight_norm(parametrized.conv)
    for model, why in ((hooked, "has hooks"), (parametrized, "of a class of its own")):
        (left,) = package.replace(model).replacements.left
        assert left.where == "conv"
        assert why in left.why
    (left,) = package.replace(Block().double()).replacements.left
    assert "float64" in left.why
    assert "tune" not in left.why


def test_the_command_tunes_for_the_layer(package: ModuleType) -> None:
    model = Block()
    model.conv = nn.Conv2d(8, 12, (3, 5), stride=(1, 2), padding=1, groups=2, bias=False)
    (left,) = package.replace(model).replacements.left
    command = "coldforge tune conv2d_divide_leaky_relu --target cpu --shape "
    assert f"{command}C_in=8,C_out=12,R=3,S=5,stride_w=2,padding_h=1,padding_w=1,groups=2,bias=0," in left.why
