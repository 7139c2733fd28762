// SPDX-License-Identifier: Apache-2.0
// The race detector proper: accesses to one region against what its shadow remembers.
#pragma once

#include "access.h"
#include "memory.h"

namespace emulator {

// Reports what can meet this access in either order, and reads of what nobody has written; then remembers
// the access. `offset` and `bytes` lie inside of the region.
void check_races(Region& region, size_t offset, size_t bytes, Access access, uintptr_t pc);

// Remembers a write without checking it.
void record_write(Region& region, size_t offset, size_t bytes, uintptr_t pc);

}  // namespace emulator
