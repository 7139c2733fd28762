// SPDX-License-Identifier: Apache-2.0
// The checks of one access: is it inside of something, and can another thread's access meet it?
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shadow.h"

namespace emulator {

struct Access {
  bool reads = false;
  bool writes = false;
  bool atomic = false;
  bool under_way = false;  // the start of a background copy's write
  bool engine = false;     // by the copy engine or the tensor cores, not by the thread
};

// Reports and ends the process when [pointer, pointer + bytes) is not in one region, or is not aligned to
// `alignment`. In the race build every access of a kernel comes through check_instrumented; in the others
// only those that the runtime makes for it.
void check_access(const void* pointer, size_t bytes, size_t alignment, Access access, uintptr_t pc);

// The same for an access that the compiler announces, which may also be to the thread's own stack, the
// kernel's constants or its arguments. Aligned or not.
void check_instrumented(const void* pointer, size_t bytes, Access access, uintptr_t pc);

// A background copy has arrived: its write is now an ordinary one.
void finish_copy(const void* pointer, size_t bytes, uintptr_t pc);

// One of the copy engine's has, at that moment: those who wait at its barrier know.
void land(const void* pointer, size_t bytes, uintptr_t pc, uint32_t moment, int slot);

// A read in the background begins, and has ended; `seen` is what race.h says.
void check_background(const void* pointer, size_t bytes, size_t alignment, bool may_be_unwritten,
                      uintptr_t pc, std::vector<Record>& seen);
void finish_background(const void* pointer, size_t bytes, uintptr_t pc, const std::vector<Record>& seen);

// Reports and ends the process when it is not in shared memory.
void require_shared(const void* pointer, size_t bytes, uintptr_t pc);

// Memory outside of regions that a kernel reads: its library (in pieces) and its arguments.
void allow_library(const void* pointer, size_t bytes);
void allow_arguments(const void* pointer, size_t bytes);

// The address in the kernel's code from which this function was called.
#define EMULATOR_CALLER (reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - 1)

}  // namespace emulator
