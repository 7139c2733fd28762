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

// One variant on one GPU. `why` is set, for good, when the GPU cannot load it.
struct LoadedKernel {
  CuFunction function = nullptr;
  int64_t shared_bytes = 0;  // dynamic shared memory it may already ask for
  std::string why;
  bool tried = false;
};

struct Gpu {
  std::string why;  // empty when the GPU is usable
  int capability = 0;
  int driver_cuda_major = 0;
  int64_t sm_count = 1;
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
  int major = 0, minor = 0, processors = 1, version = 0;
  char name[256] = "";
  if ((result = d.device_attribute(&major, kComputeCapabilityMajor, device)) != 0 ||
      (result = d.device_attribute(&minor, kComputeCapabilityMinor, device)) != 0 ||
      (result = d.device_attribute(&processors, kMultiprocessorCount, device)) != 0 ||
      (result = d.device_name(name, sizeof(name), device)) != 0 ||
      (result = d.driver_version(&version)) != 0) {
    return d.describe("asking the GPU", result);
  }
  // Retained once and never released: PyTorch keeps the same context for the life of the process.
  if ((result = d.retain_primary(&gpu.context, device)) != 0)
    return d.describe("cuDevicePrimaryCtxRetain", result);
  gpu.capability = major * 10 + minor;
  gpu.driver_cuda_major = version / 1000;
  gpu.sm_count = processors;
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

// Loads a cubin. Runs under the GPU's lock with its context current.
inline void load_kernel(const Variant& variant, LoadedKernel& kernel) {
  const Driver& d = driver();
  kernel.tried = true;
  // Loading allocates; while another thread captures a graph that is forbidden unless this thread says
  // relaxed.
  int mode = kCaptureModeRelaxed;
  const CuResult exchanged = d.exchange_capture_mode(&mode);
  CuModule module = nullptr;
  CuResult result = d.load(&module, variant.image);
  if (result != 0) kernel.why = d.describe("cuModuleLoadData", result);
  if (result == 0 && (result = d.function(&kernel.function, module, "coldforge_kernel")) != 0) {
    kernel.why = d.describe("cuModuleGetFunction", result);
  }
  if (exchanged == 0) d.exchange_capture_mode(&mode);
}

// The function, allowed to use `shared_bytes` of dynamic shared memory; or null and the reason.
inline CuFunction prepared(Gpu& gpu, int number, const Variant& variant, int64_t shared_bytes,
                           std::string& why) {
  const Driver& d = driver();
  std::lock_guard<std::mutex> guard(gpu.lock);
  LoadedKernel& kernel = gpu.kernels[number];
  if (!kernel.tried) load_kernel(variant, kernel);
  if (kernel.why.empty() && shared_bytes > kernel.shared_bytes) {
    const CuResult result =
        d.set_attribute(kernel.function, kMaxDynamicSharedBytes, static_cast<int>(shared_bytes));
    if (result != 0) {
      why = d.describe("cuFuncSetAttribute", result);
      return nullptr;
    }
    kernel.shared_bytes = shared_bytes;
  }
  why = kernel.why;
  return kernel.function;
}

// Enqueues the kernel on PyTorch's current stream of that GPU. Returns why it could not, or nothing.
inline std::string run_on_gpu(int index, Gpu& gpu, int number, const Variant& variant, const Launch& launch,
                              Word* words) {
  if (launch.grid > kMaxGrid) return "the grid of " + std::to_string(launch.grid) + " blocks is too large";
  const ContextGuard current(gpu.context);
  std::string why = current.why();
  if (!why.empty()) return why;
  CuStream stream = nullptr;
  if (!(why = current_stream(index, stream)).empty()) return why;
  const CuFunction function = prepared(gpu, number, variant, launch.shared_bytes, why);
  if (function == nullptr) return why;
  void* parameters[] = {words};  // one parameter: the whole block, by value
  const CuResult result =
      driver().launch(function, static_cast<unsigned>(launch.grid), 1, 1, static_cast<unsigned>(launch.block),
                      1, 1, static_cast<unsigned>(launch.shared_bytes), stream, parameters, nullptr);
  return result == 0 ? "" : driver().describe("cuLaunchKernel", result);
}

}  // namespace
}  // namespace coldforge
