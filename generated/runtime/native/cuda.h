// SPDX-License-Identifier: Apache-2.0
// GPUs: what each is, its loaded cubins, and a launch on PyTorch's current stream.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "driver.h"
#include "entry.h"

namespace coldforge {
namespace {

constexpr int kMaxGpus = 64;

struct LoadedFunction {
  CuFunction function = nullptr;
  int64_t shared_bytes = 0;  // dynamic shared memory it may already ask for
};

// One variant on one GPU. `why` is set, for good, when the GPU cannot load it.
struct LoadedKernel {
  CuModule module = nullptr;
  LoadedFunction first;
  LoadedFunction second;  // found when it is first launched
  std::string why;
  bool tried = false;
};

struct Gpu {
  std::string why;  // empty when the GPU is usable
  int capability = 0;
  int driver = 0;  // the CUDA version of the driver: 13000 for 13.0
  int64_t sm_count = 1;
  int64_t max_shared_bytes = 0;  // that a block may ask for
  std::string model;
  CuContext context = nullptr;
  std::mutex lock;  // guards `kernels`
  std::unique_ptr<LoadedKernel[]> kernels;
};

inline std::string open_gpu(Gpu& gpu, int index, int variant_count) {
  const Driver& d = driver();
  if (!d.why.empty()) return d.why;
  CuDevice device = 0;
  CuResult result = d.device(&device, index);
  if (result != 0) return d.describe("cuDeviceGet", result);
  int major = 0, minor = 0, processors = 1, shared = 0;
  char name[256] = "";
  if ((result = d.device_attribute(&major, kComputeCapabilityMajor, device)) != 0 ||
      (result = d.device_attribute(&minor, kComputeCapabilityMinor, device)) != 0 ||
      (result = d.device_attribute(&processors, kMultiprocessorCount, device)) != 0 ||
      (result = d.device_attribute(&shared, kMaxSharedBytes, device)) != 0 ||
      (result = d.device_name(name, sizeof(name), device)) != 0 ||
      (result = d.driver_version(&gpu.driver)) != 0) {
    return d.describe("asking the GPU", result);
  }
  // Retained once and never released: PyTorch keeps the same context for the life of the process.
  if ((result = d.retain_primary(&gpu.context, device)) != 0)
    return d.describe("cuDevicePrimaryCtxRetain", result);
  gpu.capability = major * 10 + minor;
  gpu.sm_count = processors;
  gpu.max_shared_bytes = shared;
  gpu.model = name;
  gpu.kernels = std::make_unique<LoadedKernel[]>(static_cast<size_t>(variant_count));
  return "";
}

// The GPU that PyTorch calls cuda:index (the driver's own numbering: both see CUDA_VISIBLE_DEVICES).
inline Gpu& gpu_at(int index, int variant_count) {
  static std::array<Gpu, kMaxGpus> gpus;
  static std::array<std::once_flag, kMaxGpus> opened;
  static Gpu none;
  if (index < 0 || index >= kMaxGpus) {
    static std::once_flag once;
    std::call_once(once, [] { none.why = "a device index of 64 or more"; });
    return none;
  }
  std::call_once(opened[index], [&] { gpus[index].why = open_gpu(gpus[index], index, variant_count); });
  return gpus[index];
}

// Loads a cubin, or has the driver compile PTX (it keeps what it compiled). Runs under the GPU's lock with
// its context current.
inline void load_kernel(const Variant& variant, LoadedKernel& kernel) {
  const Driver& d = driver();
  kernel.why.clear();
  const RelaxedCapture loading_allocates;
  CuResult result = d.load(&kernel.module, variant.image);
  kernel.tried = result != kOutOfMemory;  // memory may be there another time
  if (result != 0) kernel.why = d.describe("cuModuleLoadData", result);
  if (result == 0 && (result = d.function(&kernel.first.function, kernel.module, "coldforge_kernel")) != 0) {
    kernel.why = d.describe("cuModuleGetFunction", result);
  }
}

// Finds the second kernel of a loaded cubin. Returns why it could not, or nothing; runs as load_kernel does.
inline std::string find_second(LoadedKernel& kernel) {
  if (kernel.second.function != nullptr) return "";
  const RelaxedCapture loading_allocates;
  const CuResult result = driver().function(&kernel.second.function, kernel.module, "coldforge_finish");
  return result == 0 ? "" : driver().describe("cuModuleGetFunction of its second kernel", result);
}

// Lets a function ask for that much dynamic shared memory. Returns why it may not, or nothing.
inline std::string allow_shared(LoadedFunction& loaded, int64_t shared_bytes) {
  if (shared_bytes <= loaded.shared_bytes) return "";
  const Driver& d = driver();
  const CuResult result =
      d.set_attribute(loaded.function, kMaxDynamicSharedBytes, static_cast<int>(shared_bytes));
  if (result != 0) return d.describe("cuFuncSetAttribute", result);
  loaded.shared_bytes = shared_bytes;
  return "";
}

// What one call launches.
struct Functions {
  CuFunction first = nullptr;
  CuFunction second = nullptr;  // null: it has one kernel only
};

// Loads what is not loaded yet, and allows the shared memory. Returns why it could not, or nothing.
inline std::string prepare(Gpu& gpu, int number, const Variant& variant, const Launch& launch,
                           Functions& ready) {
  std::lock_guard<std::mutex> guard(gpu.lock);
  LoadedKernel& kernel = gpu.kernels[number];
  if (!kernel.tried) load_kernel(variant, kernel);
  if (!kernel.why.empty()) return kernel.why;
  std::string why = allow_shared(kernel.first, launch.shared_bytes);
  if (launch.finish_grid > 0) {
    if (why.empty()) why = find_second(kernel);
    if (why.empty()) why = allow_shared(kernel.second, launch.finish_shared_bytes);
    ready.second = kernel.second.function;
  }
  ready.first = kernel.first.function;
  return why;
}

// Returns why it could not, or nothing.
inline std::string enqueue(CuFunction function, int64_t grid, int64_t block, int64_t shared_bytes,
                           CuStream stream, Word* words) {
  if (grid > kMaxGrid) return "the grid of " + std::to_string(grid) + " blocks is too large";
  void* parameters[] = {words};  // one parameter: the whole block, by value
  const CuResult result =
      driver().launch(function, static_cast<unsigned>(grid), 1, 1, static_cast<unsigned>(block), 1, 1,
                      static_cast<unsigned>(shared_bytes), stream, parameters, nullptr);
  return result == 0 ? "" : driver().describe("cuLaunchKernel", result);
}

// Enqueues one call on PyTorch's current stream of that GPU: the zeroing of the workspace's start, the
// kernel, the second kernel. Returns why it could not, or nothing.
inline std::string run_on_gpu(int index, Gpu& gpu, int number, const Variant& variant, const Launch& launch,
                              Word* words, void* workspace) {
  const ContextGuard current(gpu.context);
  std::string why = current.why();
  if (!why.empty()) return why;
  CuStream stream = nullptr;
  if (!(why = current_stream(index, stream)).empty()) return why;
  Functions ready;
  if (!(why = prepare(gpu, number, variant, launch, ready)).empty()) return why;
  if (launch.zeroed_bytes > 0) {
    const CuResult result = driver().fill(reinterpret_cast<CuAddress>(workspace), 0,
                                          static_cast<size_t>(launch.zeroed_bytes), stream);
    if (result != 0) return driver().describe("cuMemsetD8Async", result);
  }
  why = enqueue(ready.first, launch.grid, launch.block, launch.shared_bytes, stream, words);
  if (ready.second == nullptr || !why.empty()) return why;
  return enqueue(ready.second, launch.finish_grid, launch.finish_block, launch.finish_shared_bytes, stream,
                 words);
}

}  // namespace
}  // namespace coldforge
