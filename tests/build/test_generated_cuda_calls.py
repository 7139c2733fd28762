# SPDX-License-Identifier: Apache-2.0
"""How the runtime talks to the CUDA driver, against a driver of our own that counts: no GPU is needed.

The headers are compiled into a small program. Two libraries stand in for libcuda.so.1 and libtorch_cuda.so;
they record what they are asked, and check what a real driver would check.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "generated" / "runtime" / "native"

DRIVER = r"""
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
struct Counts {
  std::atomic<int> retains{0}, loads{0}, launches{0}, attributes{0}, inits{0};
};
static Counts counts;
static thread_local int depth = 0;
static thread_local int mode = 0;  // global capture mode, as a fresh thread has it
static int contexts[2];
static int function_token;
extern "C" {
int fake_depth() { return depth; }
int fake_count(const char* what) {
  if (!strcmp(what, "retains")) return counts.retains;
  if (!strcmp(what, "loads")) return counts.loads;
  if (!strcmp(what, "launches")) return counts.launches;
  if (!strcmp(what, "attributes")) return counts.attributes;
  return counts.inits;
}
long long fake_sum = 0;
unsigned fake_grid = 0, fake_block = 0, fake_shared = 0;
void* fake_stream = nullptr;
int cuInit(unsigned) { return getenv("FAKE_NO_DEVICE") ? 100 : (++counts.inits, 0); }
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuGetErrorName(int, const char** s) { *s = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int, const char** s) { *s = "as the test wants"; return 0; }
int cuDeviceGet(int* d, int i) { if (i > 1) return 101; *d = i; return 0; }
int cuDeviceGetName(char* s, int n, int) { snprintf(s, n, "Fake GPU"); return 0; }
int cuDeviceGetAttribute(int* v, int which, int) {
  *v = which == 75 ? 9 : which == 76 ? 0 : which == 16 ? 132 : -1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** c, int d) { ++counts.retains; *c = &contexts[d]; return 0; }
int cuCtxPushCurrent_v2(void*) { ++depth; return 0; }
int cuCtxPopCurrent_v2(void**) { --depth; return 0; }
int cuThreadExchangeStreamCaptureMode(int* m) { int old = mode; mode = *m; *m = old; return 0; }
int cuModuleLoadData(void** m, const void* image) {
  if (depth != 1 || mode != 2) return 900;  // no context, or a capture would be broken
  if (static_cast<const char*>(image)[0] == 'X') return 209;
  ++counts.loads; *m = &function_token; return 0;
}
int cuModuleGetFunction(void** f, void*, const char* name) {
  if (strcmp(name, "coldforge_kernel")) return 500;
  *f = &function_token; return 0;
}
int cuFuncSetAttribute(void*, int which, int bytes) {
  if (which != 8 || bytes > 232448) return 1;
  ++counts.attributes; return 0;
}
int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned, unsigned,
                   unsigned shared, void* stream, void** parameters, void** extra) {
  if (depth != 1 || mode == 2 || f != &function_token || gy != 1 || gz != 1 || extra) return 400;
  auto* words = static_cast<long long*>(parameters[0]);
  fake_sum = words[0] + words[1];
  fake_grid = gx; fake_block = bx; fake_shared = shared; fake_stream = stream;
  ++counts.launches; return 0;
}
int aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {
  *stream = reinterpret_cast<void*>(0x100L + device);
  return 0;
}
}
"""

PROGRAM = r"""
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#include "cuda.h"
#undef NDEBUG
#include <cassert>
using namespace coldforge;
extern "C" {
int fake_depth(); int fake_count(const char*); extern long long fake_sum;
extern unsigned fake_grid, fake_block, fake_shared; extern void* fake_stream;
}
static const unsigned char good[] = "cubin", bad[] = "X";
static const Variant variants[] = {{"good", 90, nullptr, good}, {"bad", 90, nullptr, bad}};
static std::string launch(int device, int number, int64_t grid, int64_t shared) {
  Word words[2];
  words[0].size = 40; words[1].size = 2;
  Launch geometry; geometry.grid = grid; geometry.block = 128; geometry.shared_bytes = shared;
  return run_on_gpu(device, gpu_at(device, 2), number, variants[number], geometry, words);
}
int main() {
  if (getenv("FAKE_NO_DEVICE")) {
    assert(gpu_at(0, 2).why.find("cuInit failed: CUDA_ERROR_FAKE (100)") == 0);
    puts("refused"); return 0;
  }
  Gpu& gpu = gpu_at(0, 2);
  assert(gpu.why.empty() && gpu.capability == 90 && gpu.sm_count == 132 && gpu.model == "Fake GPU");
  assert(gpu.driver_cuda_major == 13 && &gpu == &gpu_at(0, 2));
  assert(fake_count("loads") == 0);  // nothing is loaded before it is launched
  assert(launch(0, 0, 7, 0).empty());
  assert(fake_sum == 42 && fake_grid == 7 && fake_block == 128);
  assert(fake_stream == reinterpret_cast<void*>(0x100L));
  assert(fake_count("attributes") == 0 && fake_depth() == 0);
  assert(launch(0, 0, 7, 100000).empty() && fake_shared == 100000 && fake_count("attributes") == 1);
  assert(launch(0, 0, 7, 50000).empty() && fake_count("attributes") == 1);  // allowed already
  assert(launch(0, 0, 7, 300000).find("cuFuncSetAttribute failed") == 0 && fake_depth() == 0);
  assert(launch(0, 0, 7, 0).empty());  // a refused size does not spoil the kernel
  assert(launch(0, 0, int64_t(1) << 31, 0).find("too large") != std::string::npos);
  for (int i = 0; i < 2; ++i) assert(launch(0, 1, 1, 0).find("cuModuleLoadData failed") == 0);
  assert(fake_count("loads") == 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) threads.emplace_back([i] {
    for (int k = 0; k < 50; ++k) assert(launch(i % 2, 0, 1, 1000).empty());
    assert(fake_depth() == 0);
  });
  for (auto& thread : threads) thread.join();
  assert(fake_count("loads") == 2 && fake_count("retains") == 2 && fake_count("inits") == 1);  // one a device
  assert(gpu_at(2, 2).why.find("cuDeviceGet failed") == 0);
  assert(!gpu_at(-1, 2).why.empty() && !gpu_at(64, 2).why.empty());
  printf("launched %d\n", fake_count("launches"));
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    (folder / "program.cpp").write_text(PROGRAM)
    shared = ["g++", "-std=c++17", "-O1", "-g", "-fPIC", "-shared", "driver.cpp"]
    for name in ("libcuda.so.1", "libtorch_cuda.so"):
        # One library under both names, so that both see the same counters.
        if name == "libcuda.so.1":
            subprocess.run([*shared, "-Wl,-soname,libcuda.so.1", "-o", name], cwd=folder, check=True)
        else:
            (folder / name).symlink_to("libcuda.so.1")
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", f"-I{NATIVE}"]
    link = ["libcuda.so.1", "-Wl,-rpath,$ORIGIN", "-ldl", "-pthread"]
    subprocess.run(["g++", *flags, "program.cpp", "-o", "program", *link], cwd=folder, check=True)
    return folder / "program"


def _run(program: Path, **extra: str) -> str:
    environment = {"LD_LIBRARY_PATH": str(program.parent), "PATH": "/usr/bin:/bin", **extra}
    command = [str(program)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.build
def test_launches(program: Path) -> None:
    # 4 launches in order, and 16 threads of 50: each with the context pushed, none left behind.
    assert _run(program) == f"launched {4 + 16 * 50}\n"


@pytest.mark.build
def test_driver_without_a_device(program: Path) -> None:
    assert _run(program, FAKE_NO_DEVICE="1") == "refused\n"
