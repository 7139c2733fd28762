# SPDX-License-Identifier: Apache-2.0
"""Workspaces that start at zero, and second kernels, on a GPU: verified, frozen, on streams, in a graph."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import detect
from coldforge.tuner.client import WorkerClient
from coldforge.tuner.outcome import TrialOutcome
from split_space import Split

pytestmark = [pytest.mark.gpu, pytest.mark.build]
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

CALLS = 500
FORMS = {6: "counted", 5: "staged"}
"""Output channels of a specialisation -> how its frozen entry puts the parts together."""


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split(tmp_path_factory.mktemp("split"), detect("cuda"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerClient]:
    settings = Settings(tmp_path_factory.mktemp("home"), 1, "g++", may_build=False)
    with WorkerClient(detect("cuda"), settings) as shared:
        yield shared


def test_every_config_is_right(client: WorkerClient, split: Split) -> None:
    for config in split.space.feasible(split.problem, split.target):
        result = client.run(split.request(config))
        assert result.outcome is TrialOutcome.OK, (config, result.reason)
        assert result.time_ms is not None


@pytest.mark.parametrize(
    ("form", "launch", "outcome", "reason"),
    [
        ("counted", {"zeroed_bytes": "0"}, TrialOutcome.WRONG_RESULT, "outputs are wrong"),
        ("counted", {"zeroed_bytes": "4"}, TrialOutcome.WRONG_RESULT, "outputs are wrong"),
        ("staged", {"finish_grid": "0"}, TrialOutcome.WRONG_RESULT, "outputs are wrong"),
        ("staged", {"finish_grid": "N * C_out - 1"}, TrialOutcome.WRONG_RESULT, "outputs are wrong"),
        ("counted", {"finish_grid": "1"}, TrialOutcome.RESOURCE_LIMIT, "has no kernel coldforge_finish"),
        ("staged", {"finish_grid": "-1"}, TrialOutcome.RESOURCE_LIMIT, "coldforge_finish of .* a grid of -1"),
        ("staged", {"finish_block": "2048"}, TrialOutcome.RESOURCE_LIMIT, "2048 threads a block"),
        ("staged", {"finish_shared_bytes": "300000"}, TrialOutcome.RESOURCE_LIMIT, "300000 bytes of shared"),
    ],
)
def test_wrong_launches(
    form: str, launch: dict[str, str], outcome: TrialOutcome, reason: str, client: WorkerClient, split: Split
) -> None:
    request = split.request(split.config(form))
    starts = client.starts
    result = client.run(replace(request, launch={**request.launch, **launch}))
    assert result.outcome is outcome, result.reason
    assert re.search(reason, result.reason), result.reason
    assert client.run(request).ok
    assert client.starts <= max(starts, 1)  # none of these breaks the context


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory, frozen_package: Callable[..., ModuleType]
) -> ModuleType:
    folder: Path = tmp_path_factory.mktemp("frozen")
    winners = []
    for channels, form in FORMS.items():
        split = Split(folder, detect("cuda"), C_out=channels)
        winners.append(split.winner(split.config(form, 3)))
    return frozen_package(folder, "cf_second_stage_gpu", winners)


def inputs(channels: int, n: int = 2, h: int = 40, w: int = 50, seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    shapes = [(n, 4, h, w), (channels, 4, 3, 3), (channels,)]
    return tuple(torch.randn(*shape, generator=g).cuda() for shape in shapes)


def is_right(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> bool:
    x, weight, bias = (t.double().cpu() for t in (x, weight, bias))
    want = F.leaky_relu(F.conv2d(x, weight, bias) / 2.0, 0.01)
    return bool((out.double().cpu() - want).abs().max() <= 4e-6 * want.abs().max())


def answered(package: ModuleType) -> bool:
    return package.runtime.package.STATE.extension.last() is not None


@pytest.mark.parametrize("channels", FORMS)
@pytest.mark.parametrize("shape", [(1, 3, 3), (2, 20, 24), (3, 65, 7), (9, 130, 131)])
def test_any_size(package: ModuleType, channels: int, shape: tuple[int, int, int]) -> None:
    tensors = inputs(channels, *shape)
    out = package.conv2d_divide_leaky_relu(*tensors)
    assert answered(package)
    assert is_right(out, *tensors)


@pytest.mark.parametrize("channels", FORMS)
def test_two_streams_at_once(package: ModuleType, channels: int) -> None:
    sets = [inputs(channels, n, seed=n) for n in (2, 3)]
    wanted = [package.conv2d_divide_leaky_relu(*tensors) for tensors in sets]
    assert all(is_right(want, *tensors) for want, tensors in zip(wanted, sets, strict=True))
    differing = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in sets]
    streams = [torch.cuda.Stream() for _ in sets]
    torch.cuda.synchronize()
    for _ in range(CALLS):
        for stream, tensors, want, count in zip(streams, sets, wanted, differing, strict=True):
            with torch.cuda.stream(stream):
                count += (package.conv2d_divide_leaky_relu(*tensors) != want).sum()
    torch.cuda.synchronize()
    assert answered(package)
    assert [int(count) for count in differing] == [0, 0]


def test_two_threads_on_two_streams(package: ModuleType) -> None:
    found: list[int] = []

    def work(channels: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            tensors = inputs(channels)
            want = package.conv2d_divide_leaky_relu(*tensors)
            count = torch.zeros((), dtype=torch.int64, device="cuda")
            for _ in range(CALLS):
                count += (package.conv2d_divide_leaky_relu(*tensors) != want).sum()
            found.append(int(count) if is_right(want, *tensors) and answered(package) else -1)

    threads = [threading.Thread(target=work, args=(channels,)) for channels in FORMS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0, 0]


@pytest.mark.parametrize("channels", FORMS)
def test_a_graph_replayed_a_thousand_times(package: ModuleType, channels: int) -> None:
    first, second = inputs(channels), inputs(channels, seed=1)
    wanted = [package.conv2d_divide_leaky_relu(x, *first[1:]) for x in (first[0], second[0])]
    x = first[0].clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = package.conv2d_divide_leaky_relu(x, *first[1:])
    assert answered(package)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for replay in range(1000):
        x.copy_((first, second)[replay % 2][0])
        out.fill_(float("nan"))
        graph.replay()
        differing += (out != wanted[replay % 2]).sum()
    assert int(differing) == 0
    assert is_right(wanted[0], *first)
    assert is_right(wanted[1], second[0], *first[1:])
