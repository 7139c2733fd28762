# SPDX-License-Identifier: Apache-2.0
"""The ways in which the weights of a module change, and whether its next call sees that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType

import torch
from torch import nn

Change = Callable[[nn.Module, nn.Module], None]


def new(package: ModuleType, seed: int, channels: int = 6, device: str = "cpu") -> nn.Module:
    """A module of 4 channels whose parameters are all drawn."""
    torch.manual_seed(seed)
    module = package.ConvTranspose2dMeanLogSumExp(4, channels, 3, (channels, 1, 1))
    with torch.no_grad():
        module.bias.normal_()
    return module.to(device)


def data() -> torch.Tensor:
    """An input."""
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
        module(data().to(next(module.parameters()).device)).square().mean().backward()
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
        parameter.detach().view(-1).untyped_storage().copy_(target.detach().untyped_storage())


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
    device = next(module.parameters()).device
    module.to("meta")
    module.to_empty(device=device)
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


def check_next_call(package: ModuleType, change: Change, channels: int, device: str = "cpu") -> None:
    """Changes a module towards another: its next result is that of a module made anew from its weights."""
    module, x = new(package, 1, channels, device), data().to(device)
    before = answers(package, module, x)
    assert torch.equal(answers(package, module, x), before)
    change(module, new(package, 2, channels, device))
    after = answers(package, module, x)
    assert not torch.equal(after, before)
    fresh = new(package, 3, channels, device)
    fresh.load_state_dict(copy.deepcopy(module.state_dict()))
    assert torch.equal(after, answers(package, fresh, x))
