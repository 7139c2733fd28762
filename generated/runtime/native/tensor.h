// SPDX-License-Identifier: Apache-2.0
// Tensors through libtorch's stable C interface: the facts a kernel call needs, and fresh storage.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "entry.h"

namespace coldforge {
namespace {

// What PyTorch said about its last error, in one line; only 2.13 and newer tell.
inline std::string last_error() {
  using Get = const char* (*)();
  static const Get get = [] {
    void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<Get>(dlsym(library, "torch_exception_get_what_without_backtrace"));
  }();
  const char* text = get == nullptr ? nullptr : get();
  if (text == nullptr || *text == 0) return "";
  const std::string all = text;
  return ": " + all.substr(0, all.find('\n'));
}

inline void check(AOTITorchError error, const char* what) {
  if (error != 0)
    throw std::runtime_error(std::string("coldforge: ") + what + " failed in PyTorch" + last_error());
}

struct DeleteTensor {
  void operator()(AtenTensorHandle handle) const { aoti_torch_delete_tensor_object(handle); }
};
using OwnedTensor = std::unique_ptr<std::remove_pointer_t<AtenTensorHandle>, DeleteTensor>;

struct Place {
  int32_t type = 0;
  int32_t index = 0;
  bool operator==(const Place& other) const { return type == other.type && index == other.index; }
};

inline Place place_of(AtenTensorHandle tensor) {
  Place place;
  check(aoti_torch_get_device_type(tensor, &place.type), "asking a tensor's device");
  check(aoti_torch_get_device_index(tensor, &place.index), "asking a tensor's device");
  return place;
}

inline int32_t dtype_code_of(AtenTensorHandle tensor) {
  int32_t code = 0;
  check(aoti_torch_get_dtype(tensor, &code), "asking a tensor's dtype");
  return code;
}

inline DType dtype_from_code(int32_t code) {
  if (code == aoti_torch_dtype_float32()) return DType::fp32;
  if (code == aoti_torch_dtype_float16()) return DType::fp16;
  return code == aoti_torch_dtype_bfloat16() ? DType::bf16 : DType::unsupported;
}

inline OwnedTensor empty(const int64_t* shape, int rank, int32_t dtype, const Place& place) {
  int64_t strides[kMaxRank] = {};
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i] > 1 ? shape[i] : 1;
  }
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_empty_strided(rank, shape, strides, dtype, place.type, place.index, &handle),
        "allocating");
  return OwnedTensor(handle);
}

inline void* data_of(AtenTensorHandle tensor) {
  void* data = nullptr;
  check(aoti_torch_get_data_ptr(tensor, &data), "asking a tensor's address");
  return data;
}

// What kernels assume of a base pointer.
inline uintptr_t alignment_bytes(Kind kind) { return kind == Kind::cuda ? 256 : 16; }

// The tensor's data, contiguous and aligned: itself, or a copy which `keep` then owns.
inline void* kernel_data(AtenTensorHandle tensor, Kind kind, OwnedTensor& keep) {
  bool contiguous = false;
  check(aoti_torch_is_contiguous(tensor, &contiguous), "asking a tensor's layout");
  void* data = data_of(tensor);
  if (contiguous && reinterpret_cast<uintptr_t>(data) % alignment_bytes(kind) == 0) return data;
  int64_t rank = 0;
  int64_t* sizes = nullptr;
  check(aoti_torch_get_dim(tensor, &rank), "asking a tensor's rank");
  check(aoti_torch_get_sizes(tensor, &sizes), "asking a tensor's sizes");
  keep = empty(sizes, static_cast<int>(rank), dtype_code_of(tensor), place_of(tensor));
  check(aoti_torch_copy_(keep.get(), tensor, 0), "copying a tensor");
  return data_of(keep.get());
}

}  // namespace
}  // namespace coldforge
