// SPDX-License-Identifier: Apache-2.0
// The CPU at hand: its instruction-set level and model, and how a range kernel is run on PyTorch's threads.
#pragma once

#include <torch/csrc/stable/c/shim.h>

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

inline void run_on_cpu(CpuKernel kernel, const Launch& launch, Word* words) {
  const int64_t grain = launch.grain > 0 ? launch.grain : 1;
  if (torch_parallel_for(0, launch.units, grain, kernel, words) != 0) {
    throw std::runtime_error("coldforge: PyTorch's parallel-for failed");
  }
}

}  // namespace
}  // namespace coldforge
