// SPDX-License-Identifier: Apache-2.0
// The CPU at hand: its instruction-set level and model, and how a range kernel is run on PyTorch's threads.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

#include "entry.h"

namespace coldforge {
namespace {

// 2, 3 or 4 on x86-64 (0 below v2); 0 where the architecture has no levels.
inline int cpu_level() {
#if defined(__x86_64__)
  static const int level = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return 4;
    if (__builtin_cpu_supports("x86-64-v3")) return 3;
    return __builtin_cpu_supports("x86-64-v2") ? 2 : 0;
  }();
  return level;
#else
  return 0;
#endif
}

// The model's name as /proc/cpuinfo gives it; empty when it does not.
inline const std::string& cpu_model() {
  static const std::string model = [] {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
      if (line.rfind("model name", 0) != 0) continue;
      const size_t colon = line.find(':');
      const size_t start = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
      if (start != std::string::npos) return line.substr(start, line.find_last_not_of(" \t\r") - start + 1);
    }
    return std::string();
  }();
  return model;
}

inline int64_t cpu_threads() {
  uint32_t threads = 1;
  return torch_get_num_threads(&threads) == 0 && threads > 0 ? threads : 1;
}

inline void run_range(CpuKernel kernel, int64_t units, int64_t grain, Word* words) {
  if (torch_parallel_for(0, units, grain > 0 ? grain : 1, kernel, words) != 0) {
    throw std::runtime_error("coldforge: PyTorch's parallel-for failed");
  }
}

// Zeroes the workspace's start, runs the kernel, then the second kernel. Returns why it could not, or
// nothing.
inline std::string run_on_cpu(const Variant& variant, const Launch& launch, Word* words, void* workspace) {
  if (launch.finish_units > 0 && variant.finish == nullptr) return "its source has no second kernel";
  if (launch.zeroed_bytes > 0) std::memset(workspace, 0, static_cast<size_t>(launch.zeroed_bytes));
  run_range(variant.function, launch.units, launch.grain, words);
  if (launch.finish_units > 0) run_range(variant.finish, launch.finish_units, launch.finish_grain, words);
  return "";
}

}  // namespace
}  // namespace coldforge
