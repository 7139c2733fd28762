# SPDX-License-Identifier: Apache-2.0
"""A frozen module reads its weights in every call: however they change, the next result is that of a module
made anew from them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from mean_winners import mean_winner, template_winner
from weight_changes import CHANGES, Change, answers, check_next_call, data, new

pytestmark = pytest.mark.build

# Output channels -> the config that is frozen for them; a kernel written by hand has 6.
CONFIGS: dict[int, dict[str, int | str]] = {
    5: {"LAUNCHES": "one", "SPLIT": 1, "ACC": "fp64"},
    7: {"LAUNCHES": "two", "SPLIT": 1, "ACC": "kahan"},
}
CHANNELS = [6, *CONFIGS]


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory, frozen_package: Callable[..., ModuleType]
) -> ModuleType:
    folder = tmp_path_factory.mktemp("packages")
    winners = [template_winner(folder, {"C_out": n}, config) for n, config in CONFIGS.items()]
    return frozen_package(folder, "cf_fresh", [mean_winner(), *winners])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_the_next_call_sees_it(package: ModuleType, change: Change, channels: int) -> None:
    check_next_call(package, change, channels)


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
