// SPDX-License-Identifier: Apache-2.0
// All that the generated table includes: the parts, and what the loader in Python asks of the extension by
// ctypes.
#pragma once

#include <torch/csrc/stable/library.h>

#include "entry.h"
#include "expressions.h"
#include "operator.h"

#ifndef COLDFORGE_BUILD_KEY
#error "COLDFORGE_BUILD_KEY is the digest of the manifest and of these headers"
#endif

#define COLDFORGE_EXPORT extern "C" __attribute__((visibility("default"), used))

// The loader looks for the mark in the file before it loads it: an extension of another manifest is refused.
COLDFORGE_EXPORT const char* coldforge_build_key() { return "coldforge-build-key:" COLDFORGE_BUILD_KEY; }

COLDFORGE_EXPORT int coldforge_variant_count() { return coldforge::kVariantCount; }

COLDFORGE_EXPORT const char* coldforge_variant_name(int number) { return coldforge::kVariants[number].name; }

// Whether this machine's CPU can run the variant; 1 for a GPU's, whose device is only known at the call.
COLDFORGE_EXPORT int coldforge_variant_runs_here(int number) {
  const coldforge::Variant& variant = coldforge::kVariants[number];
  if (variant.image != nullptr) return 1;
  return variant.function != nullptr && variant.level <= coldforge::cpu_level();
}

// What this machine's CPU is to the choice of a variant.
COLDFORGE_EXPORT int coldforge_cpu_level() { return coldforge::cpu_level(); }

COLDFORGE_EXPORT const char* coldforge_cpu_model() { return coldforge::cpu_model().c_str(); }

COLDFORGE_EXPORT void coldforge_enable_variant(int number, int enabled) {
  coldforge::enabled_flags()[number] = enabled != 0;
  ++coldforge::enabled_changes();
}

COLDFORGE_EXPORT int coldforge_variant_enabled(int number) { return coldforge::enabled_flags()[number]; }

// Makes this thread run that variant alone, enabled or not; -1 ends it.
COLDFORGE_EXPORT void coldforge_force_variant(int number) { coldforge::forced_variant() = number; }

// Which variant a call would take on a machine described by its arguments: kind 0 cpu, 1 cuda; dtype 0 fp32,
// 1 fp16, 2 bf16; driver: the CUDA version that it is for, 13000 for 13.0; the operator's values in its
// order; processors: a GPU's multiprocessors, a CPU's threads. -1: the reference; -2: no such operator.
COLDFORGE_EXPORT int coldforge_choose(const char* name, int kind, int dtype, double precision_eps, int level,
                                      const char* model, int driver, int64_t max_shared_bytes,
                                      int64_t processors, const int64_t* values) {
  const std::string device = model;
  const coldforge::Request request{kind == 0 ? coldforge::Kind::cpu : coldforge::Kind::cuda,
                                   static_cast<coldforge::DType>(dtype),
                                   precision_eps,
                                   level,
                                   &device,
                                   values,
                                   driver,
                                   max_shared_bytes,
                                   {processors, processors}};
  return coldforge::choose(name, request);
}

// The variant that answered this thread's last call; -1: the reference.
COLDFORGE_EXPORT int coldforge_last_variant() { return coldforge::last_variant(); }

// Says that the reference answered, where that did not happen in an op.
COLDFORGE_EXPORT void coldforge_forget_last() { coldforge::last_variant() = -1; }
