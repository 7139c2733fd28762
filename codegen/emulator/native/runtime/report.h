// SPDX-License-Identifier: Apache-2.0
// Findings: what is written down where the emulator sees a fault. One line of JSON each, on the reply stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interface.h"

namespace emulator {

constexpr int COPY_ENGINE = -2;

// One side of a finding: a thread at a place.
struct Actor {
  int64_t block = -1;
  int thread = -1;   // COPY_ENGINE: what it has written, in the background
  uintptr_t pc = 0;  // in the kernel's library; 0 where `site` says more
  EmulatorSite site = {nullptr, 0, 0};
};

struct Finding {
  const char* kind;
  const char* detail;           // a few words more; no quotes or backslashes
  const char* array = nullptr;  // name of the memory
  int64_t offset = 0;           // bytes from its start
  uint64_t array_bytes = 0;
  int bytes = 0;  // of the access; 0: no access
  bool write = false;
  Actor actor = {};
  Actor other = {};  // the second thread of a race or divergence
};

// The code whose addresses findings name, and the kernel that runs.
void set_code(uintptr_t base);
void set_kernel(const char* name);
uintptr_t code_base();

// Writes a finding, unless one like it (kind, array, places) was written in this launch. Safe in a signal
// handler.
void report(const Finding& finding);

// The same, and ends the process: the call cannot go on.
[[noreturn]] void report_and_stop(const Finding& finding);

// Findings of a new launch are new.
void forget_reported();

// Ends the process over a fault of the emulator's caller or machine; `why` goes to the error stream.
[[noreturn]] void fail(const char* why);

// Raw bytes to the reply stream.
void reply(const void* bytes, size_t count);

}  // namespace emulator
