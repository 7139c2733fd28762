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

// The same for one of the copy engine.
void record_landing(Region& region, size_t offset, size_t bytes, uintptr_t pc, uint32_t moment, int slot);

// A read in the background. It begins: what it reads has been written, and is published. It ends: it has been
// written by nobody since. `seen` is kept in between.
void begin_reading(Region& region, size_t offset, size_t bytes, bool may_be_unwritten, uintptr_t pc,
                   std::vector<Record>& seen);
void end_reading(Region& region, size_t offset, size_t bytes, uintptr_t pc, const std::vector<Record>& seen);

}  // namespace emulator
