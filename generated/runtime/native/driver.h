// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver API that launching a cubin needs, found at run time.
//
// Nothing of CUDA is needed to build or to load the extension: libcuda.so.1 is opened at the first call on a
// GPU.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace coldforge {
namespace {

using CuResult = int;
using CuDevice = int;
using CuContext = struct CuContextOpaque*;
using CuModule = struct CuModuleOpaque*;
using CuFunction = struct CuFunctionOpaque*;
using CuStream = struct CuStreamOpaque*;
using CuAddress = unsigned long long;  // CUdeviceptr

constexpr int kComputeCapabilityMajor = 75;  // CUdevice_attribute
constexpr int kComputeCapabilityMinor = 76;
constexpr int kMultiprocessorCount = 16;
constexpr int kMaxSharedBytes = 97;        // of a block that asks for more than the usual 48 KiB
constexpr int kMaxDynamicSharedBytes = 8;  // CUfunction_attribute
constexpr int kOutOfMemory = 2;            // CUresult
constexpr int kCaptureModeRelaxed = 2;     // CUstreamCaptureMode
constexpr int64_t kMaxGrid = 2147483647;   // blocks along x, on every supported architecture

struct Driver {
  CuResult (*init)(unsigned);
  CuResult (*driver_version)(int*);
  CuResult (*error_name)(CuResult, const char**);
  CuResult (*error_text)(CuResult, const char**);
  CuResult (*device)(CuDevice*, int);
  CuResult (*device_name)(char*, int, CuDevice);
  CuResult (*device_attribute)(int*, int, CuDevice);
  CuResult (*retain_primary)(CuContext*, CuDevice);
  CuResult (*push)(CuContext);
  CuResult (*pop)(CuContext*);
  CuResult (*load)(CuModule*, const void*);
  CuResult (*function)(CuFunction*, CuModule, const char*);
  CuResult (*set_attribute)(CuFunction, int, int);
  CuResult (*exchange_capture_mode)(int*);
  CuResult (*fill)(CuAddress, unsigned char, size_t, CuStream);
  CuResult (*launch)(CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     CuStream, void**, void**);
  std::string why;  // empty when the driver is usable

  // The message of a failed call.
  std::string describe(const char* call, CuResult result) const {
    const char* name = nullptr;
    const char* text = nullptr;
    if (error_name(result, &name) != 0 || name == nullptr) name = "unknown error";
    if (error_text(result, &text) != 0 || text == nullptr) text = "";
    return std::string(call) + " failed: " + name + " (" + std::to_string(result) + ") " + text;
  }
};

template <class Function>
bool find(void* library, const char* name, Function& function, std::string& why) {
  // Names with _v2 are those of the current ABI; the plain ones are kept for programs built against CUDA 3.
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && why.empty()) why = std::string("the CUDA driver has no ") + name;
  return function != nullptr;
}

inline void load_driver(Driver& d) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    d.why = "no CUDA driver (libcuda.so.1)";
    return;
  }
  const bool found =
      find(library, "cuInit", d.init, d.why) &&
      find(library, "cuDriverGetVersion", d.driver_version, d.why) &&
      find(library, "cuGetErrorName", d.error_name, d.why) &&
      find(library, "cuGetErrorString", d.error_text, d.why) &&
      find(library, "cuDeviceGet", d.device, d.why) &&
      find(library, "cuDeviceGetName", d.device_name, d.why) &&
      find(library, "cuDeviceGetAttribute", d.device_attribute, d.why) &&
      find(library, "cuDevicePrimaryCtxRetain", d.retain_primary, d.why) &&
      find(library, "cuCtxPushCurrent_v2", d.push, d.why) &&
      find(library, "cuCtxPopCurrent_v2", d.pop, d.why) && find(library, "cuModuleLoadData", d.load, d.why) &&
      find(library, "cuModuleGetFunction", d.function, d.why) &&
      find(library, "cuFuncSetAttribute", d.set_attribute, d.why) &&
      find(library, "cuThreadExchangeStreamCaptureMode", d.exchange_capture_mode, d.why) &&
      find(library, "cuMemsetD8Async", d.fill, d.why) && find(library, "cuLaunchKernel", d.launch, d.why);
  if (!found) return;
  const CuResult result = d.init(0);
  if (result != 0) d.why = d.describe("cuInit", result);
}

inline const Driver& driver() {
  static const Driver loaded = [] {
    Driver d{};
    load_driver(d);
    return d;
  }();
  return loaded;
}

// PyTorch's current stream. Asked of the libtorch_cuda that is already loaded; the extension links only
// libtorch_cpu.
inline std::string current_stream(int device_index, CuStream& stream) {
  using Get = int32_t (*)(int32_t, void**);
  static const Get get = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr ? nullptr
                              : reinterpret_cast<Get>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  if (get == nullptr) return "PyTorch's CUDA library is not loaded";
  void* raw = nullptr;
  if (get(device_index, &raw) != 0) return "PyTorch did not tell its current CUDA stream";
  stream = static_cast<CuStream>(raw);
  return "";
}

// Makes a device's primary context current for the calling thread while it lives: a new thread has none.
class ContextGuard {
 public:
  explicit ContextGuard(CuContext context) : pushed_(driver().push(context)) {}
  ~ContextGuard() {
    CuContext previous = nullptr;
    if (pushed_ == 0) driver().pop(&previous);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;
  std::string why() const { return pushed_ == 0 ? "" : driver().describe("cuCtxPushCurrent", pushed_); }

 private:
  CuResult pushed_;
};

// While it lives this thread may allocate although another one captures a graph.
class RelaxedCapture {
 public:
  RelaxedCapture() : exchanged_(driver().exchange_capture_mode(&mode_)) {}
  ~RelaxedCapture() {
    if (exchanged_ == 0) driver().exchange_capture_mode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_ = kCaptureModeRelaxed;  // then the mode that was set before
  CuResult exchanged_;
};

}  // namespace
}  // namespace coldforge
