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
#include <string>
struct Counts {
  std::atomic<int> retains{0}, loads{0}, launches{0}, attributes{0}, inits{0}, finds{0};
};
static Counts counts;
static thread_local int depth = 0;
static thread_local int mode = 0;  // global capture mode, as a fresh thread has it
static int contexts[2];
static int function_token, finish_token;
static thread_local std::string log_text;  // what this thread enqueued, in order
static int fail_next = -1;                 // the enqueuing call that fails: 0 is the next
static bool fails() { return fail_next >= 0 && fail_next-- == 0; }
extern "C" {
int fake_depth() { return depth; }
int fake_count(const char* what) {
  if (!strcmp(what, "retains")) return counts.retains;
  if (!strcmp(what, "loads")) return counts.loads;
  if (!strcmp(what, "launches")) return counts.launches;
  if (!strcmp(what, "attributes")) return counts.attributes;
  if (!strcmp(what, "finds")) return counts.finds;
  return counts.inits;
}
// The log since the last call of this.
const char* fake_log() {
  static thread_local std::string taken;
  taken.swap(log_text);
  log_text.clear();
  return taken.c_str();
}
void fake_fail(int which) { fail_next = which; }
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
  *v = which == 75 ? 9 : which == 76 ? 0 : which == 16 ? 132 : which == 97 ? 232448 : -1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** c, int d) { ++counts.retains; *c = &contexts[d]; return 0; }
int cuCtxPushCurrent_v2(void*) { ++depth; return 0; }
int cuCtxPopCurrent_v2(void**) { --depth; return 0; }
int cuThreadExchangeStreamCaptureMode(int* m) { int old = mode; mode = *m; *m = old; return 0; }
int cuModuleLoadData(void** m, const void* image) {
  if (depth != 1 || mode != 2) return 900;  // no context, or a capture would be broken
  if (static_cast<const char*>(image)[0] == 'X') return 209;
  ++counts.loads; *m = const_cast<void*>(image); return 0;
}
int cuModuleGetFunction(void** f, void* m, const char* name) {
  if (depth != 1 || mode != 2) return 900;
  ++counts.finds;
  const bool finish = !strcmp(name, "coldforge_finish");
  if (!finish && strcmp(name, "coldforge_kernel")) return 500;
  if (finish && !strchr(static_cast<const char*>(m), '2')) return 500;  // "cubin2" has a second kernel
  *f = finish ? &finish_token : &function_token; return 0;
}
int cuFuncSetAttribute(void* f, int which, int bytes) {
  if (which != 8 || bytes > 232448 || (f != &function_token && f != &finish_token)) return 1;
  ++counts.attributes; return 0;
}
int cuMemsetD8Async(unsigned long long address, unsigned char value, size_t bytes, void* stream) {
  if (depth != 1 || mode == 2 || address == 0 || fails()) return 1;
  char text[100];
  snprintf(text, sizeof(text), "fill %llx %d %zu on %p;", address, value, bytes, stream);
  log_text += text; return 0;
}
int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned, unsigned,
                   unsigned shared, void* stream, void** parameters, void** extra) {
  if (depth != 1 || mode == 2 || gy != 1 || gz != 1 || extra || fails()) return 400;
  if (f != &function_token && f != &finish_token) return 400;
  auto* words = static_cast<long long*>(parameters[0]);
  fake_sum = words[0] + words[1];
  fake_grid = gx; fake_block = bx; fake_shared = shared; fake_stream = stream;
  char text[100];
  const char* const what = f == &finish_token ? "finish" : "kernel";
  snprintf(text, sizeof(text), "%s %u x %u, %u on %p;", what, gx, bx, shared, stream);
  log_text += text;
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
const char* fake_log(); void fake_fail(int);
}
static const unsigned char good[] = "cubin", bad[] = "X", two[] = "cubin2";
static const Variant variants[] = {
    {"good", 90, nullptr, good}, {"bad", 90, nullptr, bad}, {"two", 90, nullptr, two}};
static std::string run(int device, int number, const Launch& geometry) {
  Word words[2];
  words[0].size = 40; words[1].size = 2;
  void* const workspace = reinterpret_cast<void*>(0xabc00);
  return run_on_gpu(device, gpu_at(device, 3), number, variants[number], geometry, words, workspace);
}
static std::string launch(int device, int number, int64_t grid, int64_t shared) {
  Launch geometry; geometry.grid = grid; geometry.block = 128; geometry.shared_bytes = shared;
  return run(device, number, geometry);
}
static bool logged(const char* wanted) {
  const std::string found = fake_log();
  if (found != wanted) fprintf(stderr, "enqueued: %s\n", found.c_str());
  return found == wanted;
}
// Zeroing and second kernels: their order, their stream, and what is left out where they are not asked for.
static void stages() {
  Launch plain; plain.grid = 7; plain.block = 128;
  fake_log();
  assert(run(1, 2, plain).empty() && logged("kernel 7 x 128, 0 on 0x101;"));
  const int found = fake_count("finds");
  Launch zeroed = plain; zeroed.workspace_bytes = 64; zeroed.zeroed_bytes = 12;
  assert(run(1, 2, zeroed).empty() && logged("fill abc00 0 12 on 0x101;kernel 7 x 128, 0 on 0x101;"));
  assert(fake_count("finds") == found);  // the second kernel is looked for once it is launched
  Launch staged = plain; staged.finish_grid = 3; staged.finish_block = 32; staged.finish_shared_bytes = 60000;
  const int allowed = fake_count("attributes");
  for (int i = 0; i < 2; ++i)
    assert(run(1, 2, staged).empty() && logged("kernel 7 x 128, 0 on 0x101;finish 3 x 32, 60000 on 0x101;"));
  assert(fake_count("finds") == found + 1 && fake_count("attributes") == allowed + 1);
  Launch all = staged; all.workspace_bytes = all.zeroed_bytes = 64; all.shared_bytes = 70000;
  assert(run(0, 2, all).empty());
  assert(logged("fill abc00 0 64 on 0x100;kernel 7 x 128, 70000 on 0x100;finish 3 x 32, 60000 on 0x100;"));
  // What fails ends the call, in one line, and spoils nothing.
  const char* const parts[] = {"", "fill abc00 0 64 on 0x100;",
                               "fill abc00 0 64 on 0x100;kernel 7 x 128, 70000 on 0x100;"};
  for (int which = 0; which < 3; ++which) {
    fake_fail(which);
    const char* const call = which == 0 ? "cuMemsetD8Async failed" : "cuLaunchKernel failed";
    assert(run(0, 2, all).find(call) == 0 && logged(parts[which]) && fake_depth() == 0);
  }
  assert(run(0, 2, all).empty() && *fake_log());
  Launch large = staged; large.finish_shared_bytes = 300000;
  assert(run(0, 2, large).find("cuFuncSetAttribute failed") == 0 && logged(""));
  large = staged; large.finish_grid = int64_t(1) << 31;
  assert(run(0, 2, large).find("the grid of 2147483648 blocks is too large") == 0);
  fake_log();
  // Asked for where there is none; without it the same cubin still runs.
  for (int i = 0; i < 2; ++i) {
    assert(run(0, 0, staged).find("cuModuleGetFunction of its second kernel failed") == 0 && logged(""));
    assert(run(0, 0, plain).empty() && logged("kernel 7 x 128, 0 on 0x100;"));
  }
}
int main() {
  if (getenv("FAKE_NO_DEVICE")) {
    assert(gpu_at(0, 3).why.find("cuInit failed: CUDA_ERROR_FAKE (100)") == 0);
    puts("refused"); return 0;
  }
  Gpu& gpu = gpu_at(0, 3);
  assert(gpu.why.empty() && gpu.capability == 90 && gpu.sm_count == 132 && gpu.model == "Fake GPU");
  assert(gpu.driver == 13000 && gpu.max_shared_bytes == 232448 && &gpu == &gpu_at(0, 3));
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
  const int before = fake_count("launches");
  stages();
  const int staged = fake_count("launches") - before;
  for (int i = 0; i < 2; ++i) assert(launch(0, 1, 1, 0).find("cuModuleLoadData failed") == 0);
  assert(fake_count("loads") == 3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) threads.emplace_back([i] {
    for (int k = 0; k < 50; ++k) assert(launch(i % 2, 0, 1, 1000).empty());
    fake_log();
    assert(fake_depth() == 0);
  });
  for (auto& thread : threads) thread.join();
  assert(fake_count("loads") == 4 && fake_count("retains") == 2 && fake_count("inits") == 1);  // one a device
  assert(gpu_at(2, 3).why.find("cuDeviceGet failed") == 0);
  assert(!gpu_at(-1, 3).why.empty() && !gpu_at(64, 3).why.empty());
  printf("launched %d\n", fake_count("launches") - staged);
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
