# SPDX-License-Identifier: Apache-2.0
"""A frozen module on a GPU reads its weights in every call, once it was moved and in a captured graph too."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from coldforge.codegen.target import cuda_target
from mean_winners import template_winner
from torch import nn
from weight_changes import CHANGES, Change, answers, check_next_call, data, new

pytestmark = [pytest.mark.gpu, pytest.mark.build]
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

MAJOR, MINOR = torch.cuda.get_device_capability()
# Output channels -> the config that is frozen for them.
CONFIGS: dict[int, dict[str, int | str]] = {5: {"LAUNCHES": "one"}, 7: {"LAUNCHES": "two"}}


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory, frozen_package: Callable[..., ModuleType]
) -> ModuleType:
    folder = tmp_path_factory.mktemp("packages")
    target = cuda_target(f"sm_{MAJOR}{MINOR}", torch.cuda.get_device_name())
    winners = [
        template_winner(folder, {"C_out": n, "H": 256, "W": 256}, config, target)
        for n, config in CONFIGS.items()
    ]
    winners += [template_winner(folder, {"C_out": n}, {}) for n in CONFIGS]
    return frozen_package(folder, "cf_fresh_cuda", winners)


def _through_the_cpu(module: nn.Module, other: nn.Module) -> None:
    module.cpu()
    module.load_state_dict(other.cpu().state_dict())
    module.cuda()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("channels", CONFIGS)
@pytest.mark.parametrize("change", [*CHANGES, _through_the_cpu], ids=lambda c: c.__name__.strip("_"))
def test_the_next_call_sees_it(package: ModuleType, change: Change, channels: int) -> None:
    check_next_call(package, change, channels, "cuda")


@pytest.mark.parametrize("channels", CONFIGS)
def test_each_device_has_its_kernel(package: ModuleType, channels: int) -> None:
    module, x = new(package, 1, channels), data()
    here = answers(package, module, x)
    module.cuda()
    there = answers(package, module, x.cuda())
    torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=1e-5)
    module.cpu()
    assert torch.equal(answers(package, module, x), here)


@pytest.mark.parametrize("channels", CONFIGS)
def test_a_captured_graph_reads_the_weights_of_its_replay(package: ModuleType, channels: int) -> None:
    module, other, x = new(package, 1, channels, "cuda"), new(package, 2, channels, "cuda"), data().cuda()
    answers(package, module, x)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = module(x)
    for source in (module, other, new(package, 3, channels, "cuda")):
        module.load_state_dict(source.state_dict())
        graph.replay()
        assert torch.equal(out, answers(package, source, x))
