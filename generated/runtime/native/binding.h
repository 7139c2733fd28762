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

COLDFORGE_EXPORT void coldforge_enable_variant(int number, int enabled) {
  coldforge::enabled_flags()[number] = enabled != 0;
}

COLDFORGE_EXPORT int coldforge_variant_enabled(int number) { return coldforge::enabled_flags()[number]; }

// Makes this thread run that variant alone, enabled or not; -1 ends it.
COLDFORGE_EXPORT void coldforge_force_variant(int number) { coldforge::forced_variant() = number; }

// The variant that answered this thread's last call; -1: the reference.
COLDFORGE_EXPORT int coldforge_last_variant() { return coldforge::last_variant(); }
