# SPDX-License-Identifier: Apache-2.0
"""Workspaces that start at zero, and second kernels: verified, refused where wrong, frozen, called."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.compile.elf import symbols
from coldforge.codegen.errors import InputError
from coldforge.codegen.freeze import Winner
from coldforge.codegen.freeze.units import all_units
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import cpu_target, cuda_target
from coldforge.tuner.client import WorkerClient
from coldforge.tuner.outcome import TrialOutcome
from split_space import FINISH_SHARED_BYTES, Split

pytestmark = pytest.mark.build


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split(tmp_path_factory.mktemp("split"), cpu_target())


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerClient]:
    settings = Settings(tmp_path_factory.mktemp("home"), 1, "g++", may_build=False)
    with WorkerClient(cpu_target(), settings) as shared:
        yield shared


def test_every_config_is_right(client: WorkerClient, split: Split) -> None:
    configs = split.space.feasible(split.problem, split.target)
    assert len(configs) == 4
    for config in configs:
        result = client.run(split.request(config))
        assert result.outcome is TrialOutcome.OK, (config, result.reason)


@pytest.mark.parametrize("split_count", [2, 3])
def test_counters_that_nobody_zeroed(client: WorkerClient, split: Split, split_count: int) -> None:
    request = split.request(split.config("counted", split_count))
    for launch in (
        {n: text for n, text in request.launch.items() if n != "zeroed_bytes"},
        {**request.launch, "zeroed_bytes": "4"},
    ):
        result = client.run(replace(request, launch=launch))
        assert result.outcome is TrialOutcome.WRONG_RESULT
        assert "outputs are wrong" in result.reason


def test_a_second_kernel_that_is_not_launched(client: WorkerClient, split: Split) -> None:
    request = split.request(split.config("staged"))
    result = client.run(replace(request, launch={**request.launch, "finish_units": "0"}))
    assert result.outcome is TrialOutcome.WRONG_RESULT
    result = client.run(replace(request, launch={**request.launch, "finish_units": "N * C_out - 1"}))
    assert result.outcome is TrialOutcome.WRONG_RESULT


def test_a_second_kernel_that_is_not_there(client: WorkerClient, split: Split) -> None:
    request = split.request(split.config("counted"))
    result = client.run(replace(request, launch={**request.launch, "finish_units": "N"}))
    assert result.outcome is TrialOutcome.RESOURCE_LIMIT
    assert "has no symbol coldforge_finish, and its launch asks for it" in result.reason
    staged = split.request(split.config("staged"))
    result = client.run(replace(staged, launch={**staged.launch, "finish_grain": "0"}))
    assert result.outcome is TrialOutcome.RESOURCE_LIMIT
    assert "work units in grains of 0" in result.reason


def test_more_zeroes_than_workspace(client: WorkerClient, split: Split) -> None:
    request = split.request(split.config("counted"))
    with pytest.raises(InputError, match="zeroed_bytes is 1000000; it must be from 0 to workspace_bytes"):
        client.run(replace(request, launch={**request.launch, "zeroed_bytes": "1000000"}))


def test_a_write_behind_the_workspace(client: WorkerClient, split: Split) -> None:
    request = split.request(split.config("staged"))
    smaller = f"{request.launch['workspace_bytes']} - 4"
    result = client.run(replace(request, launch={**request.launch, "workspace_bytes": smaller}))
    assert result.outcome is TrialOutcome.WRONG_RESULT
    assert "it wrote outside its workspace" in result.reason


def test_both_functions_make_the_digest(split: Split) -> None:
    digests = {
        split.compiled(config)[1].code_digest for config in split.space.feasible(split.problem, split.target)
    }
    assert len(digests) == 4


def test_cuda_variants_compile(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    split = Split(tmp_path, cuda_target("sm_90"))
    for config in split.space.feasible(split.problem, split.target):
        _, artifact = split.compiled(config)
        assert 0 < artifact.resources.registers < 128
        assert (b"coldforge_finish" in artifact.path.read_bytes()) == (config["FORM"] == "staged")
    assert split.space.launch(split.problem, config, split.target).finish_shared_bytes == FINISH_SHARED_BYTES


def test_both_functions_leave_the_object_and_none_is_weak(split: Split, tmp_path: Path) -> None:
    for form, count in (("counted", 1), ("staged", 2)):
        winner = split.winner(split.config(form))
        (tmp_path / "kernel.cpp").write_text(winner.source_text)
        for unit in all_units([winner]):
            names = [unit.symbol, f"{unit.symbol}_finish"]
            rename = [f"-Dcoldforge_kernel={names[0]}", f"-Dcoldforge_finish={names[1]}", "-Wall", "-Werror"]
            command = ["g++", *unit.flags, *rename, "-c", "kernel.cpp", "-o", "kernel.o"]
            subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
            found = symbols((tmp_path / "kernel.o").read_bytes())
            exported = [s.name for s in found if s.defined and s.binding != "local"]
            assert sorted(exported) == names[:count]


# --- frozen ---


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory,
    naive_winner: Callable[..., Winner],
    frozen_package: Callable[..., ModuleType],
) -> ModuleType:
    """One specialisation for each form: 6 output channels are counted, 5 are staged, 7 need neither.

    With 4 and 3 the launch is wrong: it asks for a second kernel that is not there, or zeroes too much.
    """
    folder = tmp_path_factory.mktemp("frozen")
    here = cpu_target()
    counted, staged = Split(folder, here, C_out=6), Split(folder, here, C_out=5)
    absent, beyond = Split(folder, here, C_out=4), Split(folder, here, C_out=3)
    no_second = absent.winner(absent.config("counted"))
    too_much = beyond.winner(beyond.config("counted"))
    winners = [
        counted.winner(counted.config("counted", 3)),
        staged.winner(staged.config("staged", 3)),
        naive_winner({"C_in": 4, "C_out": 7}),
        replace(no_second, launch={**no_second.launch, "finish_units": "N"}),
        replace(
            too_much, launch={**too_much.launch, "zeroed_bytes": "workspace_bytes_of_all + 1"}, derived=BEYOND
        ),
    ]
    return frozen_package(folder, "cf_second_stage", winners, check=False)


BEYOND = {"workspace_bytes_of_all": "round_up(N * C_out * 4, 64) + N * C_out * SPLIT * H_out * W_out * 4"}


def inputs(channels: int, n: int = 2, h: int = 20, w: int = 24, seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    shapes = [(n, 4, h, w), (channels, 4, 3, 3), (channels,)]
    return tuple(torch.randn(*shape, generator=g) for shape in shapes)


def expected(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.leaky_relu(F.conv2d(x.double(), weight.double(), bias.double()) / 2.0, 0.01)


def last(package: ModuleType) -> str | None:
    return package.runtime.package.STATE.extension.last()


def dirty(count: int) -> None:
    """Leaves memory behind in which a counter is not zero."""
    torch.full((count,), -1, dtype=torch.int32)


@pytest.mark.parametrize("channels", [6, 5, 7])
def test_frozen_forms_at_any_size(package: ModuleType, channels: int) -> None:
    for shape in [(2, 20, 24), (1, 3, 3), (3, 65, 7), (9, 11, 130)]:
        tensors = inputs(channels, *shape)
        out = package.conv2d_divide_leaky_relu(*tensors)
        assert last(package) is not None
        assert float((out - expected(*tensors)).abs().max()) < 2e-5


@pytest.mark.parametrize("channels", [6, 5])
def test_a_thousand_calls(package: ModuleType, channels: int) -> None:
    tensors = inputs(channels)
    want = package.conv2d_divide_leaky_relu(*tensors)
    assert float((want - expected(*tensors)).abs().max()) < 2e-5
    for call in range(1000):
        dirty(1000 + 97 * (call % 200))
        assert torch.equal(package.conv2d_divide_leaky_relu(*tensors), want), call
        assert last(package) is not None


def test_two_threads_at_once(package: ModuleType) -> None:
    wrong: list[tuple[int, int]] = []
    done: list[int] = []
    together = threading.Barrier(4)

    def work(channels: int, seed: int) -> None:
        tensors = inputs(channels, 1 + seed, seed=seed)
        want = package.conv2d_divide_leaky_relu(*tensors)
        together.wait()
        for call in range(250):
            dirty(5000)
            if not torch.equal(package.conv2d_divide_leaky_relu(*tensors), want) or last(package) is None:
                wrong.append((channels, call))
        done.append(seed)

    threads = [threading.Thread(target=work, args=(c, seed)) for c in (6, 5) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, sorted(done)) == ([], [0, 0, 1, 1])


@pytest.mark.parametrize("channels", [4, 3])
def test_a_launch_that_is_wrong_runs_the_reference(package: ModuleType, channels: int) -> None:
    package.runtime.fallback.forget_warnings()
    tensors = inputs(channels)
    with pytest.warns(RuntimeWarning, match="not verified on this machine"):
        out = package.conv2d_divide_leaky_relu(*tensors)
    assert last(package) is None
    assert float((out - expected(*tensors)).abs().max()) < 2e-5
    # The kernel itself is asked for: it says why, and writes nothing.
    extension = package.runtime.package.STATE.extension
    name = next(v for v in extension.variants if _channels_of(package, v) == channels)
    reason = {4: "its source has no second kernel", 3: "it would zero more than its workspace"}[channels]
    with pytest.warns(RuntimeWarning, match=reason), extension.only(extension.variants.index(name)):
        package.conv2d_divide_leaky_relu(*tensors)


def _channels_of(package: ModuleType, variant: str) -> int:
    entries = {e["name"]: e for e in package.runtime.manifest.load(package.runtime.manifest.ROOT).entries}
    return int(entries[variant.rpartition("@")[0]]["specialisation"]["C_out"])
