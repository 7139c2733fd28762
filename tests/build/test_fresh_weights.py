# SPDX-License-Identifier: Apache-2.0
"""A frozen module reads its weights in every call: however they change, the next result is that of a module
made anew from them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from mean_winners import mean_winner, template_winner
from torch import nn

pytestmark = pytest.mark.build

# Output channels -> the config that is frozen for them; a kernel written by hand has 6.
CONFIGS: dict[int, dict[str, int | str]] = {
    5: {"LAUNCHES": "one", "SPLIT": 4, "ACC": "fp64"},
    7: {"LAUNCHES": "two", "SPLIT": 2, "ACC": "kahan"},
}
CHANNELS = [6, *CONFIGS]


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory, frozen_package: Callable[..., ModuleType]
) -> ModuleType:
    folder = tmp_path_factory.mktemp("packages")
    winners = [template_winner(folder, {"C_out": n}, config) for n, config in CONFIGS.items()]
    return frozen_package(folder, "cf_fresh", [mean_winner(), *winners])


def new(package: ModuleType, seed: int, channels: int = 6) -> nn.Module:
    torch.manual_seed(seed)
    module = package.ConvTranspose2dMeanLogSumExp(4, channels, 3, (channels, 1, 1))
    with torch.no_grad():
        module.bias.normal_()
    return module


def data() -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randn(2, 4, 9, 13, generator=g) + 2 * torch.rand(2, 4, 1, 1, generator=g)


def answers(package: ModuleType, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The module's result, which a kernel gave."""
    with torch.no_grad():
        out = module(x)
    assert package.runtime.package.STATE.extension.last() is not None
    return out


def _load_state_dict(module: nn.Module, other: nn.Module) -> None:
    module.load_state_dict(other.state_dict())


def _load_by_assignment(module: nn.Module, other: nn.Module) -> None:
    module.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)


def _optimizer_step(module: nn.Module, other: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for parameter, target in zip(module.parameters(), other.parameters(), strict=True):
        parameter.grad = 2 * (parameter.detach() - target.detach())  # one step lands on the other's values
    optimizer.step()


def _training_steps(module: nn.Module, other: nn.Module) -> None:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        module(data()).square().mean().backward()
        optimizer.step()


def _data_swapped(module: nn.Module, other: nn.Module) -> None:
    for parameter, target in zip(module.parameters(), other.parameters(), strict=True):
        parameter.data = target.detach().clone()


def _data_copied(module: nn.Module, other: nn.Module) -> None:
    # Changes no version counter: whoever keeps something by version sees nothing of it.
    for parameter, target in zip(module.parameters(), other.parameters(), strict=True):
        parameter.data.copy_(target.detach())


def _memory_written(module: nn.Module, other: nn.Module) -> None:
    for parameter, target in zip(module.parameters(), other.parameters(), strict=True):
        parameter.detach().numpy()[...] = target.detach().numpy()


def _parameters_replaced(module: nn.Module, other: nn.Module) -> None:
    for name, target in other.named_parameters():
        setattr(module, name, nn.Parameter(target.detach().clone()))


def _initialised_again(module: nn.Module, other: nn.Module) -> None:
    torch.manual_seed(77)
    module.reset_parameters()


def _one_dtype_and_back(module: nn.Module, other: nn.Module) -> None:
    module.to(torch.bfloat16)
    module.to(torch.float32)


def _device_and_back(module: nn.Module, other: nn.Module) -> None:
    module.to("meta")
    module.to_empty(device="cpu")
    module.load_state_dict(other.state_dict())


CHANGES = [
    _load_state_dict,
    _load_by_assignment,
    _optimizer_step,
    _training_steps,
    _data_swapped,
    _data_copied,
    _memory_written,
    _parameters_replaced,
    _initialised_again,
    _one_dtype_and_back,
    _device_and_back,
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_the_next_call_sees_it(
    package: ModuleType, change: Callable[[nn.Module, nn.Module], None], channels: int
) -> None:
    module, x = new(package, 1, channels), data()
    before = answers(package, module, x)
    assert torch.equal(answers(package, module, x), before)
    change(module, new(package, 2, channels))
    after = answers(package, module, x)
    assert not torch.equal(after, before)
    fresh = new(package, 3, channels)
    fresh.load_state_dict(copy.deepcopy(module.state_dict()))
    assert torch.equal(after, answers(package, fresh, x))


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("name", ["weight", "conv_bias", "bias"])
def test_each_parameter_by_itself(package: ModuleType, name: str, channels: int) -> None:
    module, other, x = new(package, 1, channels), new(package, 2, channels), data()
    before = answers(package, module, x)
    getattr(module, name).data.copy_(getattr(other, name).data)
    after = answers(package, module, x)
    assert not torch.equal(after, before)
    fresh = new(package, 3, channels)
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(after, answers(package, fresh, x))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_another_dtype_has_the_same_weights(package: ModuleType) -> None:
    module, x = new(package, 1), data()
    narrow = answers(package, module, x)
    module.to(torch.float64)
    with torch.no_grad():
        wide = module(x.double())
    assert package.runtime.package.STATE.extension.last() is None  # the reference: no kernel has that dtype
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-5, atol=1e-5)


def test_weights_of_the_call(package: ModuleType) -> None:
    module, other, x = new(package, 1), new(package, 2), data()
    with torch.no_grad():
        called = torch.func.functional_call(module, dict(other.named_parameters()), (x,))
    assert torch.equal(called, answers(package, other, x))
    assert not torch.equal(answers(package, module, x), called)


def test_a_scalar_that_is_changed(package: ModuleType) -> None:
    module, x = new(package, 1), data()
    ten = answers(package, module, x)
    module.scale = 5.0
    assert torch.equal(answers(package, module, x) * 2, ten)
