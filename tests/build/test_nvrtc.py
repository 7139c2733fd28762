# SPDX-License-Identifier: Apache-2.0
"""NVRTC: cubins without a GPU, their resources, their errors, and what the cache tells apart."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
from coldforge.codegen.compile import Cache, compile_source, nvrtc
from coldforge.codegen.compile.cubin import kernels, machine_code_digest
from coldforge.codegen.errors import CompileError, ToolMissing
from coldforge.codegen.render import KernelSource
from coldforge.codegen.target import cuda_target

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'coldforge[cuda]')")
pytestmark = pytest.mark.build

SM90 = cuda_target("sm_90")
SCALE = """
extern "C" __global__ void coldforge_kernel(float* x) {{ x[threadIdx.x] *= {factor}; }}
"""
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) coldforge_kernel(float* x) {
  float v[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = v[i] * v[63 - i];
}
"""


def _source(text: str, name: str = "variant") -> KernelSource:
    return KernelSource(text, "coldforge_kernel", hashlib.sha256(text.encode()).hexdigest(), name, "cuda")


def _scale(factor: str, comment: str = "") -> KernelSource:
    return _source(f"// {comment}{SCALE.format(factor=factor)}")


def test_a_cubin_for_the_architecture(tmp_path: Path) -> None:
    artifact = compile_source(_scale("2.0f"), SM90, Cache(tmp_path))
    cubin = artifact.path.read_bytes()
    assert kernels(cubin) == ("coldforge_kernel",)
    assert artifact.code_digest == machine_code_digest(cubin)
    assert artifact.compiler == nvrtc.compiler_version()
    assert artifact.compiler.startswith("nvrtc ")
    assert artifact.flags == ("--gpu-architecture=sm_90", "-std=c++17", "--ptxas-options=-v")
    assert 0 < artifact.resources.registers < 32
    assert artifact.resources.code_bytes > 0
    assert artifact.resources.spill_store_bytes == 0
    assert compile_source(_scale("2.0f"), SM90, Cache(tmp_path)).cached


def test_machine_code_alone_makes_the_digest(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    plain = compile_source(_scale("2.0f"), SM90, cache)
    commented = compile_source(_scale("2.0f", "the same code"), SM90, cache)
    other = compile_source(_scale("3.0f"), SM90, cache)
    assert plain.path != commented.path
    assert plain.code_digest == commented.code_digest
    assert plain.code_digest != other.code_digest
    assert compile_source(_scale("2.0f"), cuda_target("sm_80"), cache).code_digest != plain.code_digest


def test_spills_and_stack_are_reported(tmp_path: Path) -> None:
    used = compile_source(_source(SPILLS), SM90, Cache(tmp_path)).resources
    assert used.registers == 32
    assert used.spill_store_bytes > 0
    assert used.spill_load_bytes > 0
    assert used.stack_bytes > 0


def test_static_shared_memory_is_reported(tmp_path: Path) -> None:
    text = """
extern "C" __global__ void coldforge_kernel(float* x) {
  __shared__ float shared[256];
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = shared[255 - threadIdx.x];
}
"""
    used = compile_source(_source(text), SM90, Cache(tmp_path)).resources
    assert used.shared_bytes >= 1024


TWO = """
extern "C" __global__ void {first}(float* x) {{ x[threadIdx.x] *= 2.0f; }}
extern "C" __global__ void {second}(float* x) {{
  __shared__ float shared[256];
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < 256; ++i) sum += shared[i] * {factor};
  x[threadIdx.x] = sum;
}}
"""


def _two(first: str = "coldforge_kernel", second: str = "coldforge_finish", factor: str = "1.5f"):
    return _source(TWO.format(first=first, second=second, factor=factor))


def test_of_two_kernels_the_larger_figures_count(tmp_path: Path) -> None:
    both = compile_source(_two(), SM90, Cache(tmp_path))
    assert set(kernels(both.path.read_bytes())) == {"coldforge_kernel", "coldforge_finish"}
    swapped = compile_source(_two("coldforge_finish", "coldforge_kernel"), SM90, Cache(tmp_path)).resources
    assert both.resources == swapped
    # A kernel of another name is not launched, so it does not count.
    alone = compile_source(_two(second="nobody_calls"), SM90, Cache(tmp_path)).resources
    assert (alone.shared_bytes, both.resources.shared_bytes >= 1024) == (0, True)
    assert alone.registers < both.resources.registers < 2 * alone.registers + 32


def test_the_digest_covers_both_kernels(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    sources = (_two(), _two(factor="2.5f"), _two("coldforge_finish", "coldforge_kernel"))
    assert len({compile_source(source, SM90, cache).code_digest for source in sources}) == 3


def test_a_second_kernel_alone_is_no_entry(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void coldforge_finish(float* x) { *x = 1.0f; }\n'
    with pytest.raises(CompileError, match="defines no kernel coldforge_kernel"):
        compile_source(_source(text), SM90, Cache(tmp_path))


def test_headers_of_the_runtime_package_are_found(tmp_path: Path) -> None:
    text = """
#include <cuda_fp16.h>
extern "C" __global__ void coldforge_kernel(__half* x) { x[threadIdx.x] = __float2half(1.5f); }
"""
    assert compile_source(_source(text), SM90, Cache(tmp_path)).resources.registers > 0


def test_a_refused_source_carries_the_log(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r'variant: .*error: identifier "nowhere" is undefined') as caught:
        compile_source(_scale("nowhere"), SM90, Cache(tmp_path))
    assert "nowhere" in caught.value.log
    assert "\n" not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_too_much_static_shared_memory_is_a_compile_error(tmp_path: Path) -> None:
    text = """
extern "C" __global__ void coldforge_kernel(float* x) {
  __shared__ float shared[20000];
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = shared[threadIdx.x * 3];
}
"""
    with pytest.raises(CompileError, match="shared"):
        compile_source(_source(text), SM90, Cache(tmp_path))


def test_a_source_without_the_entry_is_refused(tmp_path: Path) -> None:
    text = 'extern "C" __global__ void another(float* x) { *x = 1.0f; }\n'
    with pytest.raises(CompileError, match="defines no kernel coldforge_kernel"):
        compile_source(_source(text), SM90, Cache(tmp_path))


def test_absent_bindings_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    nvrtc._library.cache_clear()
    try:
        with pytest.raises(ToolMissing, match=r"pip install 'coldforge\[cuda\]'"):
            compile_source(_scale("2.0f"), SM90, Cache(tmp_path))
    finally:
        monkeypatch.undo()
        nvrtc._library.cache_clear()
    assert compile_source(_scale("2.0f"), SM90, Cache(tmp_path)).resources.registers > 0


def test_a_second_compile_reports_resources_too(tmp_path: Path) -> None:
    # NVRTC's own cache gives no log; it is active on machines with a driver.
    first = compile_source(_scale("2.0f"), SM90, Cache(tmp_path / "one"))
    again = compile_source(_scale("2.0f"), SM90, Cache(tmp_path / "two"))
    assert not again.cached
    assert again.resources == first.resources
    assert again.resources.registers > 0


def test_the_compilers_own_cache_is_kept_out_where_it_has_one() -> None:
    assert nvrtc._uncached("nvrtc 12.8") == ()
    assert nvrtc._uncached("nvrtc 12.9") == ("--no-cache",)
    assert nvrtc._uncached("nvrtc 13.0") == ("--no-cache",)
