# SPDX-License-Identifier: Apache-2.0
"""Winners whose kernels are written by hand: freezing is tested without the templates and the tuner."""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from coldforge.codegen.catalogue import Catalogue, catalogue
from coldforge.codegen.compile.host import compile_flags
from coldforge.codegen.freeze import Winner, freeze
from coldforge.codegen.operator import Operator
from coldforge.codegen.problem import make_problem
from coldforge.codegen.target import cpu_target_for, cuda_target

NAIVE_CPP = r"""
#include <cstdint>
namespace {
struct Args {
  const float *x, *weight, *bias%(vectors)s;
  float* y;
  int64_t N, H, W, H_out, W_out;
  double %(scalars)s;
};
constexpr int64_t C = %(C_in)d, K = %(C_out)d, R = %(R)d, S = %(S)d;
}  // namespace
extern "C" void coldforge_kernel(int64_t begin, int64_t end, void* raw) {
  const Args& a = *static_cast<const Args*>(raw);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t n = unit / K, k = unit %% K;
    for (int64_t i = 0; i < a.H_out; ++i)
      for (int64_t j = 0; j < a.W_out; ++j) {
        float v = a.bias ? a.bias[k] : 0.0f;
        for (int64_t c = 0; c < C; ++c)
          for (int64_t r = 0; r < R; ++r)
            for (int64_t s = 0; s < S; ++s) {
              const int64_t h = i * %(stride_h)d - %(padding_h)d + r;
              const int64_t w = j * %(stride_w)d - %(padding_w)d + s;
              if (h < 0 || h >= a.H || w < 0 || w >= a.W) continue;
              v += a.x[((n * C + c) * a.H + h) * a.W + w] * a.weight[((k * C + c) * R + r) * S + s];
            }
        %(epilogue)s
        a.y[((n * K + k) * a.H_out + i) * a.W_out + j] = v + %(error)sf;
      }
  }
}
"""
EPILOGUE = "v = v / float(a.divisor); v = v > 0.0f ? v : v * float(a.negative_slope);"

WinnerFactory = Callable[..., Winner]


def naive_cpp_winner(
    shape: dict[str, int] | None = None,
    *,
    arch: str = "x86-64-v2",
    device: str = "Test CPU",
    time_ms: float = 1.0,
    error: float = 0.0,
    workload: str = "small",
    declared: Operator | None = None,
    epilogue: str = EPILOGUE,
    **changes: Any,
) -> Winner:
    """A cpu winner of conv2d_divide_leaky_relu, or of another operator of its family.

    Args:
        shape: fields over the workload; 8 channels in, 6 out when not given.
        error: added to every output.
        epilogue: the operator's chain as statements on `v`, for channel `k` and arguments `a`.
        changes: fields of the winner.
    """
    operator = declared or catalogue().operator("conv2d_divide_leaky_relu")
    problem = make_problem(operator, workload, {"C_out": 6, **(shape or {})})
    words = {
        "vectors": "".join(f", *{name}" for name in operator.channel_vectors),
        "scalars": ", ".join(operator.scalars),
        "epilogue": epilogue,
        "error": repr(float(error)),
    }
    text = f"// {arch} {device}\n" + NAIVE_CPP % {**problem.constants, **words}
    digest = hashlib.sha256(text.encode()).hexdigest()
    target = {**cpu_target_for(arch).to_dict(), "device": device}
    fields: dict[str, Any] = {
        "operator": operator.name,
        "family": "conv2d",
        "template": "naive",
        "operator_digest": operator.digest,
        "target": target,
        "dtype": "fp32",
        "precision": "fp32",
        "specialisation": problem.specialisation,
        "workload": problem.dims,
        "workload_name": problem.workload,
        "config": {"GRAIN": 2, "MODE": "plain"},
        "source_text": text,
        "source_name": f"{operator.name}_naive_{arch.replace('-', '_')}_{digest[:8]}",
        "source_digest": digest,
        "binary": None,
        "launch": {"units": "N * C_out", "grain": "GRAIN if MODE == 'plain' else 1"},
        "derived": {"UNUSED": "GRAIN * 2"},
        "compiler": "g++ 12.2.0",
        "flags": compile_flags(arch),
        "resources": {"code_bytes": 1000},
        "measurement": {"time_ms": time_ms, "floor_ms": 0.1, "error": 1e-7, "bound_ratio": 0.5},
        "study": "a study",
    }
    return Winner(**{**fields, **changes})


def cuda_winner(binary: bytes = b"\x7fELF not really a cubin", **changes: Any) -> Winner:
    """A cuda winner with the given bytes as its cubin."""
    base = naive_cpp_winner()
    text = "// cuda\n" + base.source_text
    digest = hashlib.sha256(text.encode()).hexdigest()
    fields = {
        "target": cuda_target("sm_90", "NVIDIA H200").to_dict(),
        "config": {"TILE": 8, "GRID": "persistent"},
        "source_text": text,
        "source_digest": digest,
        "source_name": f"conv2d_divide_leaky_relu_naive_sm_90_{digest[:8]}",
        "binary": binary,
        "launch": {
            "grid": "min(TILES, sm_count * 2) if GRID == 'persistent' else TILES",
            "block": "TILE * 32",
            "shared_bytes": "C_in * (TILE + R - 1) * 4",
            "workspace_bytes": "N * 4",
        },
        "derived": {"TILES": "N * ceil_div(H_out, TILE)"},
        "compiler": "nvrtc 13.0",
        "flags": ("--gpu-architecture=sm_90",),
    }
    values = {name: getattr(base, name) for name in Winner.__dataclass_fields__}
    return Winner(**{**values, **fields, **changes})


@pytest.fixture(scope="session")
def naive_winner() -> WinnerFactory:
    """Makes cpu winners with a hand-written kernel."""
    return naive_cpp_winner


@pytest.fixture(scope="session")
def fake_cuda_winner() -> WinnerFactory:
    """Makes cuda winners whose cubin is arbitrary bytes."""
    return cuda_winner


@pytest.fixture(scope="session")
def frozen_package() -> Callable[..., ModuleType]:
    """Freezes winners into a package, builds it in a process of its own, and imports it.

    With ``check=False`` variants may be wrong.
    """

    def make(
        folder: Path,
        name: str,
        winners: Sequence[Winner],
        *,
        check: bool = True,
        declared: Catalogue | None = None,
    ) -> ModuleType:
        freeze(winners, folder / name, name, declared=declared)
        command = [sys.executable, "-m", f"{name}.runtime"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
        assert run.returncode == 0 or not check, run.stdout + run.stderr
        sys.path.insert(0, str(folder))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(str(folder))

    return make


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this suite."""
    parser.addoption("--renew-golden", action="store_true", help="write the golden texts anew")
    group = parser.getgroup("instantiations", "executing every config of every CUDA template")
    group.addoption(
        "--instantiations",
        choices=("missing", "all"),
        default="missing",
        help="missing: in the emulator, those that the ledgers lack, for half a minute; all: every one that "
        "has not passed there yet, in the emulator and (-m gpu) on the GPU",
    )
    group.addoption(
        "--instantiations-seconds",
        type=float,
        metavar="S",
        help="begin no further ones after so long; running again goes on from there",
    )
    group.addoption(
        "--ledger-folder",
        type=Path,
        metavar="DIR",
        help="write the passes there, not beside the templates (`coldforge check --merge DIR` adds them)",
    )


LONGEST = (
    "test_templates_emulated.py",
    "test_specialisations_emulated.py",
    "test_fault_injection.py",
    "test_kills.py",
    "test_readme.py",
    "test_tune.py",
    "test_instantiations.py",
)
"""Files that take minutes, the longest first: begun last, one would keep a single process busy at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; `make test` hands out whole files in this order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What became of the instantiations: a line each, also from the processes of xdist."""
    lines = [
        text
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == "instantiations" and report.when == "call"
    ]
    if lines:
        terminalreporter.section("instantiations of CUDA templates")
        for line in sorted(lines):
            terminalreporter.write_line(line)
