# SPDX-License-Identifier: Apache-2.0
"""Frozen GPU kernels for tests: a hand-written one, its winners, inputs and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.compile.nvrtc import portable_ptx
from coldforge.codegen.freeze import Winner
from coldforge.codegen.render import KernelSource
from coldforge.codegen.target import cuda_target

# One output a thread. It passes through dynamic shared memory, more of it than is allowed unasked, and
# through the workspace, so a missing one faults.
NAIVE_CU = r"""
struct Args {
  const float *x, *weight, *bias;
  float *y, *workspace;
  long long N, H, W, H_out, W_out;
  double divisor, negative_slope;
};
extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args a) {
  constexpr long long C = %(C_in)d, K = %(C_out)d, R = %(R)d, S = %(S)d;
  extern __shared__ float staged[];
  const long long count = a.N * K * a.H_out * a.W_out;
  for (long long block = blockIdx.x; block * blockDim.x < count; block += gridDim.x) {
    const long long o = block * blockDim.x + threadIdx.x;
    float v = 0.0f;
    if (o < count) {
      const long long j = o %% a.W_out, i = o / a.W_out %% a.H_out, k = o / (a.W_out * a.H_out) %% K,
                      n = o / (a.W_out * a.H_out * K);
      v = a.bias ? a.bias[k] : 0.0f;
      for (long long c = 0; c < C; ++c)
        for (long long r = 0; r < R; ++r)
          for (long long s = 0; s < S; ++s)
            v += a.x[((n * C + c) * a.H + i + r) * a.W + j + s] * a.weight[((k * C + c) * R + r) * S + s];
      v = v / float(a.divisor);
      v = v > 0.0f ? v : v * float(a.negative_slope);
    }
    staged[%(SHARED)d / 4 - blockDim.x + threadIdx.x] = v + %(error)sf;
    __syncthreads();
    if (o < count) {
      a.workspace[o] = staged[%(SHARED)d / 4 - blockDim.x + threadIdx.x];
      a.y[o] = a.workspace[o];
    }
    __syncthreads();
  }
}
"""
SHARED_BYTES = 64 * 1024
MAJOR, MINOR = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
HERE = f"sm_{MAJOR}{MINOR}"
DEVICE = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
WinnerFactory = Callable[..., Winner]


def winner(
    naive_winner: WinnerFactory,
    folder: Path,
    shape: dict[str, int],
    *,
    arch: str = HERE,
    error: float = 0.0,
    ptx: str | None = None,
    **changes: Any,
) -> Winner:
    """A cuda winner of the naive kernel, compiled here.

    Args:
        error: added to every output.
        ptx: architecture for which, and for all newer ones, it has PTX.
    """
    base = naive_winner(shape)
    numbers = {**base.specialisation, "SHARED": SHARED_BYTES, "error": repr(error)}
    text = f"// {arch}\n" + NAIVE_CU % numbers
    digest = hashlib.sha256(text.encode()).hexdigest()
    name = f"{base.operator}_naive_{arch}_{digest[:8]}"
    target = cuda_target(arch, DEVICE)
    source = KernelSource(text, "coldforge_kernel", digest, name, "cuda")
    artifact = compile_source(source, target, Cache(folder / "cache"))
    fields = {
        "target": target.to_dict(),
        "source_text": text,
        "source_digest": digest,
        "source_name": name,
        "binary": artifact.path.read_bytes(),
        "compiler": artifact.compiler,
        "flags": artifact.flags,
        "ptx": None if ptx is None else portable_ptx(text, name, ptx),
        "config": {"BLOCK": 128},
        "derived": {"BLOCKS": "ceil_div(N * C_out * H_out * W_out, BLOCK)"},
        "launch": {
            "grid": "min(BLOCKS, sm_count * 8)",
            "block": "BLOCK",
            "shared_bytes": str(SHARED_BYTES),
            "workspace_bytes": "N * C_out * H_out * W_out * 4",
        },
    }
    values = {n: getattr(base, n) for n in Winner.__dataclass_fields__}
    return Winner(**{**values, **fields, **changes})


def inputs(n: int = 2, h: int = 20, w: int = 24, k: int = 6, *, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """The operator's tensors on the GPU: x [n, 8, h, w], k filters of 3x3."""
    g = torch.Generator().manual_seed(seed)
    shapes = [(n, 8, h, w), (k, 8, 3, 3), (k,)]
    return tuple(torch.randn(*shape, generator=g).cuda() for shape in shapes)


def expected(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The answer in float64, on the host."""
    x, weight, bias = (t.double().cpu() for t in (x, weight, bias))
    return F.leaky_relu(F.conv2d(x, weight, bias) / 2.0, 0.01)


def close(out: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether a result is within fp32's error of the answer."""
    if out.shape != want.shape:
        return False
    return bool((out.double().cpu() - want).abs().max() <= 4e-6 * want.abs().max())


def last(package: ModuleType) -> str:
    """The variant that answered this thread's last call."""
    return str(package.runtime.package.STATE.extension.last())
