# SPDX-License-Identifier: Apache-2.0
"""Frozen cubins on a GPU: on PyTorch's stream, from any thread, also while a graph is captured."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from frozen_gpu import HERE, WinnerFactory, close, expected, inputs, last, winner

pytestmark = [pytest.mark.gpu, pytest.mark.build]
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory,
    naive_winner: WinnerFactory,
    frozen_package: Callable[..., ModuleType],
) -> ModuleType:
    folder = tmp_path_factory.mktemp("cuda")
    other = "sm_80" if HERE != "sm_80" else "sm_90"
    winners = [
        winner(naive_winner, folder, {"C_out": 6}),
        winner(naive_winner, folder, {"C_out": 5}),
        winner(naive_winner, folder, {"C_out": 4}, verified=False),
        winner(naive_winner, folder, {"C_out": 3}, verified=False, error=0.5),
        winner(naive_winner, folder, {"C_out": 7}, arch=other),
        naive_winner({"C_out": 6}),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return frozen_package(folder, "cf_gpu_package", winners, check=False)


@pytest.fixture(autouse=True)
def _fresh_warnings(package: ModuleType) -> None:
    package.runtime.fallback.forget_warnings()


@pytest.mark.parametrize("shape", [(1, 3, 3), (2, 20, 24), (3, 65, 7), (9, 130, 131), (0, 20, 20)])
def test_any_size(package: ModuleType, shape: tuple[int, int, int]) -> None:
    tensors = inputs(*shape)
    out = package.conv2d_divide_leaky_relu(*tensors)
    want = expected(*tensors) if shape[0] else torch.empty(0, 6, 18, 18)
    assert out.shape == want.shape
    assert shape[0] == 0 or close(out, want)
    assert last(package).endswith(f"@{HERE}")


def test_layouts(package: ModuleType) -> None:
    x, weight, bias = inputs()
    want = expected(x, weight, bias)
    odd = torch.empty(x.numel() + 1, device="cuda")[1:].view(x.shape).copy_(x)
    for case in (x.to(memory_format=torch.channels_last), odd):
        assert close(package.conv2d_divide_leaky_relu(case, weight, bias), want)
        assert last(package).endswith(f"@{HERE}")


def test_side_stream_and_threads(package: ModuleType) -> None:
    results: list[bool] = []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x, weight, bias = inputs(seed=seed)
            for step in range(20):
                # The input is made on this stream just before: on another stream it would be read too soon.
                torch.cuda._sleep(200_000)
                scaled = x * (step + 1)
                out = package.conv2d_divide_leaky_relu(scaled, weight, bias)
                results.append(close(out, expected(scaled, weight, bias)) and HERE in last(package))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


def test_cuda_graph(package: ModuleType) -> None:
    # C_out = 5 is called here first: the cubin is loaded while the capture is on.
    x, weight, bias = inputs(k=5)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = package.conv2d_divide_leaky_relu(x, weight, bias)
    for seed in (1, 2):
        x.copy_(inputs(k=5, seed=seed)[0])
        graph.replay()
        torch.cuda.synchronize()
        assert close(out, expected(x, weight, bias))


def test_not_verified_until_checked(package: ModuleType) -> None:
    op = package.conv2d_divide_leaky_relu
    tensors = inputs(k=4)
    assert close(op(*tensors), expected(*tensors))
    assert last(package).endswith(f"@{HERE}")  # the build checked it on this GPU
    tensors = inputs(k=3)
    with pytest.warns(RuntimeWarning, match="not verified on this machine"):
        out = op(*tensors)  # it adds 0.5
    torch.backends.cudnn.allow_tf32 = False
    assert float((out.double().cpu() - expected(*tensors)).abs().max()) < 0.05


def test_another_architecture_is_not_taken(package: ModuleType) -> None:
    with pytest.warns(RuntimeWarning, match=f"no frozen kernel covers {HERE}"):
        package.conv2d_divide_leaky_relu(*inputs(k=7))
    assert last(package) == "None"


def test_cpu_and_cuda_in_one_process(package: ModuleType) -> None:
    tensors = inputs()
    host = tuple(t.cpu() for t in tensors)
    assert close(package.conv2d_divide_leaky_relu(*host), expected(*tensors))
    assert "@x86-64" in last(package)
    with pytest.raises(ValueError, match="weight is on cpu, but x is on cuda:0"):
        package.conv2d_divide_leaky_relu(tensors[0], host[1], tensors[2])


def test_module_and_compile(package: ModuleType) -> None:
    module = package.Conv2dDivideLeakyReLU(8, 6, 3, device="cuda")
    x = inputs()[0]
    with torch.no_grad():
        want = module(x)
        assert last(package).endswith(f"@{HERE}")
        assert torch.equal(torch.compile(module, fullgraph=True)(x), want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_tensor_of_another_device(package: ModuleType) -> None:
    tensors = tuple(t.to("cuda:1") for t in inputs())
    out = package.conv2d_divide_leaky_relu(*tensors)
    assert out.device == torch.device("cuda:1")
    assert close(out, expected(*tensors))
    assert torch.cuda.current_device() == 0


def test_gradients_on_the_gpu(package: ModuleType) -> None:
    torch.backends.cudnn.allow_tf32 = False
    results = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        leaves = [t.requires_grad_() for t in inputs()]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            out = package.conv2d_divide_leaky_relu(*leaves)
            assert last(package).endswith(f"@{HERE}")
            out.square().sum().backward()
        torch.cuda.synchronize()
        results.append([t.grad for t in leaves])
    theirs = [t.requires_grad_() for t in inputs()]
    F.leaky_relu(F.conv2d(*theirs) / 2.0, 0.01).square().sum().backward()
    for run in results:
        for own, other in zip(run, theirs, strict=True):
            torch.testing.assert_close(own, other.grad, rtol=1e-4, atol=1e-3)


def test_opcheck_and_autocast_on_the_gpu(package: ModuleType) -> None:
    x, weight, bias = inputs()
    rest = (2.0, 0.01, [1, 1], [0, 0], [1, 1], 1, None)
    ops = torch.ops.cf_gpu_package
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    for op, given in (
        (ops.conv2d_divide_leaky_relu, (x, weight, bias)),
        (ops.conv2d_divide_leaky_relu_autograd, leaves),
    ):
        assert set(torch.library.opcheck(op.default, (*given, *rest)).values()) == {"SUCCESS"}
    with torch.autocast("cuda", torch.float16):
        out = package.conv2d_divide_leaky_relu(x.half(), weight, bias)
    assert out.dtype == torch.float32
    assert close(out, expected(x.half().float(), weight, bias))


def test_a_training_step_in_a_graph(package: ModuleType) -> None:
    module = package.Conv2dDivideLeakyReLU(8, 6, 3, device="cuda")
    x = inputs()[0]

    def step() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        module(x).square().sum().backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    # The graph's own; a step outside of it gives the parameters others.
    gradients = [p.grad for p in module.parameters()]
    for seed in (1, 2):
        x.copy_(inputs(seed=seed)[0])
        graph.replay()
        captured = [gradient.clone() for gradient in gradients]
        step()
        for own, other in zip(captured, module.parameters(), strict=True):
            torch.testing.assert_close(own, other.grad, rtol=1e-4, atol=1e-3)


def test_no_synchronisation_and_no_allocation_beyond_the_output(package: ModuleType) -> None:
    tensors = inputs(n=4, h=64, w=64)
    package.conv2d_divide_leaky_relu(*tensors)  # loads the cubin
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = package.conv2d_divide_leaky_relu(*tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    workspace = out.numel() * 4  # as the entry declares it
    rounded = 2 * 512  # what the allocator rounds up
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= out.numel() * out.element_size() + workspace + rounded


def test_eight_threads(package: ModuleType) -> None:
    tensors = inputs()
    want = package.conv2d_divide_leaky_relu(*tensors)
    results: list[bool] = []

    def work() -> None:
        for _ in range(50):
            results.append(torch.equal(package.conv2d_divide_leaky_relu(*tensors), want))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 400


def test_a_replaced_model(package: ModuleType) -> None:
    torch.backends.cudnn.allow_tf32 = False
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 6, 3), Halve(), torch.nn.LeakyReLU()).cuda()
    new = package.replace(model)
    assert [r.operator for r in new.replacements.replaced] == ["conv2d_divide_leaky_relu"]
    x = inputs()[0]
    torch.testing.assert_close(new(x), model(x), rtol=1e-4, atol=1e-5)
    assert last(package).endswith(f"@{HERE}")


class Halve(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2.0


def test_exported(package: ModuleType) -> None:
    module = package.Conv2dDivideLeakyReLU(8, 6, 3, device="cuda")
    x = inputs()[0]
    batch = torch.export.Dim("batch", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(module, (x,), dynamic_shapes={"x": {0: batch}})
        several = inputs(n=7, seed=3)[0]
        assert torch.equal(program.module()(several), module(several))
    assert last(package).endswith(f"@{HERE}")


def test_compiled_with_gradients_and_without_a_break(package: ModuleType) -> None:
    module = package.Conv2dDivideLeakyReLU(8, 6, 3, device="cuda")
    x = inputs()[0]
    whole = torch.compile(module, fullgraph=True)
    module(x).square().sum().backward()
    plain = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    whole(x).square().sum().backward()
    for own, parameter in zip(plain, module.parameters(), strict=True):
        torch.testing.assert_close(own, parameter.grad, rtol=1e-4, atol=1e-3)


def test_gradcheck_in_float64(package: ModuleType) -> None:
    leaves = [t.double().requires_grad_() for t in inputs(n=1, h=5, w=4, k=2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference answers
        assert torch.autograd.gradcheck(package.conv2d_divide_leaky_relu, leaves)
        assert torch.autograd.gradgradcheck(package.conv2d_divide_leaky_relu, leaves)


def test_two_streams_at_once(package: ModuleType) -> None:
    """Each stream's own input is written while the other's kernel runs."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    data = [inputs(n=8, h=64, w=64, seed=seed) for seed in range(2)]
    want = [expected(*tensors) for tensors in data]
    torch.cuda.synchronize()
    results: list[list[torch.Tensor]] = [[], []]
    for _ in range(10):
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                x, weight, bias = data[number]
                results[number].append(package.conv2d_divide_leaky_relu(x.clone(), weight, bias))
    torch.cuda.synchronize()
    for number in range(2):
        assert all(close(out, want[number]) for out in results[number])


def test_the_same_bits_every_time(package: ModuleType) -> None:
    tensors = inputs(n=9, h=130, w=131)
    first = package.conv2d_divide_leaky_relu(*tensors)
    assert all(torch.equal(package.conv2d_divide_leaky_relu(*tensors), first) for _ in range(20))


def test_a_call_costs_little(tmp_path: Path) -> None:
    """At most 3 us over an op of the same schema that does nothing: the repository's own kernels."""
    script = Path(__file__).parents[2] / "benchmarks" / "call_overhead.py"
    out = tmp_path / "overhead.json"
    command = [sys.executable, str(script), "--target", "cuda", "--rounds", "60", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(out.read_text())["within_limit"] is True
