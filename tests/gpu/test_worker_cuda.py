# SPDX-License-Identifier: Apache-2.0
"""The worker on a GPU: real variants at the founding workload, and kernels that break the context."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import KernelSource, render
from coldforge.codegen.settings import Settings
from coldforge.codegen.target import detect
from coldforge.tuner.client import WorkerClient
from coldforge.tuner.outcome import TrialOutcome
from coldforge.tuner.request import TrialRequest, trial_request

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

KERNEL = """
struct Args {
  const float *x, *weight, *bias;
  float* y;
  long long N, H, W, H_out, W_out;
  double divisor, negative_slope;
};
extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args a) {
  const long long index = blockIdx.x * 128LL + threadIdx.x;
  if (index < a.N * 6 * a.H_out * a.W_out) {
    const long long j = index % a.W_out, i = index / a.W_out % a.H_out;
    const long long k = index / (a.W_out * a.H_out) % 6, n = index / (a.W_out * a.H_out * 6);
    float v = 0.0f;
    for (int c = 0; c < 4; ++c)
      for (int r = 0; r < 3; ++r)
        for (int s = 0; s < 3; ++s)
          v += a.x[((n * 4 + c) * a.H + i + r) * a.W + j + s] * a.weight[((k * 4 + c) * 3 + r) * 3 + s];
    v = (v + a.bias[k]) / float(a.divisor);
    a.y[index] = v > 0.0f ? v : v * float(a.negative_slope);
  }
  FAULT;
}
"""

Make = Callable[..., TrialRequest]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerClient]:
    settings = Settings(tmp_path_factory.mktemp("home"), 1, "g++", may_build=False)
    with WorkerClient(detect("cuda"), settings) as shared:
        yield shared


@pytest.fixture(scope="module")
def make(cache: Cache) -> Make:
    """Compiles KERNEL with a fault and wraps it in a request."""
    shape = {"N": 2, "H": 24, "W": 24, "C_in": 4, "C_out": 6}
    problem = make_problem(catalogue().operator("conv2d_divide_leaky_relu"), "small", shape)

    def request(fault: str = "", **launch: str) -> TrialRequest:
        text = KERNEL.replace("FAULT", fault)
        digest = hashlib.sha256(text.encode()).hexdigest()
        source = KernelSource(text, "coldforge_kernel", digest, "by_hand", "cuda")
        geometry = {"grid": "ceil_div(N * 6 * H_out * W_out, 128)", "block": "128", "shared_bytes": "0"}
        return TrialRequest(
            problem=problem.to_dict(),
            artifact=compile_source(source, detect("cuda"), cache).to_dict(),
            template="by_hand",
            config={},
            launch={**geometry, **launch},
        )

    return request


def test_the_default_variant_at_the_founding_workload(client: WorkerClient, cache: Cache) -> None:
    target = detect("cuda")
    operator = catalogue().operator("conv2d_divide_leaky_relu")
    problem = make_problem(operator, "seed")
    space = catalogue().space(operator, target)
    artifact = compile_source(render(space, problem, space.default, target), target, cache)
    request = trial_request(space, problem, space.default, artifact)
    result = client.run(request)
    assert result.outcome is TrialOutcome.OK, result.reason
    assert result.time_ms is not None
    assert result.time_ms > result.details["floor_ms"]
    assert result.details["warm_ms"] > 0
    assert result.error is not None
    assert result.error < 1e-6
    (again,) = client.finals([request])
    assert again.time_ms == pytest.approx(result.time_ms, rel=0.1)


def test_a_right_variant(client: WorkerClient, make: Make) -> None:
    result = client.run(make())
    assert result.outcome is TrialOutcome.OK, result.reason
    assert result.bound_ratio is not None
    assert result.bound_ratio < 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("if (index == 3) a.y[3] += 1.0f", "outputs are wrong"),
        ("if (index == 0) a.y[a.N * 6 * a.H_out * a.W_out] = 0.0f", "outside its output"),
        ("if (index == 0) const_cast<float*>(a.x)[0] += 1.0f", "changed its input x"),
    ],
)
def test_wrong_variants(fault: str, reason: str, client: WorkerClient, make: Make) -> None:
    result = client.run(make(fault))
    assert result.outcome is TrialOutcome.WRONG_RESULT
    assert reason in result.reason


@pytest.mark.parametrize("fault", ["*reinterpret_cast<volatile int*>(8) = 1", "__trap()"])
def test_a_broken_context_costs_one_result(fault: str, client: WorkerClient, make: Make) -> None:
    client.run(make())
    starts = client.starts
    result = client.run(make(fault))
    assert result.outcome is TrialOutcome.CRASH
    assert "CUDA_ERROR" in result.reason
    assert client.run(make()).ok
    assert client.starts == starts + 1


def test_a_hang_ends_at_its_limit(client: WorkerClient, make: Make) -> None:
    client.run(make())
    result = client.run(make("while (*(const volatile float*)a.x != 12345.0f) {}"), timeout_s=3.0)
    assert result.outcome is TrialOutcome.TIMEOUT
    assert client.run(make()).ok


@pytest.mark.parametrize("launch", [{"shared_bytes": "300000"}, {"block": "2048"}, {"grid": "0"}])
def test_refused_launches(launch: dict[str, str], client: WorkerClient, make: Make) -> None:
    result = client.run(make(**launch))
    assert result.outcome is TrialOutcome.RESOURCE_LIMIT
    assert client.run(make()).ok


def test_facts(client: WorkerClient) -> None:
    facts = client.facts()
    assert facts["model"] == detect("cuda").device
    assert facts["driver"]
    assert facts["ceilings"]["read"] > 1e11
